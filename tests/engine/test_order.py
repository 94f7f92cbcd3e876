"""Whose turn it is: fairness between tenants at every step, and the order inside one."""

from __future__ import annotations

import random
from collections import defaultdict

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


def request(name: str, account: str = "", prompt: int = 4, remaining: int = 8) -> SegmentRequest:
    ids = tuple(hash((name, i)) % 200 for i in range(prompt))
    state = GenerationState(rules=(BoundaryRule(frozenset(range(SEGMENT, 2000, SEGMENT))),))
    residency = FixedResidency(Decision.FLUSH, block=SEGMENT)
    return SegmentRequest(name, ids, Sampling(temperature=0), state, residency, remaining, account=account)


class Bench:
    """Sessions of several tenants over an engine, each going on after a flush at once, as the loop would."""

    def __init__(self, blocks: int, **limits: int) -> None:
        self.clock, self.pool = VirtualClock(), BlockPool(blocks)
        self.scheduler = Scheduler(self.pool, Limits(max_context=4096, max_waiting=9999, **limits), ByteDetokenizer())
        runner = ScriptedRunner(blocks, lambda history, draw: len(history) % 251, self.clock)
        self.engine = Engine(self.scheduler, runner, self.clock)
        self.work: defaultdict[str, float] = defaultdict(float)  # charged by hand
        self.of: dict[str, SegmentRequest] = {}

    def add(self, asked: SegmentRequest) -> None:
        self.of[asked.id] = asked
        self.engine.add(asked)

    def step(self) -> None:
        for delta in self.engine.step():
            asked = self.of[delta.request_id]
            self.work[asked.account] += OUTPUT_CHARGE * len(delta.tokens)
            if delta.finish is not None and delta.finish.reason is FinishReason.FLUSH:
                name, _, index = asked.id.partition(".")
                left = asked.remaining - delta.finish.usage.generated_tokens
                prompt = (*asked.prompt[:8], *(token % 97 for token in range(20)))
                state = delta.finish.state
                following = f"{name}.{int(index or 0) + 1}"
                self.add(
                    SegmentRequest(
                        following, prompt, asked.sampling, state, asked.residency, left, account=asked.account
                    )
                )
            if delta.finish is not None:
                self.charge(delta.request_id, delta.finish.usage.cached_tokens)

    def charge(self, name: str, cached: int) -> None:
        asked = self.of[name]
        self.work[asked.account] += PROMPT_CHARGE * (len(asked.prompt) - cached)


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
    while all(line._accounts[f"t{i}"].arriving or line._accounts[f"t{i}"].resuming for i in range(tenants)):
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
    line.started("a", 5000)
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
