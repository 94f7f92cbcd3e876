"""`Idempotency-Key`: a request that is sent again is not computed again.

The same key and body of one tenant gets the recorded reply, or joins it while it is under way, a stream's bytes from
the first on. The same key with another body is refused. What failed for a passing reason (408, 409, 422, 429, 5xx, a
stream that ended with an error) is not recorded, so that it can be tried again. Replies are held in memory and end with
the process; in a session the answer itself has the key (`once_of`), so that there it is found again after a restart.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ghostkv.errors import GhostError, InvalidRequest, KeyReused
from ghostkv.server.access import tenant_of
from ghostkv.server.errors import error_body, headers_of
from ghostkv.server.intake import body_of
from ghostkv.session.record import SessionRecord, TurnRecord

HEADER = "idempotency-key"
_STATE = "once"
_PATHS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses"})
_MOST_KEY = 255  # characters
_PASSING = frozenset({408, 409, 422, 429})  # and all from 500 on
_ERROR = b'data: {"error"'  # how a stream says that it broke off


@dataclass(frozen=True, slots=True)
class OnceLimits:
    """What is held, of all tenants together."""

    count: int = 10_000
    bytes: int = 64 * 2**20
    seconds: float = 3600.0
    grace_s: float = 60.0  # that a reply goes on which nobody reads


@dataclass(slots=True, eq=False)
class _Reply:
    """One reply, complete or not."""

    digest: bytes  # of path and body
    begun: float
    messages: list[Message] = field(default_factory=list)
    size: int = 0
    readers: int = 0
    done: bool = False
    failure: BaseException | None = None
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    abandoned: asyncio.Event = field(default_factory=asyncio.Event)
    timer: asyncio.TimerHandle | None = None

    def notify(self) -> None:
        """Something came."""
        moved, self.moved = self.moved, asyncio.Event()
        moved.set()

    @property
    def passing(self) -> bool:
        """Whether it failed in a way that another try may not."""
        status = self.messages[0].get("status", 500) if self.messages else 500
        last = b"".join(message.get("body", b"") for message in self.messages[-3:])
        return self.failure is not None or status >= 500 or status in _PASSING or _ERROR in last


class Once:
    """ASGI middleware. Put it inside the check of keys, since a key is its tenant's own."""

    def __init__(
        self, app: ASGIApp, limits: OnceLimits | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._app = app
        self._limits = limits or OnceLimits()
        self._clock = clock
        self._replies: OrderedDict[tuple[str, str], _Reply] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or reply as before."""
        key = Headers(scope=scope).get(HEADER) if scope["type"] == "http" else None
        if key is None or scope["method"] != "POST" or scope["path"] not in _PATHS:
            await self._app(scope, receive, send)
            return
        try:
            reply, again = await self._reply(Request(scope, receive), key)
        except GhostError as error:
            scope.setdefault("state", {})["error_code"] = error.code
            await JSONResponse(error_body(error), error.http_status, headers_of(error))(scope, receive, send)
            return
        await self._read(reply, receive, send, again=again)

    async def _reply(self, request: Request, key: str) -> tuple[_Reply, bool]:
        """The reply to read, and whether it is another request's. Raises InvalidRequest, KeyReused."""
        if not (0 < len(key) <= _MOST_KEY and key.isascii() and key.isprintable()):
            raise InvalidRequest(f"{HEADER} must have 1 to {_MOST_KEY} printable ASCII characters", param=HEADER)
        body, name = await body_of(request), (tenant_of(request).name, key)
        digest = _digest(request.url.path, body)
        request.scope["state"][_STATE] = _once(key, digest)
        self._forget()
        known = self._replies.get(name)
        if known is not None:
            if known.digest != digest:
                raise KeyReused(f"{HEADER} was used for another request: send another key", param=HEADER)
            return known, True
        reply = self._replies[name] = _Reply(digest, self._clock())
        # A task of its own: whoever asked first may leave, and ask again.
        task = asyncio.create_task(self._run(name, reply, request.scope, body), name="once")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return reply, False

    async def _run(self, name: tuple[str, str], reply: _Reply, scope: Scope, body: bytes) -> None:
        sent = False

        async def receive() -> Message:
            nonlocal sent
            if not sent:
                sent = True
                return {"type": "http.request", "body": body, "more_body": False}
            await reply.abandoned.wait()
            return {"type": "http.disconnect"}

        async def send(message: MutableMapping[str, Any]) -> None:
            reply.messages.append(message)
            reply.size += len(message.get("body", b""))
            reply.notify()

        try:
            await self._app(scope, receive, send)
        except Exception as error:  # noqa: BLE001 - whoever reads it raises it
            reply.failure = error
        finally:
            reply.done = True
            if (reply.passing or reply.abandoned.is_set()) and self._replies.get(name) is reply:
                del self._replies[name]
            reply.notify()

    async def _read(self, reply: _Reply, receive: Receive, send: Send, *, again: bool) -> None:
        """All of it, to one client, until that leaves."""
        self._enter(reply)
        gone = asyncio.create_task(_gone(receive))
        try:
            at = 0
            while True:
                while at < len(reply.messages):
                    await send(_marked(reply.messages[at]) if again and at == 0 else dict(reply.messages[at]))
                    at += 1
                if reply.done:
                    break
                moved = asyncio.create_task(reply.moved.wait())
                await asyncio.wait({moved, gone}, return_when=asyncio.FIRST_COMPLETED)
                moved.cancel()
                if gone.done():
                    return
            if reply.failure is not None:
                raise reply.failure
        finally:
            gone.cancel()
            self._leave(reply)

    def _enter(self, reply: _Reply) -> None:
        reply.readers += 1
        if reply.timer is not None:
            reply.timer.cancel()
            reply.timer = None

    def _leave(self, reply: _Reply) -> None:
        reply.readers -= 1
        if not (reply.readers or reply.done):
            loop = asyncio.get_running_loop()
            reply.timer = loop.call_later(self._limits.grace_s, reply.abandoned.set)

    def _forget(self) -> None:
        """What is too old, then the oldest while there is too much; none that is under way."""
        limits, oldest = self._limits, self._clock() - self._limits.seconds
        size = sum(reply.size for reply in self._replies.values())
        for name, reply in list(self._replies.items()):
            if reply.begun > oldest and len(self._replies) < limits.count and size <= limits.bytes:
                return
            if reply.done:
                size -= reply.size
                del self._replies[name]


def known_by(scope: Scope, key: str, body: bytes) -> None:
    """Have a session know this request again by `key`, though no reply to it is held here."""
    scope.setdefault("state", {})[_STATE] = _once(key, _digest(scope["path"], body))


def once_of(request: Request) -> str:
    """Digests of a request's key and body, with a colon between; "" without a key."""
    return str(request.scope.get("state", {}).get(_STATE, ""))


def answered(record: SessionRecord, once: str) -> TurnRecord | None:
    """The answer that a session has given to a request. Raises KeyReused for the key of another one."""
    key = once.partition(":")[0]
    for turn in reversed(record.turns if once else ()):
        if turn.once == once:
            return turn
        if turn.once.startswith(f"{key}:"):
            raise KeyReused(f"{HEADER} was used for another request: send another key", param=HEADER)
    return None


def _digest(path: str, body: bytes) -> bytes:
    return hashlib.sha256(path.encode() + b"\n" + body).digest()


def _once(key: str, digest: bytes) -> str:
    return f"{hashlib.sha256(key.encode()).hexdigest()}:{digest.hex()}"


def _marked(start: Message) -> Message:
    marked = {**start, "headers": list(start["headers"])}
    MutableHeaders(raw=marked["headers"])["idempotent-replayed"] = "true"
    return marked


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
