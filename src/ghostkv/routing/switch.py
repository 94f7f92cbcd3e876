"""Places segments among workers, and knows what it has placed where: asking workers would miss what is on its way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import Lock

from ghostkv.protocol.assign import Assignment, Resource, assign_worker
from ghostkv.routing.registry import Asked, Router


@dataclass(slots=True, eq=False)
class Ticket:
    """One placed segment; it counts from `take` to `leave`."""

    worker: int
    new: int  # tokens of its prompt that are to be computed
    unread: int = 0  # of them, those that are not yet
    taken: bool = False


class Switch:
    """One for all segments of a fleet, which may come from several event loops."""

    def __init__(self, router: Router, workers: int) -> None:
        self.router = router
        self._busy = [0] * workers
        self._unread = [0] * workers
        self._placed = 0
        self._lock = Lock()

    def place(
        self, density: float, key: bytes, resources: Sequence[Resource], workers: Sequence[int]
    ) -> tuple[Assignment, Ticket]:
        """The worker for a segment among `resources`, those of the fleet's `workers`; see `assign_worker`."""
        with self._lock:
            seen = [
                replace(resource, busy=self._busy[worker], unread=self._unread[worker])
                for resource, worker in zip(resources, workers, strict=True)
            ]
            asked = Asked(self._placed, key)
            self._placed += 1
        equal = 0

        def choose(among: Sequence[Resource]) -> int:
            nonlocal equal
            equal = len(among)
            return self.router.choose(asked, among) if equal > 1 else 0

        assignment = assign_worker(density, seen, choose)
        if equal > 1:
            reason = f"{assignment.reason}; of {equal} by {self.router.name}"
            assignment = replace(assignment, reason=reason)
        return assignment, Ticket(workers[assignment.index], resources[assignment.index].new)

    def take(self, ticket: Ticket) -> None:
        """The segment is the worker's now. Once for each ticket."""
        with self._lock:
            ticket.taken, ticket.unread = True, ticket.new
            self._busy[ticket.worker] += 1
            self._unread[ticket.worker] += ticket.new

    def read(self, ticket: Ticket) -> None:
        """Its prompt is computed; may be said more than once."""
        with self._lock:
            self._read(ticket)

    def leave(self, ticket: Ticket) -> None:
        """It ended, however that was; may be said more than once."""
        with self._lock:
            if ticket.taken:
                self._read(ticket)
                self._busy[ticket.worker] -= 1
                ticket.taken = False

    @property
    def busy(self) -> tuple[int, ...]:
        """Segments of each worker."""
        return tuple(self._busy)

    def _read(self, ticket: Ticket) -> None:
        self._unread[ticket.worker] -= ticket.unread
        ticket.unread = 0
