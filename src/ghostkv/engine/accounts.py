"""What tenants and their programs were served: virtual token counters (VTC, Sheng et al., OSDI 2024), in two levels.

A program is what many calls belong to: an agent, or a session. Its service is that of all its calls so far, by which
Autellix (Luo et al., 2025) orders programs; between two calls it keeps what it was charged. Nobody is preempted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice

from ghostkv.engine.queue import Queue, Waiting

REMEMBERED_S = 600.0  # who asked within so long may come back


@dataclass(slots=True)
class Service:
    """What somebody was charged, and what of theirs runs."""

    served: float = 0.0  # charged so far
    running: int = 0  # requests
    seen: float = 0.0  # when they last asked


@dataclass(slots=True)
class Program(Service):
    """One tenant's agent or session, or all calls that name none."""

    arriving: Queue = field(default_factory=Queue)
    resuming: Queue = field(default_factory=Queue)  # answers that have begun

    @property
    def waits(self) -> bool:
        """Whether a request of it is in line."""
        return bool(self.arriving) or bool(self.resuming)

    @property
    def oldest(self) -> float:
        """Since when the one waits that waits longest; there must be one."""
        return min(queue.oldest().since for queue in (self.arriving, self.resuming) if queue)

    def first(self, now: float, max_wait_s: float) -> Waiting:
        """Whoever has waited too long, longest first; then next segments of answers that have begun; then the rest."""
        queues = [queue for queue in (self.resuming, self.arriving) if queue]
        longest = min((queue.oldest() for queue in queues), key=lambda waiting: waiting.since)
        return longest if now - longest.since >= max_wait_s else queues[0].first()

    def turns(self, count: int) -> Iterator[Waiting]:
        """The first `count` in line, about."""
        return islice(chain(self.resuming, self.arriving), count)


@dataclass(slots=True)
class Account(Service):
    """One tenant's."""

    programs: dict[str, Program] = field(default_factory=dict)  # known ones, who asked last at the end
    busy: dict[str, Program] = field(default_factory=dict)  # of them, those with requests that run or wait
    level: float = 0.0  # that its least served busy program had last

    @property
    def active(self) -> bool:
        """Whether anything of it runs or waits."""
        return bool(self.busy)

    @property
    def waits(self) -> bool:
        """Whether a request of it is in line."""
        return any(program.waits for program in self.busy.values())

    @property
    def waiting(self) -> list[Program]:
        """Programs with requests in line."""
        return [program for program in self.busy.values() if program.waits]

    @property
    def oldest(self) -> float:
        """Since when the one waits that waits longest; there must be one."""
        return min(program.oldest for program in self.waiting)

    def next(self) -> Program:
        """Whose turn it is inside the tenant: who was served least. There must be one."""
        return min(self.waiting, key=lambda program: (program.served, program.oldest))

    def asks(self, name: str, now: float, *, begun: bool) -> Program:
        """The program of that name: one that was away is lifted to the least served that is busy.

        Between two segments of an answer nobody was away.
        """
        program = self.busy.get(name)
        if program is None:
            self.level = max(self.level, min((other.served for other in self.busy.values()), default=0.0))
            self._forget(now)
            program = self.programs.pop(name, None) or Program()
            if not begun or not program.served:
                program.served = max(program.served, self.level)
            self.busy[name] = program
        else:
            del self.programs[name]
        self.programs[name] = program
        program.seen = self.seen = now
        return program

    def begins(self, name: str) -> Program:
        """A request of that program was taken out of the line and runs."""
        program = self.busy[name] = self.programs[name]
        return program

    def rests(self, name: str) -> None:
        """A request of that program runs or waits no more; perhaps it was its last."""
        program = self.busy[name]
        if not (program.running or program.waits):
            del self.busy[name]

    def _forget(self, now: float) -> None:
        """Programs that were away for long. Their names are free, so nothing is to be had by being forgotten."""
        for name, program in list(self.programs.items()):
            if now - program.seen < REMEMBERED_S:
                return
            if name not in self.busy:
                del self.programs[name]
