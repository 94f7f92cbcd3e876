"""Tool calls that were given out and whose results nobody has brought: said before anything else of a reply."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ghostkv.errors import GhostError
from ghostkv.server.envelope import Json
from ghostkv.server.stream import Frame, Score
from ghostkv.session.calls import CallRecord
from ghostkv.session.turn import Event


def named(calls: Iterable[CallRecord]) -> list[Json]:
    """Which they are."""
    return [{"id": call.id, "name": call.name} for call in calls]


def reporting(body: Json, unsettled: Sequence[CallRecord]) -> Json:
    """A reply or a frame that says of them in its `ghostkv` object; as it was where there are none."""
    if not unsettled:
        return body
    return body | {"ghostkv": body.get("ghostkv", {}) | {"unsettled": named(unsettled)}}


class Reported:
    """A score whose first frame says which calls are not settled."""

    def __init__(self, score: Score, unsettled: Sequence[CallRecord]) -> None:
        self._score = score
        self._unsettled = unsettled

    @property
    def last(self) -> str:
        """See Score."""
        return self._score.last

    def opening(self) -> Iterator[Frame]:
        """See Score."""
        return self._said(self._score.opening())

    def of(self, index: int, event: Event) -> Iterator[Frame]:
        """See Score."""
        return self._said(self._score.of(index, event))

    def closing(self) -> Iterator[Frame]:
        """See Score."""
        return self._said(self._score.closing())

    def failed(self, error: GhostError) -> Iterator[Frame]:
        """See Score."""
        return self._said(self._score.failed(error))

    def _said(self, frames: Iterable[Frame]) -> Iterator[Frame]:
        for frame in frames:
            unsettled, self._unsettled = self._unsettled, ()
            yield replace(frame, body=reporting(frame.body, unsettled))
