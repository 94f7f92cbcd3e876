"""/v1/sessions: making sessions, looking at them, reading their answers again and on, and deleting them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Annotated

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field, StringConstraints

from ghostkv.errors import InvalidRequest
from ghostkv.protocol.payload import LEAST_BUDGET, MOST_BUDGET
from ghostkv.server.access import tenant_of
from ghostkv.server.envelope import Json
from ghostkv.server.fields import Schema
from ghostkv.server.intake import parse
from ghostkv.server.numbered import Numbered
from ghostkv.server.recovery import Recovery
from ghostkv.server.replay import recorded_score
from ghostkv.server.reported import Reported
from ghostkv.server.schema import MOST_ID
from ghostkv.server.serving import Serving
from ghostkv.server.session_view import summary, whole_session
from ghostkv.server.stream import EventStream
from ghostkv.session.capsule import Capsule
from ghostkv.session.record import SessionRecord
from ghostkv.session.store import Store
from ghostkv.session.table import Key

_MOST_DIGITS = 12  # of a token's index

Text = Annotated[str, StringConstraints(max_length=512)]

SessionId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._~-]+$", max_length=MOST_ID)]


class SessionRequest(Schema):
    """POST /v1/sessions. Everything in it is optional."""

    id: SessionId = ""
    residency: str | None = None
    payload_budget: Annotated[int, Field(ge=LEAST_BUDGET, le=MOST_BUDGET)] | None = None
    metadata: Annotated[dict[Annotated[str, StringConstraints(max_length=64)], Text], Field(max_length=16)] = Field(
        default_factory=dict
    )


def session_routes(serving: Serving, recovery: Recovery) -> APIRouter:
    """The routes."""
    router, worker, desk = APIRouter(), serving.worker, serving.desk

    @router.post("/v1/sessions")
    async def create(request: Request) -> Response:
        """Make a session."""
        asked = await parse(request, SessionRequest) if has_body(request) else SessionRequest()
        if asked.residency is not None:
            worker.context.policies(asked.residency)  # refuses a name that is none
        record = SessionRecord(
            id=asked.id,
            tenant=tenant_of(request).name,
            created=int(time.time()),
            model=worker.name,
            manifest=worker.manifest,
            residency=asked.residency,
            payload_budget=asked.payload_budget,
            metadata=tuple(asked.metadata.items()),
        )
        return JSONResponse(summary(await desk.make(record)), 201)

    @router.get("/v1/sessions")
    async def all_sessions(request: Request) -> Json:
        """The caller's sessions, all of them for an admin, the one that was used last first.

        Behind this server's stand those that others on its store have, as they are written there.
        """
        tenant, alias = tenant_of(request), None
        owners: Iterable[str] = (tenant.name,)
        if tenant.admin:
            owners, alias = desk.table.tenants(), serving.access.alias
        own = [record for owner in owners for record in desk.table.of(owner)]
        return await asyncio.to_thread(_listed, own, serving.store, None if tenant.admin else tenant.name, alias)

    @router.get("/v1/sessions/{session_id}")
    async def one_session(request: Request, session_id: str) -> Json:
        """All that is known of it."""
        tenant, key = tenant_of(request), _visible(serving, request, session_id)
        await desk.claim(key)
        owner = serving.access.alias(key[0]) if tenant.admin else None
        return await asyncio.to_thread(whole_session, desk.table.get(key), owner)

    @router.delete("/v1/sessions/{session_id}")
    async def delete(request: Request, session_id: str) -> Json:
        """Forget it, and end its answer."""
        await desk.delete((tenant_of(request).name, session_id))
        return {"id": session_id, "object": "session.deleted", "deleted": True}

    @router.get("/v1/sessions/{session_id}/stream")
    async def stream(request: Request, session_id: str) -> Response:
        """An answer from one of its tokens on, as it was streamed and then as it goes on."""
        key = _visible(serving, request, session_id)
        await desk.claim(key)
        await recovery.rejoin(key)
        record = desk.table.get(key)
        if not record.turns:
            raise InvalidRequest(f"session {session_id!r} has no answer yet", param="session")
        start = _start(request, record)
        turn = record.turn_at(start)
        reading, unsettled = desk.read(key, turn), desk.unsettled(key, turn.id)
        return EventStream(
            reading,
            lambda: Reported(Numbered(recorded_score(worker, turn), turn.first, start), unsettled),
            serving.config.keep_alive_s,
        )

    return router


def _listed(
    own: Iterable[SessionRecord], store: Store | None, tenant: str | None, alias: Callable[[str], str] | None
) -> Json:
    def told(record: SessionRecord) -> Json:
        return summary(record, None if alias is None else alias(record.tenant))

    here = {(record.tenant, record.id): told(record) for record in own}
    others: dict[Key, Json] = {}
    for each in () if store is None else store.others(tenant, here.keys()):
        here.pop(each.key, None)  # a copy that may be old
        if isinstance(each.found, Capsule):
            others[each.key] = told(each.found.record)
    return {"object": "list", "data": [*here.values(), *others.values()]}


def has_body(request: Request) -> bool:
    """Whether a request brings one, which may be left out."""
    return request.headers.get("content-length", "") not in ("", "0") or "transfer-encoding" in request.headers


def _visible(serving: Serving, request: Request, session_id: str) -> Key:
    """The caller's own session; for an admin also the only other one of that id, or that of `?tenant=ALIAS`."""
    tenant, table = tenant_of(request), serving.desk.table
    own, alias = (tenant.name, session_id), request.query_params.get("tenant")
    if not tenant.admin:
        return own
    keys = [(owner, session_id) for owner in table.tenants() if alias in (None, serving.access.alias(owner))]
    found = [key for key in keys if any(record.id == session_id for record in table.of(key[0]))]
    if own in found:
        return own
    if len(found) > 1:
        raise InvalidRequest(f"{len(found)} tenants have a session {session_id!r}: add ?tenant=", param="tenant")
    return found[0] if found else own


def _start(request: Request, record: SessionRecord) -> int:
    """The first token to send: after Last-Event-ID, else `from`, else the last answer's first.

    A browser that reconnects asks the same address again and says in the header what it has, so the header counts.
    """
    last, given = request.headers.get("last-event-id"), request.query_params.get("from")
    if last is not None:
        start = _index(last.strip(), "last-event-id") + 1
    elif given is not None:
        start = _index(given, "from")
    else:
        start = record.turns[-1].first
    answer = record.turns[-1]
    # The tokens that were said before a restart may be more than those that are known after it; they come again.
    most = answer.first + answer.max_tokens if record.running or answer.error else record.tokens
    if not 0 <= start <= most:
        raise InvalidRequest(f"from is {start}, but the session's output has {record.tokens} tokens", param="from")
    return start


def _index(text: str, param: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= _MOST_DIGITS):
        raise InvalidRequest(f"{param}: {text[:20]!r} is not the index of a token", param=param)
    return int(text)
