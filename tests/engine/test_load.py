"""Many requests at once: everything finishes, everything is given back, and nobody sees anybody else."""

from __future__ import annotations

import random
from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import ByteDetokenizer, FixedResidency, ScriptedRunner, VirtualClock, history_script
from ghostkv.engine.admission import Limits
from ghostkv.engine.engine import Engine
from ghostkv.engine.randomness import uniform
from ghostkv.engine.scheduler import Scheduler
from ghostkv.engine.stats import StepTrace
from ghostkv.kv.pool import BlockPool
from ghostkv.request import Decision, Delta, FinishReason, GenerationState, Sampling, SegmentRequest
from ghostkv.step import Draw

SCRIPT = history_script(200)


def alone(request: SegmentRequest, count: int) -> list[int]:
    """The first `count` tokens of a request that has the machine to itself."""
    tokens = list(request.prompt)
    for index in range(count):
        draw = Draw(request.sampling, uniform(request.sampling.seed, 0, 0, index))
        tokens.append(SCRIPT(tuple(tokens), draw))
    return tokens[len(request.prompt) :]


class Site:
    """An engine whose every step is checked."""

    def __init__(self, blocks: int, limits: Limits) -> None:
        self.clock = VirtualClock()
        self.pool = BlockPool(blocks)
        self.limits = limits
        self.engine = Engine(
            Scheduler(self.pool, limits, ByteDetokenizer()),
            ScriptedRunner(blocks, SCRIPT, self.clock),
            self.clock,
            self.see,
        )
        self.tokens: dict[str, list[int]] = defaultdict(list)
        self.finished: dict[str, FinishReason] = {}

    def see(self, trace: StepTrace) -> None:
        assert trace.running > 0  # no step in which requests wait and none runs
        assert trace.live_blocks + trace.cached_blocks + trace.free_blocks == self.pool.num_blocks
        assert trace.decode_rows + trace.prefill_tokens <= self.limits.step_tokens
        assert trace.running <= self.limits.max_sequences

    def take(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            assert delta.request_id not in self.finished
            self.tokens[delta.request_id] += [token.id for token in delta.tokens]
            if delta.finish is not None:
                self.finished[delta.request_id] = delta.finish.reason

    def step(self) -> None:
        before = self.engine.stats.steps
        self.take(self.engine.step())
        assert self.engine.stats.steps == before + 1


def random_request(rng: random.Random, number: int) -> SegmentRequest:
    """Prompts from few beginnings, so that many share blocks; policies of every kind."""
    stem = [rng.randrange(3)] * rng.randrange(0, 60)
    prompt = (*stem, *(rng.randrange(200) for _ in range(rng.randrange(1, 20))))
    residency = FixedResidency(rng.choice(list(Decision)), rng.choice([None, 1, 5, 16, 20]))
    sampling = Sampling(seed=rng.randrange(5))
    tenant = rng.choice(["", "", "other"])
    return SegmentRequest(str(number), prompt, sampling, GenerationState(), residency, rng.randrange(1, 40), tenant)


def test_two_thousand_requests_half_of_them_cancelled() -> None:
    rng = random.Random(1)
    site = Site(40, Limits(max_context=512, max_sequences=12, step_tokens=48, max_waiting=2000))
    requests = {str(number): random_request(rng, number) for number in range(2000)}
    arrivals = sorted((rng.uniform(0, 20), name) for name in requests)
    cancels = sorted((time + rng.expovariate(0.5), name) for time, name in arrivals if rng.random() < 0.5)
    steps = 0
    while arrivals or not site.engine.idle:
        if site.engine.idle and arrivals:
            site.clock.time = max(site.clock.time, arrivals[0][0])
        while arrivals and arrivals[0][0] <= site.clock.time:
            site.engine.add(requests[arrivals.pop(0)[1]])
        while cancels and cancels[0][0] <= site.clock.time:
            delta = site.engine.cancel(cancels.pop(0)[1])
            site.take([] if delta is None else [delta])
        if site.engine.idle:
            continue
        site.step()
        steps += 1
        if steps % 20 == 0:
            site.engine.scheduler.check_integrity()
    site.engine.step()
    assert site.pool.referenced == 0 and site.pool.available == 40
    assert site.finished.keys() == requests.keys()
    for name, request in requests.items():
        tokens = site.tokens[name]
        assert tokens == alone(request, len(tokens))
        if site.finished[name] is FinishReason.LENGTH:
            assert len(tokens) == request.remaining
    reasons = site.engine.stats.finished
    assert reasons["cancelled"] > 400 and reasons["length"] > 400 and reasons["flush"] > 100
    assert site.engine.stats.cached_tokens > 1000 and site.engine.stats.boundaries_kept > 100


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 30),
    blocks=st.integers(8, 30),
    max_sequences=st.integers(1, 8),
    extra=st.integers(0, 40),
)
def test_whoever_is_not_cancelled_finishes(seed: int, count: int, blocks: int, max_sequences: int, extra: int) -> None:
    rng = random.Random(seed)
    site = Site(blocks, Limits(max_context=512, max_sequences=max_sequences, step_tokens=max_sequences + extra))
    requests = {str(number): random_request(rng, number) for number in range(count)}
    for request in requests.values():
        site.engine.add(request)
    bound = sum(len(request.prompt) + request.remaining for request in requests.values())
    steps = 0
    while not site.engine.idle:
        site.step()
        site.engine.scheduler.check_integrity()
        steps += 1
        assert steps <= bound  # every step computes at least one token that was not computed before
    assert site.finished.keys() == requests.keys()
    assert site.pool.referenced == 0
    assert all(site.tokens[name] == alone(request, len(site.tokens[name])) for name, request in requests.items())
