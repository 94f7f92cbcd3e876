"""Several engines under one virtual time, and a router before them: the production engine, pool and switch.

An engine's step is taken whole, so a segment that arrives meanwhile sees what is committed at the step's end.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from ghostkv.engine.engine import Engine
from ghostkv.engine.scheduler import Scheduler
from ghostkv.kv.pool import BlockPool
from ghostkv.protocol.assign import Resource
from ghostkv.request import Delta, Finish, FinishReason, SegmentRequest, Token
from ghostkv.residency import Policy
from ghostkv.routing import Router, Switch, Ticket
from ghostkv.sim.hardware import CostRunner, VirtualClock
from ghostkv.sim.session import SimSession
from ghostkv.sim.simulation import NoText, Setup
from ghostkv.sim.workload import Job
from ghostkv.step import BLOCK_TOKENS, Row

WINDOW_S = 60.0
"""Over which imbalance is looked at."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One request of a trace."""

    session: int
    ids: Sequence[int]  # [prompt + output] tokens
    prompt: int  # of them
    at: float  # seconds: when it arrives, or, of a session's later ones, after the answer before it
    key: bytes  # see `routing.Asked`


@dataclass(frozen=True, slots=True)
class Served:
    """One answer."""

    first_token_s: float  # since its arrival
    token_s: float  # from one of its tokens to the next, the mean
    ended: float  # seconds


@dataclass(slots=True)
class Routed:
    """What came of a trace under one router."""

    served: list[Served] = field(default_factory=list)
    prompt_tokens: int = 0  # of all segments
    cached_tokens: int = 0  # of them, found
    busy: list[list[float]] = field(default_factory=list)  # [replicas][windows] seconds in steps
    refused: int = 0  # larger than a pool

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that were prefilled."""
        return self.prompt_tokens - self.cached_tokens

    def first_token_s(self, share: float) -> float:
        """The quantile."""
        times = sorted(one.first_token_s for one in self.served)
        return times[min(len(times) - 1, int(share * len(times)))]

    @property
    def mean_first_token_s(self) -> float:
        """Over all answers."""
        return sum(one.first_token_s for one in self.served) / len(self.served)

    @property
    def imbalance(self) -> float:
        """The busiest replica's seconds over the mean's, averaged over windows by the work in them."""
        windows: list[tuple[float, ...]] = list(zip(*self.busy, strict=True))
        most, all_ = sum(map(max, windows)), sum(map(sum, windows))
        return len(self.busy) * most / all_

    def goodput(self, first_token_s: float, token_s: float) -> float:
        """Answers per second that kept both limits."""
        good = sum(one.first_token_s <= first_token_s and one.token_s <= token_s for one in self.served)
        return good / max(one.ended for one in self.served)


class _Answer:
    """One visit as it goes."""

    __slots__ = ("arrived", "first", "replica", "session", "ticket", "visit")

    def __init__(self, number: int, visit: Visit, arrived: float, policy: Policy, context: int) -> None:
        self.visit, self.arrived, self.first = visit, arrived, -1.0
        output = len(visit.ids) - visit.prompt
        job = Job(f"v{number}", arrived, visit.prompt, output, output)
        self.session = SimSession(number, job, policy, context, visit.ids)
        self.replica = -1
        self.ticket: Ticket | None = None


class _Replica:
    """One engine and its clock."""

    def __init__(self, name: str, setup: Setup, blocks: int, choose: Callable[[Row], Sequence[Token]]) -> None:
        self.name = name
        self.clock = VirtualClock()
        self.pool = BlockPool(blocks)
        scheduler = Scheduler(self.pool, setup.limits, NoText())
        self.engine = Engine(scheduler, CostRunner(setup.times, self.clock, choose), self.clock)
        self.busy = defaultdict[int, float](float)  # by window

    def step(self) -> list[Delta]:
        began = self.clock.time
        deltas = self.engine.step()
        self.busy[int(began // WINDOW_S)] += self.clock.time - began
        return deltas

    def resource(self, request: SegmentRequest) -> Resource:
        found = len(self.pool.find(request.prompt[:-1], request.domain)) * BLOCK_TOKENS
        needed = len(request.prompt) + request.residency.reserve(request.remaining)
        room = self.pool.available * BLOCK_TOKENS // needed
        return Resource(self.name, 0, room, new=len(request.prompt) - found)


class Replicas:
    """Runs once. All answers have one residency policy."""

    def __init__(self, replicas: int, blocks: int, router: Router, policy: Policy, setup: Setup) -> None:
        """`blocks` are those of each pool."""
        self._setup, self._policy = setup, policy
        self._switch = Switch(router, replicas)
        self._replicas = [_Replica(f"r{i}", setup, blocks, self._choose) for i in range(replicas)]
        self._largest = blocks * BLOCK_TOKENS
        self._running: dict[str, _Answer] = {}
        self._due: list[tuple[float, int, Visit | tuple[_Answer, SegmentRequest]]] = []
        self._order = count()
        self._later_visits: dict[int, deque[Visit]] = defaultdict(deque)
        self._routed = Routed()

    def run(self, visits: Iterable[Visit], progress: Callable[[int], None] = lambda _: None) -> Routed:
        """All visits, each session's one after the other; `progress` is told how many have ended."""
        for visit in visits:
            self._later_visits[visit.session].append(visit)
        for waiting in self._later_visits.values():
            first = waiting.popleft()
            self._push(first.at, first)
        while True:
            until = self._due[0][0] if self._due else math.inf
            busy = [each for each in self._replicas if not each.engine.idle and each.clock.time < until]
            if busy:
                replica = min(busy, key=lambda each: each.clock.time)
                for delta in replica.step():
                    self._take(delta, replica.clock.time)
                progress(len(self._routed.served))
            elif self._due:
                self._begin(*heapq.heappop(self._due)[::2])
            else:
                break
        last = max(max(each.busy, default=0) for each in self._replicas)
        self._routed.busy = [[each.busy[window] for window in range(last + 1)] for each in self._replicas]
        return self._routed

    def _begin(self, now: float, due: Visit | tuple[_Answer, SegmentRequest]) -> None:
        if isinstance(due, Visit):
            if len(due.ids) > min(self._largest, self._setup.limits.max_context):
                self._routed.refused += 1
                self._next_visit(due, now)
                return
            answer = _Answer(next(self._order), due, now, self._policy, self._setup.limits.max_context)
            request = answer.session.first()
        else:
            answer, request = due
        workers = range(len(self._replicas))
        resources = [each.resource(request) for each in self._replicas]
        assignment, answer.ticket = self._switch.place(0.0, answer.visit.key, resources, workers)
        self._switch.take(answer.ticket)
        replica = self._replicas[assignment.index]
        if replica.engine.idle:
            replica.clock.time = max(replica.clock.time, now)
        self._running[request.id] = answer
        replica.engine.add(replace(request, begun=answer.session.segments > 1))

    def _take(self, delta: Delta, now: float) -> None:
        answer = self._running[delta.request_id]
        if delta.tokens and answer.ticket is not None:
            self._switch.read(answer.ticket)
            answer.first = now if answer.first < 0 else answer.first
        if delta.finish is not None:
            del self._running[delta.request_id]
            self._end(answer, delta.finish, now)

    def _end(self, answer: _Answer, finish: Finish, now: float) -> None:
        if answer.ticket is not None:
            self._switch.leave(answer.ticket)
        self._routed.prompt_tokens += finish.usage.prompt_tokens
        self._routed.cached_tokens += finish.usage.cached_tokens
        if finish.reason is FinishReason.FLUSH:
            self._push(now + self._setup.boundary_s, (answer, answer.session.next(finish)))
            return
        tokens = max(1, finish.state.emitted - 1)
        self._routed.served.append(Served(answer.first - answer.arrived, (now - answer.first) / tokens, now))
        self._next_visit(answer.visit, now)

    def _next_visit(self, visit: Visit, now: float) -> None:
        if waiting := self._later_visits[visit.session]:
            following = waiting.popleft()
            self._push(now + following.at, following)

    def _push(self, at: float, due: Visit | tuple[_Answer, SegmentRequest]) -> None:
        heapq.heappush(self._due, (at, next(self._order), due))

    def _choose(self, row: Row) -> Sequence[Token]:
        return self._running[row.request_id].session.choose(row)
