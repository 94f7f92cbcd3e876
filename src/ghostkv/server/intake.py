"""What happens to every request before its route: an id, a body of bounded size, a schema."""

from __future__ import annotations

import asyncio
from typing import TypeVar
from uuid import uuid4

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ghostkv.errors import BodyTooLarge, InvalidRequest
from ghostkv.server.answers import ClientGone
from ghostkv.server.errors import invalid

_MOST_BYTES = 16 * 2**20
_MOST_DISCARDED = 4 * _MOST_BYTES
_ID_LENGTH = 128

S = TypeVar("S", bound=BaseModel)


class RequestIds:
    """ASGI middleware: every reply has an `x-request-id`, the client's own if it sent one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, and add the header to the reply."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)


class Heads:
    """ASGI middleware: HEAD is GET without a body, on every route, a stream's headers included."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on as GET; what would follow the headers has nobody who takes it."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        begun, asked = asyncio.Event(), {**scope, "method": "GET"}

        async def headers_only(message: Message) -> None:
            if message["type"] == "http.response.start":
                scope.update({**asked, "method": "HEAD"})  # what routing found is of use outside as well
                await send(message)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                begun.set()

        async def nobody() -> Message:
            await begun.wait()
            return {"type": "http.disconnect"}

        await self._app(asked, nobody, headers_only)


async def parse(request: Request, schema: type[S]) -> S:
    """The request's body as `schema`, whatever its content type says. Raises InvalidRequest."""
    body = await body_of(request)
    try:
        return schema.model_validate_json(body)
    except ValidationError as error:
        raise invalid(error) from None
    except RecursionError:
        raise InvalidRequest("the body's objects and lists are nested too deeply") from None


async def body_of(request: Request) -> bytes:
    """All bytes. Raises BodyTooLarge for one that is too large, after having read it.

    A client that still writes would not read the reply, so the rest is taken in and forgotten, up to a point.
    """
    body, length = bytearray(), 0
    try:
        async for chunk in request.stream():
            length += len(chunk)
            if length <= _MOST_BYTES:
                body += chunk
            elif length > _MOST_DISCARDED:
                break
    except ClientDisconnect:
        raise ClientGone from None
    if length > _MOST_BYTES:
        raise BodyTooLarge(f"the body is larger than {_MOST_BYTES // 2**20} MiB")
    return bytes(body)


def _request_id(scope: Scope) -> str:
    given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
    printable = bytes(byte for byte in given if 0x20 <= byte < 0x7F)[:_ID_LENGTH].decode("ascii").strip()
    return printable or uuid4().hex
