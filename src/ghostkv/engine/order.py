"""Who comes first: decodes before prefill, and the waiting line in order of arrival."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from ghostkv.engine.sequence import Sequence
from ghostkv.request import SegmentRequest


def by_phase(running: Iterable[Sequence]) -> tuple[list[Sequence], list[Sequence]]:
    """(decoding, prefilling), each in order of admission."""
    decoding: list[Sequence] = []
    prefilling: list[Sequence] = []
    for sequence in running:
        (decoding if sequence.decoding else prefilling).append(sequence)
    return decoding, prefilling


@dataclass(slots=True)
class Waiting:
    """A request in line."""

    request: SegmentRequest
    since: float  # seconds, the engine's clock
    short: bool = False  # it was first in line and blocks were missing


class Line:
    """The requests that wait; next segments of answers that have begun come before those that have not.

    Only its head may be admitted, so a large request is not overtaken for ever.
    """

    def __init__(self) -> None:
        self._arriving: OrderedDict[str, Waiting] = OrderedDict()
        self._resuming: OrderedDict[str, Waiting] = OrderedDict()

    def __len__(self) -> int:
        return len(self._arriving) + len(self._resuming)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._arriving or request_id in self._resuming

    @property
    def arriving(self) -> int:
        """Requests of answers that have not begun."""
        return len(self._arriving)

    @property
    def head(self) -> Waiting | None:
        """Who may be admitted next."""
        return next(iter((self._resuming or self._arriving).values()), None)

    def add(self, request: SegmentRequest, now: float, *, begun: bool) -> None:
        """To the end of the line, or of its part whose answers have begun."""
        (self._resuming if begun else self._arriving)[request.id] = Waiting(request, now)

    def pop(self, request_id: str) -> Waiting | None:
        """Take a request out; None for an unknown id."""
        return self._arriving.pop(request_id, None) or self._resuming.pop(request_id, None)
