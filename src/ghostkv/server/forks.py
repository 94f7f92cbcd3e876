"""/v1/sessions/{id}/boundaries and /fork: the places that a session may go on from, and another session that does.

A fork at an earlier boundary is a rollback. It takes what is committed, so it needs a store.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from typing import Annotated
from uuid import uuid4

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from ghostkv.server.access import tenant_of
from ghostkv.server.envelope import Json
from ghostkv.server.fields import Schema
from ghostkv.server.intake import parse
from ghostkv.server.serving import Serving
from ghostkv.server.session_view import summary
from ghostkv.server.sessions import SessionId, has_body
from ghostkv.session.fork import Names, boundaries, forked


class ForkRequest(Schema):
    """POST /v1/sessions/{id}/fork. Everything in it is optional."""

    id: SessionId = ""
    at: Annotated[int, Field(ge=0)] | None = None


def fork_routes(serving: Serving) -> APIRouter:
    """The routes."""
    router, worker, desk = APIRouter(), serving.worker, serving.desk

    @router.get("/v1/sessions/{session_id}/boundaries")
    async def places(request: Request, session_id: str) -> Json:
        """The committed boundaries of one of the caller's sessions."""
        capsule = await desk.held((tenant_of(request).name, session_id))
        return {"object": "list", "data": [asdict(place) for place in boundaries(capsule)]}

    @router.post("/v1/sessions/{session_id}/fork")
    async def fork(request: Request, session_id: str) -> Response:
        """Another session, which goes on from a boundary of this one once somebody reads its stream."""
        asked = await parse(request, ForkRequest) if has_body(request) else ForkRequest()
        capsule = await desk.held((tenant_of(request).name, session_id))
        names = Names(asked.id, f"fork-{uuid4().hex}", int(time.time()))
        made = await asyncio.to_thread(forked, capsule, worker, asked.at, names)
        shown = summary(await desk.adopt(made))
        at = len(boundaries(capsule)) - 1 if asked.at is None else asked.at
        return JSONResponse(shown | {"forked_from": session_id, "at": at}, 201)

    return router
