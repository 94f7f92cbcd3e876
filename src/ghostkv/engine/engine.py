"""The engine: scheduler, runner and clock, one step at a time.

It is the whole of synchronous use (tests, simulation, benchmarks); `service` puts it on a thread of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from ghostkv.engine.clock import Clock
from ghostkv.engine.pause import PauseDecision
from ghostkv.engine.scheduler import Scheduler
from ghostkv.engine.stats import EngineStats, StepTrace
from ghostkv.errors import GhostError
from ghostkv.request import Delta, SegmentRequest
from ghostkv.step import Runner


class Engine:
    """Not thread-safe: one thread calls everything."""

    def __init__(
        self, scheduler: Scheduler, runner: Runner, clock: Clock, trace: Callable[[StepTrace], None] | None = None
    ) -> None:
        self.scheduler = scheduler
        self.stats = EngineStats()
        self._runner = runner
        self._clock = clock
        self._trace = trace

    @property
    def idle(self) -> bool:
        """Whether a step would have nothing to do."""
        return self.scheduler.idle

    def add(self, request: SegmentRequest) -> None:
        """Put a request in line; raises what `Scheduler.add` does, and then nothing was taken."""
        try:
            self.scheduler.add(request, self._clock.now())
        except GhostError:
            self.stats.refused += 1
            raise
        self.stats.added += 1

    def cancel(self, request_id: str) -> Delta | None:
        """End a request now; its last delta, or None for an unknown id."""
        delta = self.scheduler.cancel(request_id, self._clock.now())
        if delta is not None:
            self.stats.count_finish(delta)
        return delta

    def pause(self, request: SegmentRequest, ids: tuple[int, ...]) -> PauseDecision:
        """See `Scheduler.pause`."""
        return self.scheduler.pause(request, ids, self._clock.now())

    def step(self) -> list[Delta]:
        """Plan, run, commit: one forward pass and what it gave. With nothing to do, check the books instead.

        What has missed its deadline ends before it.
        """
        now = self._clock.now()
        expired = self.scheduler.expire(now)
        for delta in expired:
            self.stats.count_finish(delta)
        plan = self.scheduler.plan(now)
        self.stats.waits_for_memory = self.scheduler.waits_for_memory
        if plan is None:
            self.scheduler.check_integrity()
            return expired
        occupancy = self.scheduler.occupancy()  # before commit frees what finishes in this step
        speculation = self.scheduler.speculation
        before = speculation.accepted
        result = self._runner.run(plan)
        deltas = self.scheduler.commit(plan, result)
        tokens = sum(len(row.tokens) for row in plan.rows)
        accepted = speculation.accepted - before
        trace = StepTrace.of(plan.index, plan.now, result.seconds, tokens, occupancy, accepted)
        self.stats.drafts = speculation.drafts
        self.stats.count_step(trace, deltas)
        if self._trace is not None:
            self._trace(trace)
        return expired + deltas
