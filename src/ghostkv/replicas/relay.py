"""What clients of several replicas talk to: each request goes to one of them, and to another where that one dies.

A request of a session may be sent again whole, since its session knows it by its ticket: another replica takes the
session over from the store and gives the same reply. What the client has of it already is left out, and held against
what it was: the client sees a pause. Without a session a request is sent again as long as nothing was said.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import aclosing
from typing import Any
from uuid import uuid4

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from ghostkv.errors import Draining, EngineFault, GhostError, Interrupted, ReplicaLost, SessionElsewhere, Unsupported
from ghostkv.replicas.asked import Asked, Message, ReplicaGone, Replicas
from ghostkv.replicas.said import Said
from ghostkv.server.answers import ClientGone, while_listening
from ghostkv.server.envelope import Json
from ghostkv.server.errors import error_body, headers_of
from ghostkv.server.intake import body_of
from ghostkv.server.once import HEADER

_log = logging.getLogger(__name__)
_ANOTHERS: dict[str, type[GhostError]] = {kind.code: kind for kind in (Draining, EngineFault, SessionElsewhere)}
"""What one replica says and another may not."""
_REFUSED = frozenset(kind.http_status for kind in _ANOTHERS.values())
_ANSWERS = frozenset({"/v1/chat/completions", "/v1/completions"})  # that a session may have
_RESPONSES = "/v1/responses"
_STATELESS = _ANSWERS | {_RESPONSES, "/tokenize", "/detokenize"}  # POSTs that leave nothing behind, a session aside
_SESSIONS = "/v1/sessions/"
_SENT = ("type", "http_version", "method", "scheme", "path", "raw_path", "query_string", "root_path", "headers")
_LEAST_PAUSE_S, _MOST_PAUSE_S, _DOUBLINGS = 0.05, 0.5, 4  # between two tries
_KEEP_ALIVE = b": keep-alive\n\n"
_SHOWN = 500  # bytes of a refusal


class Relay:
    """An ASGI application."""

    def __init__(self, replicas: Replicas, patience_s: float, keep_alive_s: float) -> None:
        """`patience_s`: for so long a request that its replica does not answer is sent to others."""
        self._replicas = replicas
        self._patience_s = patience_s
        self._keep_alive_s = keep_alive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Relay one request."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] != "http":
            await receive()
            await send({"type": "websocket.close", "code": 1003, "reason": "there are no websockets here"})
            return
        try:
            body = await body_of(Request(scope, receive))
            one = _One(self._replicas, scope, body, send, self._keep_alive_s)
            await while_listening(receive, one.answered(self._patience_s))
        except ClientGone:
            return
        except GhostError as error:
            await JSONResponse(error_body(error), error.http_status, headers_of(error))(scope, receive, send)


class _Again(Exception):
    """Another replica is to be asked."""

    def __init__(self, error: GhostError) -> None:
        super().__init__(error.message)
        self.error = error


class _One:
    """One request, until its reply is complete."""

    def __init__(self, replicas: Replicas, scope: Scope, body: bytes, send: Send, keep_alive_s: float) -> None:
        """Raises Unsupported for what one replica alone would know."""
        path, headers = scope["path"], Headers(scope=scope)
        asked = _object(body) if scope["method"] == "POST" else {}
        if path.startswith(_RESPONSES) and (path != _RESPONSES or asked.get("previous_response_id") is not None):
            raise Unsupported(
                "each replica stores responses by itself, so none can be gone on with or asked for: use a session",
                param="previous_response_id",
            )
        session = _session_of(path, asked)
        self._ticket = uuid4().hex
        self._route = session or headers.get(HEADER) or self._ticket
        self._resumes = scope["method"] in ("GET", "HEAD") or (session is not None and path in _ANSWERS)
        self._repeats = self._resumes or path in _STATELESS
        self._replicas = replicas
        self._scope = {name: scope[name] for name in _SENT if name in scope}
        self._body = body
        self._send = send
        self._keep_alive_s = keep_alive_s
        self._gone: list[str] = []
        self._said = Said()
        self._plain = False  # the client has the head of a reply that is no stream
        self._heard = 0.0  # when a replica was last at work on it, be it that it computed again what the client has
        self._told = 0.0  # when the client was last sent anything

    async def answered(self, patience_s: float) -> None:
        """Send the reply. Raises GhostError where nothing was sent."""
        loop = asyncio.get_running_loop()
        tries, frames = 0, 0
        self._heard = loop.time()
        while True:
            try:
                await self._try(f"{self._route} {tries}" if tries else self._route)
                return
            except _Again as again:
                error = again.error
            except GhostError as failure:
                await self._failed(failure)
                return
            if self._said.frames > frames:  # it got further, so this is another misfortune
                tries, frames = 0, self._said.frames
            if loop.time() >= self._heard + patience_s:
                await self._failed(error)
                return
            if not tries:
                fields = {"path": self._scope["path"], "frames": frames, "why": error.message}
                _log.info("another replica is asked", extra={"fields": fields})
            await asyncio.sleep(min(_MOST_PAUSE_S, _LEAST_PAUSE_S * 2 ** min(tries, _DOUBLINGS)))
            tries += 1
            await self._keep_alive()

    async def _try(self, route: str) -> None:
        server = ""
        try:
            asked = Asked(self._scope, self._body, self._ticket, tuple(self._gone))
            async with aclosing(self._replicas.ask(asked, route)) as replies:
                self._said.again()
                start: Message | None = None
                async for each in replies:
                    if isinstance(each, str):
                        server = each
                        continue
                    for message in each:
                        if message["type"] == "http.response.start":
                            start = message
                        elif message["type"] == "http.response.body":
                            await self._passed(
                                start, bytes(message.get("body", b"")), more=message.get("more_body", False)
                            )
                            start = None
        except ReplicaGone:
            if server and server not in self._gone:
                self._gone.append(server)
            error = ReplicaLost("the replica that was answering is gone, and what it had not said with it")
            if self._plain or not (self._resumes or (self._repeats and not self._said.begun) or not server):
                raise error from None
            raise _Again(error) from None

    async def _passed(self, start: Message | None, body: bytes, *, more: bool) -> None:
        """Pass on a piece of the body, behind the head where it is the first."""
        if start is not None and not _streams(start):
            if start["status"] in _REFUSED and (error := _error_of(_object(body).get("error"))) is not None:
                raise _Again(error)
            if self._said.begun:  # a stream was promised
                raise Interrupted(f"the stream cannot go on: {body[:_SHOWN].decode(errors='replace')}")
            self._plain = True
            await self._send(dict(start))
        if self._plain:
            await self._send({"type": "http.response.body", "body": body, "more_body": more})
            return
        if start is not None and not self._said.begun:
            self._said.begun, self._told = True, asyncio.get_running_loop().time()
            await self._send(dict(start))
        new, said = self._said.new(body)
        error = _error_of(said) if self._resumes else None
        if said is not None and error is None:
            new += _frame({"error": said})
        if error is None:
            self._heard = asyncio.get_running_loop().time()
        if new or not (more or error):
            await self._piece(new, more=more or error is not None)
        else:
            await self._keep_alive()  # what the client has already is no sign to it
        if error is not None:
            raise _Again(error)

    async def _failed(self, error: GhostError) -> None:
        if self._plain:
            raise RuntimeError(error.message)  # what the client has cannot be made whole: its connection is cut
        if not self._said.begun:
            raise error
        await self._piece(_frame(error_body(error)) + b"data: [DONE]\n\n", more=False)

    async def _keep_alive(self) -> None:
        """Give a stream a sign if it has had none for a while."""
        if self._said.begun and asyncio.get_running_loop().time() - self._told >= self._keep_alive_s:
            await self._piece(_KEEP_ALIVE)

    async def _piece(self, body: bytes, *, more: bool = True) -> None:
        self._told = asyncio.get_running_loop().time()
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


def _streams(start: Message) -> bool:
    kind = next((value for name, value in start["headers"] if name == b"content-type"), b"")
    return start["status"] == 200 and kind.startswith(b"text/event-stream")


def _error_of(said: Any) -> GhostError | None:
    """What another replica may not say; None for what any would."""
    kind = _ANOTHERS.get(str(said.get("code"))) if isinstance(said, dict) else None
    return None if kind is None else kind(str(said.get("message")))


def _frame(body: Json) -> bytes:
    return f"data: {json.dumps(body, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


def _object(body: bytes) -> Json:
    """The JSON object that a body is; what is none is refused, or was said, by a replica."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _session_of(path: str, asked: Json) -> str | None:
    if path.startswith(_SESSIONS):
        return path.removeprefix(_SESSIONS).partition("/")[0]
    given = asked.get("ghostkv") if path in _ANSWERS else asked if path == _SESSIONS[:-1] else None
    found = given.get("session" if path in _ANSWERS else "id") if isinstance(given, dict) else None
    return found if isinstance(found, str) and found else None


async def _live(receive: Receive, send: Send) -> None:
    """Nothing is to be started or ended here."""
    for event in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{event}.complete"})
