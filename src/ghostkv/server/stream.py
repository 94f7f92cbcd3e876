"""Answers as server-sent events."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ghostkv.errors import GhostError
from ghostkv.server.answers import Answers, ClientGone, while_listening
from ghostkv.server.envelope import Json
from ghostkv.server.errors import unexpected
from ghostkv.server.serving import Serving
from ghostkv.session.turn import Event, Turn

_log = logging.getLogger(__name__)
_REFUSAL_S = 1.0
"""A full line refuses at once, anything else within an engine step; what is silent for longer is in line."""
_KEEP_ALIVE = ": keep-alive\n\n"


@dataclass(frozen=True, slots=True)
class Frame:
    """One server-sent event."""

    body: Json
    name: str = ""  # of the event, where an endpoint names them
    id: int | None = None  # where the stream can be taken up again

    @property
    def text(self) -> str:
        """As it is sent."""
        at = "" if self.id is None else f"id: {self.id}\n"
        name = f"event: {self.name}\n" if self.name else ""
        data = json.dumps(self.body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return f"{at}{name}data: {data}\n\n"


class Score(Protocol):
    """What a stream says, in one endpoint's words. It sees every event once, in order."""

    @property
    def last(self) -> str:
        """Sent after everything, also after a failure."""
        ...

    def opening(self) -> Iterable[Frame]:
        """What comes before all events."""
        ...

    def of(self, index: int, event: Event) -> Iterable[Frame]:
        """What an event of answer `index` says."""
        ...

    def closing(self) -> Iterable[Frame]:
        """What comes after the end of all answers."""
        ...

    def failed(self, error: GhostError) -> Iterable[Frame]:
        """What comes instead where they break off."""
        ...


class Source(Protocol):
    """Where a stream's events come from: running answers, or a record of them."""

    async def settle(self, seconds: float) -> None:
        """Wait for the first event, at most so long; raises a refusal."""
        ...

    def __anext__(self) -> Awaitable[tuple[int, Event]]:
        """The next event, with the index of its answer. Cancelling it loses nothing."""
        ...

    def close(self) -> None:
        """Nobody reads any more. Needs no await."""
        ...


class EventStream(Response):
    """Writes what a source gives, in a score's words, until its end or until the client goes away.

    The status waits for the first event, for as long as a refusal may take. It always ends with the score's last word,
    whatever happens. While the socket takes nothing, nothing is asked of the source.
    """

    media_type = "text/event-stream"

    def __init__(self, source: Source, score: Callable[[], Score], keep_alive_s: float) -> None:
        """`keep_alive_s`: after so long a silence a comment says that the stream lives."""
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._source = source
        self._score = score
        self._keep_alive_s = keep_alive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send. Raises a refusal before anything is sent, so that it is answered with its own status."""
        try:
            await while_listening(receive, self._source.settle(_REFUSAL_S))
            score = self._score()
            with suppress(ClientGone):
                await while_listening(receive, self._write(score, send))
        finally:
            self._source.close()

    async def _write(self, score: Score, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for text in self._texts(score):
            await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
        await send({"type": "http.response.body", "body": score.last.encode(), "more_body": False})

    async def _texts(self, score: Score) -> AsyncGenerator[str]:
        try:
            if text := _joined(score.opening()):
                yield text
            async for item in self._events():
                if text := _KEEP_ALIVE if item is None else _joined(score.of(*item)):
                    yield text
            if text := _joined(score.closing()):
                yield text
        except GhostError as error:
            yield _joined(score.failed(error))
        except Exception as error:  # noqa: BLE001 - the client is told of its end, whatever ended it
            _log.exception("a stream broke off")
            yield _joined(score.failed(unexpected(error)))

    async def _events(self) -> AsyncGenerator[tuple[int, Event] | None]:
        """The source's events, and None for each silence."""
        while True:
            try:
                async with asyncio.timeout(self._keep_alive_s) as silence:
                    event = await self._source.__anext__()
            except StopAsyncIteration:
                return
            except TimeoutError:
                if not silence.expired():
                    raise
                yield None
            else:
                yield event


async def respond(serving: Serving, turns: Sequence[Turn], score: Callable[[], Score]) -> EventStream:
    """Start the answers. Raises what `Gate.enter` does."""
    return EventStream(Answers(serving, turns), score, serving.config.keep_alive_s)


def _joined(frames: Iterable[Frame]) -> str:
    return "".join(frame.text for frame in frames)
