"""A stream of chunks as chat completions and completions write it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ghostkv.errors import GhostError
from ghostkv.server.envelope import ChoiceWriter, Envelope, Json, counts, extension, finish_reason, prompt_tokens
from ghostkv.server.errors import error_body
from ghostkv.server.schema import StreamOptions
from ghostkv.server.stream import Frame
from ghostkv.session.turn import Event, Finished, Output, Turn


class Chunks:
    """`stream.Score` of both endpoints: chunks, a usage chunk if asked for, then `[DONE]`."""

    last = "data: [DONE]\n\n"

    def __init__(
        self, envelope: Envelope, turns: Sequence[Turn], writers: Sequence[ChoiceWriter], options: StreamOptions
    ) -> None:
        self._envelope = envelope
        self._writers = writers
        self._residency = turns[0].residency
        self._options = options
        running = options.continuous_usage_stats
        self._prompt = prompt_tokens(envelope.worker, turns, envelope.per_prompt) if running else 0
        self._generated = 0
        self._ends: dict[int, Finished] = {}

    def opening(self) -> Iterator[Frame]:
        """What comes before all events."""
        return (self._frame(choice) for writer in self._writers if (choice := writer.opening()) is not None)

    def of(self, index: int, event: Event) -> Iterator[Frame]:
        """What an event of answer `index` says."""
        writer = self._writers[index]
        if isinstance(event, Output):
            self._generated += len(event.tokens)
            choice = writer.piece(event)
            if choice is not None:
                yield self._frame(choice)
        elif isinstance(event, Finished):
            self._ends[index] = event
            last = writer.closing(finish_reason(event.reason))
            yield self._frame(last, ghostkv=extension([event], self._residency))

    def closing(self) -> Iterator[Frame]:
        """What comes after the end of all answers."""
        if self._options.include_usage:
            usage = self._envelope.usage([self._ends[index] for index in range(len(self._writers))])
            yield Frame(self._envelope.chunk([], usage))

    def failed(self, error: GhostError) -> Iterator[Frame]:
        """What comes instead."""
        yield Frame(error_body(error))

    def _frame(self, choice: Json, **more: object) -> Frame:
        running = counts(self._prompt, self._generated) if self._options.continuous_usage_stats else None
        return Frame(self._envelope.chunk([choice], running, **more))
