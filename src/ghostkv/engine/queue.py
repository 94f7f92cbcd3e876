"""One line of requests: whoever has a deadline first, the earliest before the others; then in order of arrival."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from ghostkv.request import SegmentRequest


@dataclass(slots=True)
class Waiting:
    """A request in line."""

    request: SegmentRequest
    since: float  # seconds, the engine's clock
    deadline: float = float("inf")  # of its answer; likewise
    short: bool = False  # it was first in line and blocks were missing

    @classmethod
    def of(cls, request: SegmentRequest, now: float) -> Waiting:
        """A request that comes now."""
        return cls(request, now) if request.deadline_s is None else cls(request, now, now + request.deadline_s)


class Queue:
    """Of requests that nothing but deadline and arrival tells apart."""

    __slots__ = ("_count", "_due", "_waiting")

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, Waiting] = OrderedDict()
        self._due: list[tuple[float, int, Waiting]] = []  # those with a deadline; also some that are gone
        self._count = count()

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Waiting]:
        """In order of arrival."""
        return iter(self._waiting.values())

    def add(self, waiting: Waiting) -> None:
        """To the end, or to where its deadline belongs."""
        self._waiting[waiting.request.id] = waiting
        if waiting.deadline < float("inf"):
            heapq.heappush(self._due, (waiting.deadline, next(self._count), waiting))

    def pop(self, request_id: str) -> Waiting | None:
        """Take one out; None for an unknown id."""
        return self._waiting.pop(request_id, None)

    def oldest(self) -> Waiting:
        """Who waits longest; there must be one."""
        return next(iter(self._waiting.values()))

    def first(self) -> Waiting:
        """Whose turn it is; there must be one."""
        while self._due:
            waiting = self._due[0][2]
            if self._waiting.get(waiting.request.id) is waiting:
                return waiting
            heapq.heappop(self._due)
        return self.oldest()

    def before(self, deadline: float) -> list[Waiting]:
        """Who would have their turn before one that comes now with that deadline."""
        return [waiting for waiting in self._waiting.values() if waiting.deadline <= deadline]
