"""A stream of chunks as chat completions and completions write it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ghostkv.errors import GhostError
from ghostkv.server.envelope import ChoiceWriter, Envelope, Json, counts, finish_reason
from ghostkv.server.errors import error_body
from ghostkv.server.schema import StreamOptions
from ghostkv.server.stream import Frame
from ghostkv.session.turn import Event, Finished, Output


class Chunks:
    """`stream.Score` of both endpoints: chunks, a usage chunk if asked for, then `[DONE]`."""

    last = "data: [DONE]\n\n"

    def __init__(
        self,
        envelope: Envelope,
        writers: Sequence[ChoiceWriter],
        options: StreamOptions,
        residency: str,
        prompt_tokens: Callable[[], int],
    ) -> None:
        """`prompt_tokens` of all prompts, each counted once; asked for only where running usage is."""
        self._envelope = envelope
        self._writers = writers
        self._residency = residency
        self._options = options
        self._prompt = prompt_tokens() if options.continuous_usage_stats else 0
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
            for choice in writer.pieces(event):
                yield self._frame(choice)
        elif isinstance(event, Finished):
            self._ends[index] = event
            *rest, last = writer.closing(finish_reason(event.reason))
            for choice in rest:
                yield self._frame(choice)
            yield self._frame(last, ghostkv=self._envelope.extension([event], self._residency))

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
