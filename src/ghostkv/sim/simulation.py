"""One workload under one policy, from the first arrival to the last token."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Protocol

from ghostkv.engine.admission import Limits
from ghostkv.engine.engine import Engine
from ghostkv.engine.scheduler import Scheduler
from ghostkv.engine.step_cost import StepTimes
from ghostkv.engine.text_gate import Detokenizer
from ghostkv.errors import DeadlineExceeded, Overloaded
from ghostkv.kv.pool import BlockPool
from ghostkv.request import Delta, Finish, FinishReason, SegmentRequest, Token
from ghostkv.residency import Policy
from ghostkv.sim.hardware import SMALL_CPU, CostRunner, VirtualClock
from ghostkv.sim.session import SimSession
from ghostkv.sim.workload import Job, Workload
from ghostkv.step import Row, Runner

_MOST = 0.9


@dataclass(frozen=True, slots=True)
class Setup:
    """The machine and the limits of a simulation."""

    times: StepTimes = SMALL_CPU
    limits: Limits = field(default_factory=lambda: Limits(max_context=8192, max_waiting=100_000))
    boundary_s: float = 0.01  # of reading a segment and assembling the next prompt, beside the engine


@dataclass(frozen=True, slots=True)
class Ended:
    """One answer: seconds since its arrival."""

    job: Job
    first_token_s: float
    latency_s: float
    silence_s: float  # the longest between two tokens
    flushes: int


@dataclass(frozen=True, slots=True)
class Missed:
    """One answer that did not end: its deadline was predicted or found not to be met."""

    job: Job
    why: str
    at: float  # seconds since its arrival; 0 where it was refused
    tokens: int  # generated for nothing


@dataclass(frozen=True, slots=True)
class Outcome:
    """A simulated run."""

    policy: str
    seconds: float  # from the first arrival to the last token
    most_s: float  # likewise, to the token that makes 90 % of all
    tokens: int  # of all answers
    ended: tuple[Ended, ...]
    rehydrated: int  # prompt tokens computed because a boundary was flushed
    peak_blocks: int
    steps: int
    missed: tuple[Missed, ...] = ()

    @property
    def tokens_per_second(self) -> float:
        """Output tokens over the whole run."""
        return self.tokens / self.seconds

    @property
    def sustained(self) -> float:
        """Tokens per second of the first 90 % of all output tokens: without the end, when few are left to run."""
        return _MOST * self.tokens / self.most_s

    @property
    def flushes(self) -> int:
        """Boundaries that were flushed."""
        return sum(answer.flushes for answer in self.ended)

    def latency_s(self, share: float) -> float:
        """The quantile of answers' latencies."""
        return _quantile([answer.latency_s for answer in self.ended], share)

    def first_token_s(self, share: float) -> float:
        """The quantile of the seconds until answers' first tokens."""
        return _quantile([answer.first_token_s for answer in self.ended], share)


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


class NoText:
    """A detokenizer: there is no text."""

    def feed(self, undecoded: bytes, token_id: int) -> tuple[str, bytes]:
        """Nothing."""
        return "", b""

    def flush(self, undecoded: bytes) -> str:
        """Nothing."""
        return ""


class Session(Protocol):
    """One answer as a chain of requests; `SimSession` is the one that needs no text."""

    job: Job
    segments: int  # asked for so far

    def first(self) -> SegmentRequest:
        """The first segment."""
        ...

    def next(self, finish: Finish) -> SegmentRequest:
        """The segment after one that was flushed."""
        ...

    def choose(self, row: Row) -> tuple[Token, ...]:
        """What a row of it draws."""
        ...


class _Course:
    """One session as it goes."""

    __slots__ = ("began", "first", "last", "session", "silence")

    def __init__(self, session: Session) -> None:
        self.session = session
        self.first = self.last = -1.0
        self.silence = 0.0

    def spoke(self, now: float) -> None:
        if self.first < 0:
            self.first = now
        else:
            self.silence = max(self.silence, now - self.last)
        self.last = now


Wrap = Callable[[Runner], Runner]


class Simulation:
    """Runs once. The scheduler, its order, admission and policies are the engine's own."""

    def __init__(
        self,
        workload: Workload,
        policy: Policy,
        setup: Setup | None = None,
        *,
        sessions: Sequence[Session] | None = None,
        detokenizer: Detokenizer | None = None,
        wrap: Wrap = lambda runner: runner,
    ) -> None:
        """`sessions`, one for each job, and `detokenizer` may be real ones; `wrap` may put a watch on the runner."""
        self._setup = setup = setup or Setup()
        context = setup.limits.max_context
        made = [SimSession(index, job, policy, context) for index, job in enumerate(workload.jobs)]
        self._sessions: Sequence[Session] = made if sessions is None else sessions
        self._workload = workload
        self._policy = policy
        self.clock = VirtualClock()
        pool = BlockPool(workload.blocks)
        self.scheduler = Scheduler(pool, setup.limits, detokenizer or NoText())
        self._engine = Engine(self.scheduler, wrap(CostRunner(setup.times, self.clock, self._choose)), self.clock)
        self._running: dict[str, _Course] = {}
        self._due: list[tuple[float, int, SegmentRequest]] = []
        self._order = count()
        self._ended: list[Ended] = []
        self._missed: list[Missed] = []
        self._tokens = self._rehydrated = 0
        self._most = _MOST * sum(job.output for job in workload.jobs)
        self._most_at = 0.0

    def run(self, progress: Callable[[float], None] = lambda _: None) -> Outcome:
        """To the end; `progress` is told the share of answers that have ended."""
        jobs = self._workload.jobs
        for session in self._sessions:
            request = session.first()
            self._running[request.id] = _Course(session)
            self._later(session.job.arrival, request)
        while self._due or not self._engine.idle:
            if self._engine.idle:
                self.clock.time = max(self.clock.time, self._due[0][0])
            while self._due and self._due[0][0] <= self.clock.time:
                self._ask(heapq.heappop(self._due)[2])
            for delta in self._engine.step():
                self._take(delta)
                if delta.finish is not None:
                    progress(len(self._ended) / len(jobs))
        stats = self._engine.stats
        start = min(job.arrival for job in jobs)
        seconds, most_s = self.clock.time - start, max(self._most_at, self.clock.time * 1e-9) - start
        ended = tuple(self._ended)
        return Outcome(
            policy=self._policy.name,
            seconds=seconds,
            most_s=most_s,
            tokens=self._tokens,
            ended=ended,
            rehydrated=self._rehydrated,
            peak_blocks=stats.peak_live_blocks,
            steps=stats.steps,
            missed=tuple(self._missed),
        )

    def _ask(self, request: SegmentRequest) -> None:
        job = self._running[request.id].session.job
        if job.deadline_s is not None:
            request = replace(request, deadline_s=job.arrival + job.deadline_s - self.clock.time)
        try:
            self._engine.add(request)
        except (Overloaded, DeadlineExceeded) as refusal:
            del self._running[request.id]
            self._missed.append(Missed(job, refusal.message, 0.0, 0))

    def _take(self, delta: Delta) -> None:
        course, now = self._running[delta.request_id], self.clock.time
        if delta.tokens:
            self._tokens += len(delta.tokens)
            if self._tokens <= self._most:
                self._most_at = now
            course.spoke(now)
        finish, session = delta.finish, course.session
        if finish is None:
            return
        del self._running[delta.request_id]
        if session.segments > 1:
            self._rehydrated += finish.usage.prompt_tokens - finish.usage.cached_tokens
        if finish.reason is FinishReason.FLUSH:
            request = session.next(finish)
            self._running[request.id] = course
            self._later(now + self._setup.boundary_s, request)
            return
        job = session.job
        if finish.reason is FinishReason.DEADLINE:
            self._missed.append(Missed(job, finish.note, now - job.arrival, finish.state.emitted))
            return
        self._ended.append(
            Ended(job, course.first - job.arrival, now - job.arrival, course.silence, session.segments - 1)
        )

    def _later(self, at: float, request: SegmentRequest) -> None:
        heapq.heappush(self._due, (at, next(self._order), request))

    def _choose(self, row: Row) -> tuple[Token, ...]:
        return self._running[row.request_id].session.choose(row)
