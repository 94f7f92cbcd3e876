"""Whose turn it is: fairness between tenants at every step, and the order inside one."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import BoundaryRule, ByteDetokenizer, FixedResidency, ScriptedRunner, VirtualClock
from ghostkv.engine.admission import Limits
from ghostkv.engine.engine import Engine
from ghostkv.engine.order import OUTPUT_CHARGE, PROMPT_CHARGE, REMEMBERED_S, Line
from ghostkv.engine.scheduler import Scheduler
from ghostkv.kv.pool import BlockPool
from ghostkv.request import Decision, FinishReason, GenerationState, Sampling, SegmentRequest
from ghostkv.step import BLOCK_TOKENS

SEGMENT = 24  # output tokens
PROMPT = 40  # the longest


def request(
    name: str,
    account: str = "",
    prompt: int = 4,
    remaining: int = 8,
    program: str = "",
    deadline_s: float | None = None,
) -> SegmentRequest:
    ids = tuple(hash((name, i)) % 200 for i in range(prompt))
    state = GenerationState(rules=(BoundaryRule(frozenset(range(SEGMENT, 2000, SEGMENT))),))
    residency = FixedResidency(Decision.FLUSH, block=SEGMENT)
    return SegmentRequest(
        name,
        ids,
        Sampling(temperature=0),
        state,
        residency,
        remaining,
        account=account,
        program=program,
        deadline_s=deadline_s,
    )


class Bench:
    """Sessions of several tenants over an engine, each going on after a flush at once, as the loop would."""

    def __init__(self, blocks: int, **limits: int) -> None:
        self.clock, self.pool = VirtualClock(), BlockPool(blocks)
        self.scheduler = Scheduler(self.pool, Limits(max_context=4096, max_waiting=9999, **limits), ByteDetokenizer())
        runner = ScriptedRunner(blocks, lambda history, draw: len(history) % 251, self.clock)
        self.engine = Engine(self.scheduler, runner, self.clock)
        self.work: defaultdict[str, float] = defaultdict(float)  # charged by hand, to tenants
        self.program_work: defaultdict[str, float] = defaultdict(float)
        self.of: dict[str, SegmentRequest] = {}

    def add(self, asked: SegmentRequest) -> None:
        self.of[asked.id] = asked
        self.engine.add(asked)

    def step(self) -> None:
        for delta in self.engine.step():
            asked = self.of[delta.request_id]
            self.work[asked.account] += OUTPUT_CHARGE * len(delta.tokens)
            self.program_work[asked.program] += OUTPUT_CHARGE * len(delta.tokens)
            if delta.finish is not None and delta.finish.reason is FinishReason.FLUSH:
                name, _, index = asked.id.partition(".")
                left = asked.remaining - delta.finish.usage.generated_tokens
                prompt = (*asked.prompt[:8], *(token % 97 for token in range(20)))
                state = delta.finish.state
                following = f"{name}.{int(index or 0) + 1}"
                self.add(replace(asked, id=following, prompt=prompt, state=state, remaining=left))
            if delta.finish is not None:
                self.charge(delta.request_id, delta.finish.usage.cached_tokens)

    def charge(self, name: str, cached: int) -> None:
        asked = self.of[name]
        self.work[asked.account] += PROMPT_CHARGE * (len(asked.prompt) - cached)
        self.program_work[asked.program] += PROMPT_CHARGE * (len(asked.prompt) - cached)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 4), st.integers(8, 40))
def test_tenants_that_always_wait_are_served_alike(seed: int, tenants: int, blocks: int) -> None:
    """VTC's bound (Theorem 4.8: twice the largest of a prompt and a batch) and one segment, at every step."""
    rng, bench = random.Random(seed), Bench(blocks)
    for tenant in range(tenants):
        for i in range(6 + 30 * (tenant == 0)):  # the first asks for much more
            prompt, remaining = rng.randint(4, PROMPT), rng.randint(20, 120)
            bench.add(request(f"t{tenant}-{i}", f"t{tenant}", prompt, remaining))
    batch = OUTPUT_CHARGE * blocks * BLOCK_TOKENS
    segment = PROMPT_CHARGE * PROMPT + OUTPUT_CHARGE * SEGMENT
    bound = 2 * max(PROMPT_CHARGE * PROMPT, batch) + segment
    line = bench.scheduler._line
    while all(line._accounts[f"t{i}"].waiting for i in range(tenants)):
        running = max(line._accounts[f"t{i}"].running for i in range(tenants))
        bench.step()
        served = [line.served(f"t{i}") for i in range(tenants)]
        assert max(served) - min(served) <= bound
        # Much closer than the bound: nobody is more ahead than what it had running, and what came in.
        running = max(running, *(line._accounts[f"t{i}"].running for i in range(tenants)))
        assert max(served) - min(served) <= (running + 1) * segment
    while not bench.engine.idle:
        bench.step()
    assert {f"t{i}": line.served(f"t{i}") for i in range(tenants)} == pytest.approx(dict(bench.work))


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 4), st.integers(8, 40))
def test_programs_of_a_tenant_that_always_wait_are_served_alike(seed: int, programs: int, blocks: int) -> None:
    """The same bound, one level down, beside a tenant whose calls name no program."""
    rng, bench = random.Random(seed), Bench(blocks)
    for i in range(30):
        bench.add(request(f"other-{i}", "other", rng.randint(4, PROMPT), rng.randint(20, 120)))
    for program in range(programs):
        for i in range(6 + 30 * (program == 0)):  # the first makes many more calls
            prompt, remaining = rng.randint(4, PROMPT), rng.randint(20, 120)
            bench.add(request(f"p{program}-{i}", "mine", prompt, remaining, f"p{program}"))
    segment = PROMPT_CHARGE * PROMPT + OUTPUT_CHARGE * SEGMENT
    bound = 2 * max(PROMPT_CHARGE * PROMPT, OUTPUT_CHARGE * blocks * BLOCK_TOKENS) + segment
    line = bench.scheduler._line
    account = line._accounts["mine"]
    steps = 0
    while len(account.waiting) == programs:
        running = max(program.running for program in account.busy.values())
        bench.step()
        steps += 1
        served = line.programs("mine").values()
        assert max(served) - min(served) <= bound
        running = max(running, *(program.running for program in account.busy.values()))
        assert max(served) - min(served) <= (running + 2) * segment
    assert steps > 20
    while not bench.engine.idle:
        bench.step()
    assert line.programs("mine") == pytest.approx({f"p{i}": bench.program_work[f"p{i}"] for i in range(programs)})
    assert (
        sum(line.programs("mine").values()) == pytest.approx(line.served("mine")) == pytest.approx(bench.work["mine"])
    )


def test_a_program_keeps_its_charge_between_two_calls_and_is_forgotten_after_a_while() -> None:
    line = Line()
    for name, tokens in (("heavy", 900), ("light", 10)):
        asked = request(name, "a", program=name)
        line.add(asked, 0.0, begun=False)
        line.pop(name)
        line.started(asked, tokens)
        line.ended(asked)
    line.add(request("heavy2", "a", program="heavy"), 1.0, begun=False)
    line.add(request("light2", "a", program="light"), 2.0, begun=False)  # lifted to whoever is least served now
    assert line.programs("a") == {"heavy": 900, "light": 900}
    head = line.head(2.0)
    assert head is not None and head.request.id == "heavy2"  # equal: who waits longer
    for name in ("heavy2", "light2"):
        line.pop(name)
    line.add(request("third", "a", program="third"), 3.0 + REMEMBERED_S, begun=False)
    assert set(line.programs("a")) == {"third"}


def test_the_newcomer_of_a_tenant_goes_before_a_program_that_was_served_more() -> None:
    bench = Bench(blocks=12)
    for i in range(40):
        bench.add(request(f"agent{i}", "", 8, 200, "agent"))
    for _ in range(30):
        bench.step()
    bench.add(request("chat", "", 8, 8, "chat"))
    steps = 0
    while bench.scheduler._line._accounts[""].programs["chat"].running == 0:
        bench.step()
        steps += 1
    assert steps <= SEGMENT


def test_a_deadline_goes_first_inside_a_program_until_somebody_has_waited_too_long() -> None:
    line = Line(max_wait_s=10.0)
    for name, deadline_s in (("none", None), ("late", 50.0), ("soon", 20.0)):
        line.add(request(name, deadline_s=deadline_s), 0.0, begun=False)
    order = []
    while (head := line.head(1.0)) is not None:
        order.append(head.request.id)
        line.pop(head.request.id)
    assert order == ["soon", "late", "none"] and not line.dated
    line.add(request("none"), 0.0, begun=False)
    line.add(request("soon", deadline_s=20.0), 5.0, begun=False)
    heads = [head.request.id for now in (5.0, 9.9, 10.0) if (head := line.head(now)) is not None]
    assert heads == ["soon", "soon", "none"]


def test_a_tenant_with_nothing_running_is_first_at_the_next_boundary() -> None:
    bench = Bench(blocks=12)
    for i in range(40):
        bench.add(request(f"long{i}", "busy", 8, 200))
    for _ in range(30):
        bench.step()
    bench.add(request("short", "quiet", 8, 8))
    steps = 0
    while bench.scheduler._line._accounts["quiet"].running == 0:
        bench.step()
        steps += 1
    assert steps <= SEGMENT


def test_nobody_is_extended_into_what_a_tenant_with_nothing_running_waits_for() -> None:
    bench = Bench(blocks=15)
    for i in range(4):  # two blocks each, and more at each boundary
        kept = FixedResidency(Decision.KEEP, block=SEGMENT)
        bench.add(replace(request(f"long{i}", "busy", 8, 400), residency=kept))
    for _ in range(5):
        bench.step()
    bench.add(request("large", "quiet", 104, 24))  # eight blocks, of which seven are free
    steps = 0
    while bench.scheduler._line._accounts["quiet"].running == 0:
        bench.step()
        steps += 1
    assert steps <= SEGMENT


def test_blocks_are_held_back_for_a_tenant_that_may_come_back() -> None:
    bench = Bench(blocks=30)
    bench.add(request("hello", "quiet", 8, 8))
    while not bench.engine.idle:
        bench.step()
    for i in range(40):
        bench.add(request(f"long{i}", "busy", 8, 200))
    for _ in range(60):
        bench.step()
        assert bench.pool.available >= 8  # 128 tokens
    bench.add(request("again", "quiet", 8, 100))
    bench.step()
    assert bench.scheduler._line._accounts["quiet"].running == 1
    bench.clock.advance(REMEMBERED_S * 2)
    bench.engine.cancel("again")
    least = bench.pool.available
    for _ in range(60):
        bench.clock.advance(REMEMBERED_S)
        bench.step()
        least = min(least, bench.pool.available)
    assert least < 8  # it was away for too long


def test_one_tenant_alone_may_use_all_there_is() -> None:
    bench = Bench(blocks=12)
    for i in range(20):
        bench.add(request(f"r{i}", "only", 8, 24))
    bench.step()
    assert bench.pool.available < 2


def test_who_comes_back_gets_no_credit_for_the_time_away() -> None:
    line = Line()
    line.add(request("a", "a"), 0.0, begun=False)
    line.pop("a")
    line.started(request("a", "a"), 5000)
    line.add(request("b", "b"), 1.0, begun=False)
    assert line.served("b") == 5000


def test_inside_a_tenant_answers_that_have_begun_come_first_until_somebody_has_waited_too_long() -> None:
    line = Line(max_wait_s=10.0)
    line.add(request("new"), 0.0, begun=False)
    line.add(request("next"), 5.0, begun=True)
    first = [head.request.id for now in (5.0, 9.9, 10.0, 99.0) if (head := line.head(now)) is not None]
    assert first == ["next", "next", "new", "new"]
    assert line.oldest(9.0) == 9.0 and line.arriving == 1 and len(line) == 2
    line.pop("new")
    assert line.oldest(9.0) == 4.0 and line.arriving == 0
    assert line.pop("new") is None
