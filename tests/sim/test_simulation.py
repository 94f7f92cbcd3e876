"""The simulator against the engine: the same plans for one trace, and stand-ins that are as long as the real thing."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from ghostkv.backends.base import Capabilities
from ghostkv.config import EngineConfig
from ghostkv.engine.admission import Limits
from ghostkv.engine.engine import Engine
from ghostkv.engine.scheduler import Scheduler
from ghostkv.engine.step_cost import StepTimes
from ghostkv.kv.pool import BlockPool
from ghostkv.model.load import LoadedModel, load_model
from ghostkv.protocol.render import Assembled
from ghostkv.request import Finish, FinishReason, Message, Sampling, SegmentRequest, Token
from ghostkv.residency import policy
from ghostkv.session.chain import Carried, Chain
from ghostkv.session.context import TurnContext
from ghostkv.session.turn import Turn
from ghostkv.sim.hardware import SMALL_CPU, CostRunner, VirtualClock, fitted
from ghostkv.sim.session import SimSession
from ghostkv.sim.simulation import Setup, Simulation
from ghostkv.sim.workload import Job, Workload
from ghostkv.step import BLOCK_TOKENS, Row, Runner, StepPlan, StepResult
from ghostkv.text.detokenizer import Detokenizer
from ghostkv.text.template import ChatTemplate

BLOCKS, CONTEXT, TOKENS = 48, 1024, 330
LIMITS = Limits(CONTEXT, max_sequences=16, step_tokens=96, max_wait_s=3.0)
TIMES = StepTimes(0.015, 0.0006, 0.0004, 1e-6)


@dataclass
class Told:
    """One session of the trace: its requests, what they generated, and where it stands."""

    chain: Chain
    carried: Carried
    assembled: Assembled
    requests: list[SegmentRequest] = field(default_factory=list)
    outputs: list[list[Token]] = field(default_factory=list)

    def ask(self) -> SegmentRequest:
        self.requests.append(self.chain.request(len(self.requests), self.assembled, self.carried))
        self.outputs.append([])
        return self.requests[-1]

    def cross(self, finish: Finish) -> SegmentRequest:
        """The boundary, by the parts of the continuity loop itself."""
        transition = self.chain.extract(self.carried, [token.id for token in self.outputs[-1]], finish)
        self.carried = self.chain.merge(self.carried, transition, finish, self.assembled)
        self.assembled = self.chain.assemble(self.carried)
        return self.ask()


class Timed:
    """The model's runner, whose steps take what the table says."""

    def __init__(self, runner: Runner, clock: VirtualClock) -> None:
        self._runner, self._cost = runner, CostRunner(TIMES, clock, lambda row: ())
        self.plans: list[StepPlan] = []

    def run(self, plan: StepPlan) -> StepResult:
        self.plans.append(copied(plan))
        return replace(self._runner.run(plan), seconds=self._cost.run(plan).seconds)


def copied(plan: StepPlan) -> StepPlan:
    """With the block tables as they were: the pool writes into them."""
    return replace(plan, rows=tuple(replace(row, table=row.table.copy()) for row in plan.rows))


def shape(plan: StepPlan) -> list[object]:
    """Everything in a plan but its time."""
    return [
        (
            row.request_id,
            row.tokens,
            row.start,
            tuple(row.table),
            [(d.sampling, d.uniform, d.masked) for d in row.draws],
        )
        for row in plan.rows
    ]


@pytest.fixture(scope="module")
def model(small_hf: Path) -> LoadedModel:
    return load_model(small_hf, EngineConfig(dtype="float32", threads=1, kv_budget=BLOCKS * 16 * 1024 * 2))


@pytest.fixture(scope="module")
def trace(model: LoadedModel) -> tuple[list[Told], list[StepPlan]]:
    """Seven answers under `auto` in a pool for two, by engine, model and boundary work."""
    clock, pool = VirtualClock(), BlockPool(BLOCKS)
    runner = Timed(model.runner, clock)
    engine = Engine(Scheduler(pool, LIMITS, Detokenizer(model.checkpoint.tokenizer)), runner, clock)
    sessions = list(started(model))
    due = [(0.4 * i, i, told.ask()) for i, told in enumerate(sessions)]
    of = {request.id: sessions[i] for _, i, request in due}
    number = count(len(due))
    while due or not engine.idle:
        if engine.idle:
            clock.time = max(clock.time, due[0][0])
        while due and due[0][0] <= clock.time:
            engine.add(heapq.heappop(due)[2])
        for delta in engine.step():
            told = of[delta.request_id]
            told.outputs[-1] += delta.tokens
            if delta.finish is not None and delta.finish.reason is FinishReason.FLUSH:
                request = told.cross(delta.finish)
                of[request.id] = told
                heapq.heappush(due, (clock.time + 0.01, next(number), request))
    return sessions, runner.plans


def started(model: LoadedModel) -> Iterator[Told]:
    tokenizer, checkpoint = model.checkpoint.tokenizer, model.checkpoint
    assert checkpoint.template is not None
    template = ChatTemplate(checkpoint.template, tokenizer)
    context = TurnContext(template.render_ids, tokenizer.encode, tokenizer.token_bytes, tokenizer.eos_ids, lambda: 0.0)
    budget = BLOCKS * BLOCK_TOKENS
    room = Capabilities(True, True, True, True, True, True, CONTEXT, 1, budget, BLOCK_TOKENS)
    for i in range(7):
        question = (Message("user", f"Tell me about ship {i} of Lisbon."),)
        sampling = Sampling(temperature=0.9, seed=i)
        turn = Turn(f"u{i}", sampling, max_tokens=TOKENS + 10 * i, messages=question, ignore_eos=True)
        chain = Chain.of(turn, context, room)
        carried = chain.begin()
        yield Told(chain, carried, chain.assemble(carried))


@dataclass
class Traced:
    """A session of the simulator that asks what the real one asked, and says what it said."""

    told: Told
    job: Job
    segments: int = 0

    def first(self) -> SegmentRequest:
        self.segments += 1
        return self.told.requests[self.segments - 1]

    def next(self, finish: Finish) -> SegmentRequest:
        return self.first()

    def choose(self, row: Row) -> tuple[Token, ...]:
        at = row.start + len(row.tokens) - len(self.told.requests[self.segments - 1].prompt)
        return (self.told.outputs[self.segments - 1][at],)


def test_engine_and_simulator_make_the_same_plans(model: LoadedModel, trace: tuple[list[Told], list[StepPlan]]) -> None:
    sessions, plans = trace
    jobs = [
        Job(told.chain.turn.id, 0.4 * i, len(told.chain.prompt), told.chain.turn.max_tokens, told.chain.turn.max_tokens)
        for i, told in enumerate(sessions)
    ]
    seen: list[StepPlan] = []

    class Watched:
        def __init__(self, runner: Runner) -> None:
            self._runner = runner

        def run(self, plan: StepPlan) -> StepResult:
            seen.append(copied(plan))
            return self._runner.run(plan)

    simulation = Simulation(
        Workload(tuple(jobs), BLOCKS),
        policy("auto"),
        Setup(TIMES, LIMITS),
        sessions=[Traced(told, job) for told, job in zip(sessions, jobs, strict=True)],
        detokenizer=Detokenizer(model.checkpoint.tokenizer),
        wrap=Watched,
    )
    outcome = simulation.run()
    assert sum(len(told.requests) > 1 for told in sessions) > 3  # it was tight enough for flushes
    assert outcome.flushes == sum(len(told.requests) - 1 for told in sessions)
    assert [plan.index for plan in seen] == [plan.index for plan in plans]
    for ours, real in zip(seen, plans, strict=True):
        assert shape(ours) == shape(real)


def test_stand_ins_ask_for_prompts_as_long_as_the_loops(trace: tuple[list[Told], list[StepPlan]]) -> None:
    """The loop begins its tail at a sentence or word, of which random text has few, so it stays a little below."""
    sessions, _ = trace
    short = []
    for told in sessions:
        turn = told.chain.turn
        job = Job(turn.id, 0.0, len(told.chain.prompt), turn.max_tokens, turn.max_tokens)
        mine = SimSession(0, job, policy("auto"), CONTEXT)
        first = mine.first()
        assert len(first.prompt) == len(told.requests[0].prompt)
        assert first.flushed_prompt == told.requests[0].flushed_prompt
        for request in told.requests[1:]:
            state = replace(first.state, emitted=request.state.emitted)
            real = len(request.prompt)
            usage = None
            asked = mine.next(Finish(FinishReason.FLUSH, state, usage))  # type: ignore[arg-type]
            short.append(len(asked.prompt) - real)
            assert asked.flushed_prompt == request.flushed_prompt and asked.remaining == request.remaining
    assert len(short) > 3
    assert min(short) >= 0 and max(short) <= 72 and sum(short) / len(short) <= 40


def test_costs_are_those_of_the_recorded_runs() -> None:
    results = Path(__file__).parents[2] / "benchmarks" / "results" / "engine.jsonl"
    every = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    rows = [row for row in every if row["run"]["commit"] == "834ab4a"]
    found = fitted(rows)
    assert (found.base, found.row, found.prefill, found.read) == pytest.approx(
        (SMALL_CPU.base, SMALL_CPU.row, SMALL_CPU.prefill, SMALL_CPU.read), rel=0.01
    )
    for row in rows:  # and they say again what was measured
        count, prompt, tokens = row["sequences"], row["workload"]["prompt"], row["workload"]["tokens"]
        steps = np.arange(tokens - 1)
        seconds = sum(found.step(count, count * (prompt + i)) for i in steps) + found.prefill * count * prompt
        assert count * tokens / seconds == pytest.approx(row["tokens_per_second"], rel=0.25)
