"""What happens to every request before its route: an id, a body of bounded size, a schema."""

from __future__ import annotations

from typing import TypeVar
from uuid import uuid4

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ghostkv.errors import InvalidRequest
from ghostkv.server.answers import ClientGone
from ghostkv.server.errors import invalid

_MOST_BYTES = 16 * 2**20
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


async def parse(request: Request, schema: type[S]) -> S:
    """The request's body as `schema`, whatever its content type says. Raises InvalidRequest."""
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > _MOST_BYTES:
                raise InvalidRequest(f"the body is larger than {_MOST_BYTES // 2**20} MiB")
    except ClientDisconnect:
        raise ClientGone from None
    try:
        return schema.model_validate_json(bytes(body))
    except ValidationError as error:
        raise invalid(error) from None


def _request_id(scope: Scope) -> str:
    given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
    printable = bytes(byte for byte in given if 0x20 <= byte < 0x7F)[:_ID_LENGTH].decode("ascii").strip()
    return printable or uuid4().hex
