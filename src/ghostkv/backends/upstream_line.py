"""Who may ask the upstream now: our own line before it, and what a residency policy sees of both.

Order and fairness are the engine's (`engine.order`). What the upstream does with what it was asked is its own business:
of it only is known who has had no token yet, and those count as waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count

from ghostkv.engine.admission import Limits, check_line
from ghostkv.engine.continuation import Continuation
from ghostkv.engine.order import Line
from ghostkv.request import BoundaryMark, BoundaryView, Decision, SegmentRequest


class UpstreamLine:
    """All its methods belong to one event loop."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self.running: dict[str, SegmentRequest] = {}
        """What the upstream was asked for and has not ended, by key."""
        self._limits = limits
        self._clock = clock
        self._line = Line(limits.max_wait_s)
        self._places: dict[str, asyncio.Future[None]] = {}
        self._silent: dict[str, float] = {}  # keys of those that run without a token yet, and since when they wait
        self._turns = 0  # flushes for somebody's turn since a request last got its first token
        self._keys = count()

    @property
    def waiting(self) -> int:
        """Requests without a token yet."""
        return len(self._line) + len(self._silent)

    @asynccontextmanager
    async def place(self, request: SegmentRequest) -> AsyncGenerator[str, None]:
        """Wait for a place, have it until the end of the block; its key. Raises Overloaded where the line is full."""
        begun = request.begun or request.state.emitted > 0
        if not begun:
            check_line(self._line.arriving, self._limits)
        # Ids may come again while the last one of that id is still being taken apart.
        entry, since = replace(request, id=f"{next(self._keys)}"), self._clock()
        self._places[entry.id] = asyncio.get_running_loop().create_future()
        self._line.add(entry, since, begun=begun)
        try:
            self._admit()
            await self._places[entry.id]
            self._silent[entry.id] = since
            yield entry.id
        finally:
            del self._places[entry.id]
            self._silent.pop(entry.id, None)
            if self._line.pop(entry.id) is None:
                del self.running[entry.id]
                self._line.ended(entry)
            self._admit()

    def chose(self, key: str, tokens: int) -> None:
        """A request has so many more output tokens."""
        if self._silent.pop(key, None) is not None:
            self._turns = 0
        self._line.chose(self.running[key], tokens)

    def decide(self, key: str, continuation: Continuation, kind: str) -> BoundaryMark:
        """Ask the policy; what it would keep is flushed where the upstream's context has no room for more."""
        request, now = continuation.request, self._clock()
        waited = max(self._line.oldest(now), now - min(self._silent.values(), default=now))
        view = BoundaryView(
            kind=kind,
            resident=continuation.prompt_tokens + continuation.generated - 1,
            generated=continuation.generated,
            unreserved=request.remaining - continuation.reserved,
            free_blocks=0,  # nobody here knows
            waiting=self.waiting,
            reserved=continuation.reserved - continuation.generated,
            waited_s=waited,
            max_wait_s=self._limits.max_wait_s,
            turns=float(self._overdue(now) - self._turns),
            repeatable=request.repeatable,
            others=sum(bool(other.flushed_prompt) and not other.repeatable for other in self.running.values()),
        )
        decision, reason = request.residency.at_boundary(view), ""
        if decision is Decision.FLUSH:
            reason = "policy"
            self._turns += bool(request.flushed_prompt)
        elif (more := continuation.to_reserve(self._limits.max_context)) is None:
            decision, reason = Decision.FLUSH, "context"
        else:
            continuation.reserved += more
        return BoundaryMark(kind, decision, reason, continuation.emitted, 0.0, waited, self.waiting)

    def _overdue(self, now: float) -> int:
        """Requests that have waited too long; of our own line only its oldest is looked at."""
        late = sum(now - since >= self._limits.max_wait_s for since in self._silent.values())
        return late + (bool(self._line) and self._line.oldest(now) >= self._limits.max_wait_s)

    def _admit(self) -> None:
        now = self._clock()
        while len(self.running) < self._limits.max_sequences and (waiting := self._line.head(now)) is not None:
            entry = waiting.request
            self._line.pop(entry.id)
            self._line.started(entry, len(entry.prompt))
            self.running[entry.id] = entry
            self._places[entry.id].set_result(None)
