"""Errors as clients see them: one JSON shape, from one place."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ghostkv.errors import BodyTooLarge, DeadlineExceeded, Draining, GhostError, InvalidRequest, Overloaded, RateLimited

_log = logging.getLogger(__name__)
_HTTP_CODES = {404: "not_found", 405: "method_not_allowed"}


def error_body(error: GhostError) -> dict[str, Any]:
    """The error object, as it stands in a reply or in a stream."""
    return _body(error.http_status, error.message, error.param, error.code)


def unexpected(error: Exception) -> GhostError:
    """What clients are told of a bug: its kind, and where to look."""
    return GhostError(f"an unexpected {type(error).__name__}; see the server's log")


def headers_of(error: GhostError) -> dict[str, str]:
    """Headers of a reply with this error: when to send the request again, or that this would be of no use.

    After a body that is too large the connection ends, since more of it may be on its way.
    """
    if isinstance(error, Overloaded | RateLimited | Draining):
        return {"retry-after": str(error.retry_after)}
    if isinstance(error, BodyTooLarge):
        return {"connection": "close"}
    return {"x-should-retry": "false"} if isinstance(error, DeadlineExceeded) else {}


def invalid(error: ValidationError) -> InvalidRequest:
    """The first thing that is wrong. `param` is a field that the request could name, the message says where exactly."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = [part for part in first["loc"] if part != "[key]"]
    if not where:
        return InvalidRequest(f"the body is not a valid request: {first['msg']}")
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in where).lstrip(".")
    said = "unknown field" if first["type"] == "extra_forbidden" else first["msg"]
    inside_list = any(isinstance(part, int) for part in where)
    return InvalidRequest(f"{path}: {said}", param=str(where[0]) if inside_list else path)


def install(app: FastAPI) -> None:
    """Answer every error of `app` in that shape."""
    app.add_exception_handler(GhostError, _ghost_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_middleware(Unexpected)


class Unexpected:
    """ASGI middleware: a bug is a 500 whose traceback goes to the log and not to the client.

    Starlette's own handler answers as well, but the connection is then closed under the client's next request.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on; a reply that has begun can only be cut off."""
        begun = False

        async def send_noting(message: Message) -> None:
            nonlocal begun
            begun = begun or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, send_noting)
        except Exception as error:
            if begun:
                raise
            _log.exception("%s %r failed", scope.get("method"), scope.get("path"))
            scope.setdefault("state", {})["error_code"] = GhostError.code
            await JSONResponse(error_body(unexpected(error)), 500)(scope, receive, send)


async def _ghost_error(request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, GhostError):
        raise error
    request.state.error_code = error.code  # for metrics and log
    return JSONResponse(error_body(error), error.http_status, headers_of(error))


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, HTTPException):
        raise error
    code = _HTTP_CODES.get(error.status_code, "http_error")
    request.state.error_code = code
    message = f"{request.method} {request.url.path}: {error.detail}"
    return JSONResponse(_body(error.status_code, message, None, code), error.status_code, error.headers)


def _body(status: int, message: str, param: str | None, code: str) -> dict[str, Any]:
    kind = "server_error" if status >= 500 else "rate_limit_error" if status == 429 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
