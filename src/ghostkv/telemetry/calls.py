"""One HTTP request and its reply, from the first byte to the last, as metrics and log see it. It holds no text.

The middleware makes the call and hands it to those who watch. What runs inside it, answers above all, finds it in
a context variable, which a task inherits from the one that starts it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ghostkv.telemetry.tally import Tally

OTHER = "other"
"""The route of a path that belongs to none."""
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_current: ContextVar[Call | None] = ContextVar("call", default=None)


@dataclass(slots=True)
class Call:
    """What is known of it so far. Seconds are the clock's; the route is its template, so that no path is a label."""

    request_id: str
    method: str
    begun: float
    route: str = OTHER
    status: int = 0  # 0: nothing was sent
    streaming: bool = False
    error: str = ""  # its code
    seconds: float = 0.0  # in all
    tallies: list[Tally] = field(default_factory=list)  # one for each answer that was asked for


class Watcher(Protocol):
    """Called on the event loop; must be quick and must not raise."""

    def begun(self, call: Call) -> None:
        """A request came; of the reply nothing is known."""
        ...

    def replied(self, call: Call) -> None:
        """Status and headers were sent."""
        ...

    def ended(self, call: Call) -> None:
        """The last byte was sent, or nobody takes it any more."""
        ...


def current() -> Call | None:
    """The call that this task runs in; None outside of all."""
    return _current.get()


class Calls:
    """ASGI middleware: tells watchers about every call. It stands inside `RequestIds` and around all else."""

    def __init__(self, app: ASGIApp, watchers: Sequence[Watcher], clock: Callable[[], float]) -> None:
        self._app = app
        self._watchers = watchers
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, and take note."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        method = scope["method"] if scope["method"] in _METHODS else OTHER
        call = Call(state.get("request_id", ""), method, self._clock())

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._replied(call, scope, message)
            await send(message)

        token = _current.set(call)
        for watcher in self._watchers:
            watcher.begun(call)
        try:
            await self._app(scope, receive, noting)
        finally:
            _current.reset(token)
            call.route = _route(scope)
            call.seconds = self._clock() - call.begun
            for watcher in self._watchers:
                watcher.ended(call)

    def _replied(self, call: Call, scope: Scope, message: Message) -> None:
        call.route, call.status = _route(scope), message["status"]
        call.error = str(scope["state"].get("error_code", ""))
        call.streaming = any(
            name.lower() == b"content-type" and value.startswith(b"text/event-stream")
            for name, value in message.get("headers", ())
        )
        for watcher in self._watchers:
            watcher.replied(call)


def _route(scope: Scope) -> str:
    path = getattr(scope.get("route"), "path", None)
    return path if isinstance(path, str) and path else OTHER
