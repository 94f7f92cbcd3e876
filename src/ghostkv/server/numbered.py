"""Frames that say after which token of a session's output they stand, so that a stream can be taken up again there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ghostkv.errors import GhostError
from ghostkv.server.stream import Frame, Score
from ghostkv.session.turn import Event, Finished, Output


class Numbered:
    """A score whose frames have the index of their last token as id, from token `start` on.

    Its first token is number `first` of the session's output. The score sees all events, so it goes on in the middle as
    it would have; what stands wholly before `start` is left out. The end is always said. Where `start` is `first`,
    nothing is left out.
    """

    def __init__(self, score: Score, first: int, start: int) -> None:
        self._score = score
        self._at = first - 1
        self._start = start if start > first else self._at

    @property
    def last(self) -> str:
        """See Score."""
        return self._score.last

    def opening(self) -> Iterator[Frame]:
        """See Score; its id is that of the token before, if there is one, else -1."""
        return self._numbered(self._score.opening(), kept=self._at >= self._start)

    def of(self, index: int, event: Event) -> Iterator[Frame]:
        """See Score."""
        if isinstance(event, Output):
            self._at += len(event.tokens)
        return self._numbered(self._score.of(index, event), kept=self._at >= self._start or isinstance(event, Finished))

    def closing(self) -> Iterator[Frame]:
        """See Score."""
        return self._numbered(self._score.closing(), kept=True)

    def failed(self, error: GhostError) -> Iterator[Frame]:
        """See Score."""
        return self._numbered(self._score.failed(error), kept=True)

    def _numbered(self, frames: Iterable[Frame], *, kept: bool) -> Iterator[Frame]:
        made = list(frames)  # also where they are left out: making them moves the score on
        return (replace(frame, id=self._at) for frame in made) if kept else iter(())
