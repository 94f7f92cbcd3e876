"""Answers as server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from ghostkv.errors import GhostError
from ghostkv.server.answers import Answers
from ghostkv.server.envelope import ChoiceWriter, Envelope, Json, counts, extension, finish_reason, prompt_tokens
from ghostkv.server.errors import error_body
from ghostkv.server.schema import StreamOptions
from ghostkv.session.turn import Event, Finished, Output, Turn

_REFUSAL_S = 1.0
"""A refusal comes within an engine step; a request that says nothing for so long is in line, and its stream begins."""
_DONE = "data: [DONE]\n\n"


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


async def respond(
    envelope: Envelope, turns: Sequence[Turn], writers: Sequence[ChoiceWriter], options: StreamOptions
) -> EventStream:
    """Start the answers. Raises a refusal as an error, so that it is answered with its own status."""
    answers = Answers(envelope.worker, turns)
    try:
        await answers.settle(_REFUSAL_S)
    except BaseException:
        answers.close()
        raise
    prompt = prompt_tokens(envelope.worker, turns, envelope.per_prompt) if options.continuous_usage_stats else 0
    chunks = _Chunks(envelope, writers, turns[0].residency, options, prompt)
    return EventStream(_events(chunks, answers), answers)


class _Chunks:
    """The objects of a stream, in order."""

    def __init__(
        self,
        envelope: Envelope,
        writers: Sequence[ChoiceWriter],
        residency: str,
        options: StreamOptions,
        prompt: int,
    ) -> None:
        self._envelope = envelope
        self._writers = writers
        self._residency = residency
        self._options = options
        self._prompt = prompt  # tokens, for running usage
        self._generated = 0
        self._ends: dict[int, Finished] = {}

    def opening(self) -> list[Json]:
        return [self._chunk(choice) for writer in self._writers if (choice := writer.opening()) is not None]

    def of(self, index: int, event: Event) -> list[Json]:
        writer = self._writers[index]
        if isinstance(event, Output):
            self._generated += len(event.tokens)
            choice = writer.piece(event)
            return [] if choice is None else [self._chunk(choice)]
        if isinstance(event, Finished):
            self._ends[index] = event
            last = writer.closing(finish_reason(event.reason))
            return [self._chunk(last, ghostkv=extension([event], self._residency))]
        return []

    def closing(self) -> list[Json]:
        if not self._options.include_usage:
            return []
        usage = self._envelope.usage([self._ends[index] for index in range(len(self._writers))])
        return [self._envelope.chunk([], usage)]

    def _chunk(self, choice: Json, **more: object) -> Json:
        running = counts(self._prompt, self._generated) if self._options.continuous_usage_stats else None
        return self._envelope.chunk([choice], running, **more)


async def _events(chunks: _Chunks, answers: Answers) -> AsyncGenerator[str]:
    for chunk in chunks.opening():
        yield _event(chunk)
    try:
        async for index, event in answers:
            for chunk in chunks.of(index, event):
                yield _event(chunk)
        for chunk in chunks.closing():
            yield _event(chunk)
    except GhostError as error:
        yield _event(error_body(error))
    yield _DONE


def _event(body: Json) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(',', ':'))}\n\n"
