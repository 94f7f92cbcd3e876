"""Answers as server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from ghostkv.errors import GhostError
from ghostkv.server.answers import Answers
from ghostkv.server.envelope import Json
from ghostkv.server.serving import Serving
from ghostkv.session.turn import Event, Turn

_REFUSAL_S = 1.0
"""A refusal comes within an engine step; a request that says nothing for so long is in line, and its stream begins."""


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


class EventStream(StreamingResponse):
    """A stream of events that cancels its answers when it ends, however it ends."""

    media_type = "text/event-stream"

    def __init__(self, content: AsyncGenerator[str, None], answers: Answers) -> None:
        super().__init__(content, headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send; a client that goes away cancels this."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answers.close()


async def respond(serving: Serving, turns: Sequence[Turn], score: Callable[[], Score]) -> EventStream:
    """Start the answers. Raises a refusal as an error, so that it is answered with its own status."""
    answers = Answers(serving, turns)
    try:
        await answers.settle(_REFUSAL_S)
    except BaseException:
        answers.close()
        raise
    return EventStream(_frames(score(), answers), answers)


async def _frames(score: Score, answers: Answers) -> AsyncGenerator[str]:
    for frame in score.opening():
        yield frame.text
    try:
        async for index, event in answers:
            for frame in score.of(index, event):
                yield frame.text
        for frame in score.closing():
            yield frame.text
    except GhostError as error:
        for frame in score.failed(error):
            yield frame.text
    yield score.last
