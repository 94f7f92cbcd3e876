"""Speculation changes when tokens come and nothing else: with and without it, every delta of every request."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import (
    BoundaryRule,
    ByteDetokenizer,
    EndRule,
    FixedResidency,
    ScriptedRunner,
    StringRule,
    VirtualClock,
    history_script,
)
from ghostkv.engine.admission import Limits
from ghostkv.engine.drafter import Drafts, PromptLookup
from ghostkv.engine.engine import Engine
from ghostkv.engine.scheduler import Scheduler
from ghostkv.engine.speculation import Speculation
from ghostkv.engine.stats import StepTrace
from ghostkv.engine.step_cost import StepCost, StepTimes
from ghostkv.kv.pool import BlockPool
from ghostkv.request import Decision, Delta, GenerationState, Rule, Sampling, SegmentRequest, Window
from ghostkv.step import Draw

WORDS = {0: b"a", 1: b"b", 2: b"ca", 3: b"ab", 4: b"\xf0\x9f", 5: b"\x8c\x8b", 6: b"c", 7: b""}
STOP, END = "abca", 7
SCRIPT = history_script(len(WORDS))
SPECULATING = Limits(max_context=512, max_sequences=64, step_tokens=128)


@dataclass(frozen=True)
class Prophet:
    """A drafter that knows what is going to be said, and lies now and then."""

    whole: Sequence[tuple[int, ...]]  # each request's prompt and output
    rng: random.Random
    lies: float

    @classmethod
    def maker(cls, whole: Sequence[tuple[int, ...]], seed: int, lies: float) -> Callable[[], Prophet]:
        rng = random.Random(seed)
        return lambda: cls(whole, rng, lies)

    def propose(self, tokens: Sequence[int], limit: int) -> tuple[int, ...]:
        known = next((one for one in self.whole if one[: len(tokens)] == tuple(tokens)), ())
        ahead = known[len(tokens) : len(tokens) + self.rng.randrange(9)]
        return tuple(self.rng.randrange(8) if self.rng.random() < self.lies else guess for guess in ahead)[:limit]


class Eager(Speculation):
    """Computes every guess that there is room for."""

    def lengths(self, proposals: Sequence[Drafts | None], prefill: int, room: int) -> list[int]:
        found = []
        for drafts in proposals:
            found.append(0 if drafts is None else min(room, len(drafts.proposal)))
            room -= found[-1]
        return found


@dataclass
class Site:
    """An engine whose books are checked after each step."""

    speculation: Speculation | None = None
    limits: Limits = SPECULATING
    blocks: int = 200
    script: Callable[[tuple[int, ...], Draw], int] = SCRIPT
    traces: list[StepTrace] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.runner = ScriptedRunner(self.blocks, self.script, clock := VirtualClock())
        self.pool = BlockPool(self.blocks)
        scheduler = Scheduler(self.pool, self.limits, ByteDetokenizer(WORDS), self.speculation)
        self.engine = Engine(scheduler, self.runner, clock, self.traces.append)

    def run(self, requests: Iterable[SegmentRequest]) -> dict[str, list[Delta]]:
        """The deltas of each request, without what depends on time and on who was cached before."""
        for request in requests:
            self.engine.add(request)
        deltas: dict[str, list[Delta]] = defaultdict(list)
        while not self.engine.idle:
            for delta in self.engine.step():
                if (finish := delta.finish) is not None:
                    usage = replace(finish.usage, cached_tokens=0, queue_s=0.0, prefill_s=0.0, decode_s=0.0)
                    delta = replace(delta, finish=replace(finish, usage=usage))
                deltas[delta.request_id].append(delta)
            self.engine.scheduler.check_integrity()
        self.engine.step()
        assert self.pool.referenced == 0
        return deltas


def whole(requests: Iterable[SegmentRequest], deltas: dict[str, list[Delta]]) -> list[tuple[int, ...]]:
    return [(*r.prompt, *(token.id for delta in deltas[r.id] for token in delta.tokens)) for r in requests]


def random_request(rng: random.Random, name: str) -> SegmentRequest:
    """Few beginnings, so that blocks are shared; every feature that a draw or a verdict depends on."""
    prompt = (*[rng.randrange(2)] * rng.randrange(0, 50), *(rng.randrange(8) for _ in range(rng.randrange(1, 6))))
    sampling = Sampling(
        temperature=rng.choice([0.0, 1.0]),
        repetition_penalty=rng.choice([1.0, 1.0, 1.2]),
        frequency_penalty=rng.choice([0.0, 0.0, 0.5]),
        min_tokens=rng.choice([0, 0, 20]),
        terminators=(END,),
        seed=rng.randrange(9),
    )
    every = frozenset(rng.sample(range(1, 60), rng.randrange(6)))
    rules: tuple[Rule, ...] = (EndRule(END), BoundaryRule(every), StringRule(STOP))
    state = GenerationState(client_ids=frozenset(prompt[:2]), rules=rules)
    residency = FixedResidency(rng.choice([Decision.KEEP, Decision.KEEP, Decision.FLUSH]), rng.choice([None, 5, 20]))
    return SegmentRequest(name, prompt, sampling, state, residency, rng.randrange(1, 60))


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 6), lies=st.sampled_from([0.0, 0.1, 0.5]), eager=st.booleans())
def test_every_delta_is_the_same(seed: int, count: int, lies: float, eager: bool) -> None:
    rng = random.Random(seed)
    requests = [random_request(rng, str(number)) for number in range(count)]
    plain = Site().run(requests)
    known = whole(requests, plain)
    kind = Eager if eager else Speculation
    for make in (Prophet.maker(known, seed, lies), PromptLookup):
        assert Site(kind(make)).run(requests) == plain


def test_the_property_meets_what_it_is_about() -> None:
    """In runs like those above guesses are accepted, refused, and cut by stops, boundaries and reservations."""
    totals: defaultdict[str, int] = defaultdict(int)
    for seed in range(200):
        rng = random.Random(seed)
        requests = [random_request(rng, "r")]
        plain = Site()
        deltas = plain.run(requests)
        site = Site(Eager(Prophet.maker(whole(requests, deltas), seed, 0.1)))
        site.run(requests)
        stats = site.engine.stats
        totals["steps saved"] += plain.engine.stats.steps - stats.steps
        totals["accepted"] += stats.accepted_tokens
        totals["refused"] += stats.drafted_tokens - stats.accepted_tokens
        totals["kept"] += stats.boundaries_kept
        for reason, number in stats.finished.items():
            totals[reason] += number
        assert stats.generated_tokens == plain.engine.stats.generated_tokens
        assert stats.decode_tokens == plain.engine.stats.decode_tokens
        assert stats.steps == plain.engine.stats.steps - stats.accepted_tokens
    assert min(totals[name] for name in ("accepted", "refused", "kept", "stop", "length", "flush")) > 20
    assert totals["steps saved"] == totals["accepted"] > 500


def test_what_was_guessed_wrongly_is_never_found_in_the_prefix_index() -> None:
    """A second request finds exactly the blocks of what was said."""
    request = SegmentRequest("a", (0, 1), Sampling(seed=1), GenerationState(), FixedResidency(), 60)
    plain = Site()
    [said] = whole([request], plain.run([request]))
    for lies in (0.3, 1.0):
        site = Site(Eager(Prophet.maker([said], 1, lies)))
        site.run([request])
        assert site.pool.cached == plain.pool.cached == (len(said) - 1) // 16
        site.engine.add(replace(request, id="b", prompt=said, remaining=1))
        [delta] = site.engine.step()
        assert delta.finish is not None and delta.finish.usage.cached_tokens == (len(said) - 1) // 16 * 16


def test_guesses_stay_within_reservation_step_and_draws() -> None:
    limits = Limits(max_context=512, max_sequences=6, step_tokens=7)
    requests = [
        SegmentRequest(str(i), (i,) * 9, Sampling(seed=i), GenerationState(), FixedResidency(Decision.FLUSH, 9), 40)
        for i in range(5)
    ]
    plain = Site(limits=limits).run(requests)
    known = whole(requests, plain)
    site = Site(Eager(Prophet.maker(known, 1, 0.1)), limits)
    assert site.run(requests) == plain
    assert site.engine.stats.drafted_tokens > 0
    for plan in site.runner.plans:
        assert sum(len(row.tokens) for row in plan.rows) <= 7 and sum(len(row.draws) for row in plan.rows) <= 6
        assert all(row.start + len(row.tokens) <= 9 + 9 - 1 for row in plan.rows)
    for trace in site.traces:
        assert trace.decode_rows + trace.prefill_tokens + trace.drafted <= 7 and trace.accepted <= trace.drafted


def test_prompts_are_read_before_anything_is_guessed() -> None:
    limits = Limits(max_context=512, max_sequences=4, step_tokens=8)
    site = Site(Eager(PromptLookup), limits, script=lambda history, draw: history[0])
    site.engine.add(SegmentRequest("a", (1, 1, 1), Sampling(), GenerationState(), FixedResidency(), 60))
    site.engine.step()
    site.engine.add(SegmentRequest("b", (2,) * 30, Sampling(), GenerationState(), FixedResidency(), 2))
    for _ in range(4):
        site.engine.step()
    shapes = [[(row.request_id, len(row.tokens)) for row in plan.rows] for plan in site.runner.plans[1:]]
    assert shapes == [[("a", 1), ("b", 7)]] * 4


def test_nothing_is_guessed_behind_a_window() -> None:
    """A ring of blocks is written over: a wrong guess would destroy what the next query still sees."""
    residency = FixedResidency(visible=Window(4, 8))
    request = SegmentRequest("a", (1, 1, 1, 1), Sampling(), GenerationState(), residency, 30)
    site = Site(Eager(PromptLookup), script=lambda history, draw: 1)
    site.runner._memory[:] = 1
    site.run([request])
    assert site.engine.stats.drafts == 0 and site.engine.stats.generated_tokens == 30


def test_a_request_cancelled_while_its_guesses_are_computed() -> None:
    site = Site(Eager(PromptLookup), script=lambda history, draw: history[0])
    for name in "ab":
        site.engine.add(SegmentRequest(name, (ord(name),) * 3, Sampling(), GenerationState(), FixedResidency(), 40))
    site.engine.step()
    plan = site.engine.scheduler.plan(0.0)
    assert plan is not None and all(row.drafts for row in plan.rows)
    result = site.runner.run(plan)
    site.engine.scheduler.cancel("a", 0.0)
    deltas = site.engine.scheduler.commit(plan, result)
    assert {delta.request_id for delta in deltas} == {"b"} and len(deltas) == len(plan.rows[1].draws)
    assert {token.id for delta in deltas for token in delta.tokens} == {ord("b")}


# --- how many guesses ---


def proposals(*chances: float, length: int = 4) -> list[Drafts | None]:
    made: list[Drafts | None] = []
    for chance in chances:
        drafts = Drafts(PromptLookup())
        drafts.chance, drafts.proposal = chance, (1,) * length
        made.append(drafts)
    return made


class Known(StepCost):
    def __init__(self, known: StepTimes) -> None:
        super().__init__()
        self._known = known

    def times(self) -> StepTimes:
        return self._known


def costing(base: float, row: float, tile: float = 0.0) -> Speculation:
    return Speculation(PromptLookup, cost=Known(StepTimes(base, row, row, 0.0, tile=tile, tile_rows=4)))


@settings(max_examples=100, deadline=None)
@given(
    chances=st.lists(st.floats(0.01, 0.99), min_size=1, max_size=4),
    prefill=st.integers(0, 50),
    row=st.sampled_from([0.0001, 0.002, 0.01, 0.05]),
    tile=st.sampled_from([0.0, 0.01, 0.05]),
)
def test_no_other_choice_gives_more_tokens_per_second(
    chances: list[float], prefill: int, row: float, tile: float
) -> None:
    times = StepTimes(0.03, row, row, 0.0, tile=tile, tile_rows=4)

    def tokens_per_second(lengths: Sequence[int]) -> float:
        tokens = sum(chance**j for chance, length in zip(chances, lengths, strict=True) for j in range(length + 1))
        return tokens / times.step(sum(lengths) + len(lengths), prefill=prefill)

    lengths = costing(0.03, row, tile).lengths(proposals(*chances), prefill, 99)
    best = max(tokens_per_second(choice) for choice in product(range(5), repeat=len(chances)))
    assert tokens_per_second(lengths) > best * (1 - 1e-9)


def test_room_is_given_to_the_likeliest() -> None:
    speculation = costing(1.0, 0.0)
    assert speculation.lengths(proposals(0.9, 0.5, 0.8), 0, 5) == [4, 0, 1]  # 0.9, 0.81, 0.8, 0.729, 0.656
    assert speculation.lengths([None, *proposals(0.9)], 0, 5) == [0, 4]
    assert speculation.lengths(proposals(0.9), 0, -3) == [0]


def test_full_steps_and_wrong_guesses_switch_it_off() -> None:
    speculation = costing(0.0155, 0.000585)
    assert speculation.lengths(proposals(0.5), 0, 99) == [4]
    assert speculation.lengths(proposals(0.02), 0, 99) == [0]
    assert speculation.lengths(proposals(*[0.5] * 64), 0, 999) == [0] * 64
    assert sum(speculation.lengths(proposals(*[0.95] * 64), 0, 999)) > 64


def test_guesses_fill_a_tile_or_do_not_begin_it() -> None:
    speculation = costing(0.010, 0.0003, tile=0.003)  # tiles of 4
    assert speculation.lengths(proposals(0.5, 0.5), 0, 99) == [1, 1]
    assert speculation.lengths(proposals(0.2, 0.2, 0.2, 0.2), 0, 99) == [0] * 4
    assert sum(speculation.lengths(proposals(*[0.9] * 4), 0, 99)) % 4 == 0


def test_without_measurements_a_row_costs_a_fixed_share() -> None:
    cost = StepCost()
    assert (cost.times().base, cost.times().row) == (1.0, 1 / 32)
    for _ in range(100):
        cost.observe(32, 0.064)
    assert (cost.times().base, cost.times().row) == pytest.approx((0.032, 0.001))


def test_the_cost_of_a_row_is_never_negative_nor_all_there_is() -> None:
    for slope in (-1.0, 0.5):
        cost = StepCost()
        for rows in (1, 2, 3, 4) * 50:
            cost.observe(rows, 1.0 + slope * rows if slope < 0 else 1e-3 + 100 * rows**3)
        assert cost.times().base > 0 and cost.times().row >= 0


@settings(max_examples=200, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 70), st.integers(0, 512), st.integers(0, 9000), st.floats(1e-4, 1.0)), min_size=1
    ),
    tile_rows=st.sampled_from([1, 8]),
)
def test_no_step_is_free(steps: list[tuple[int, int, int, float]], tile_rows: int) -> None:
    cost = StepCost(tile_rows)
    for rows, prefill, read, seconds in steps:
        cost.observe(rows, seconds, prefill=prefill, read=read)
    assert cost.times().step(0) > 0
    assert Speculation(PromptLookup, cost=cost).lengths([], 0, 9) == []
    assert len(Speculation(PromptLookup, cost=cost).lengths(proposals(0.9, 0.1), 7, 9)) == 2


def test_it_is_measured_and_old_measurements_are_forgotten() -> None:
    cost = StepCost()
    for count in range(4000):
        rows = 1 + count * 7 % 100
        cost.observe(rows, 5.0 + rows if count < 2000 else 1.0 + 0.1 * rows)
    assert (cost.times().base, cost.times().row) == pytest.approx((1.0, 0.1), rel=0.05)
