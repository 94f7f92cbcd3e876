"""Pauses for tools: the decision against its formula, and the ledger under any order of events."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.test_scheduler import Bench, request
from fakes import FixedResidency
from ghostkv.engine.pause import LONGEST_S, Fate, Lengths, PauseView, decide, expected_cost
from ghostkv.engine.pauses import SHARE
from ghostkv.request import Decision, FinishReason, GenerationState, SegmentRequest

VIEWS = st.builds(
    PauseView,
    tokens=st.integers(1, 5000),
    others=st.integers(0, 50_000),
    prefill_s=st.floats(0.0, 30.0),
    wanted=st.floats(0.0, 1.0),
    lengths=st.lists(st.floats(0.001, 120.0), min_size=1, max_size=12).map(lambda found: tuple(sorted(found))),
)


@given(VIEWS)
def test_no_other_time_to_live_is_expected_to_waste_less(view: PauseView) -> None:
    """Against the expectation written out pause by pause; a record gives the same decision again."""
    found = decide(view)
    assert found == decide(view)
    again = view.prefill_s * (view.tokens + view.others)

    def waste(ttl: float) -> float:
        each = [
            view.tokens * view.wanted * length if length <= ttl else view.tokens * view.wanted * ttl + again
            for length in view.lengths
        ]
        return sum(each) / len(each)

    assert (found.fate is Fate.KEEP) == (found.ttl_s > 0)
    assert 0 <= found.ttl_s <= LONGEST_S
    least = found.keep_cost if found.fate is Fate.KEEP else found.drop_cost
    assert least == pytest.approx(waste(found.ttl_s), rel=1e-9, abs=1e-9)
    assert found.drop_cost == pytest.approx(again)
    for ttl in (0.0, *(min(1.25 * length, LONGEST_S) for length in view.lengths)):
        assert least <= expected_cost(view, ttl) + 1e-9 * (1 + again) or ttl == 0
        assert least <= waste(ttl) * (1 + 1e-9) + 1e-9


def test_what_pulls_the_decision() -> None:
    short = PauseView(tokens=1000, others=0, prefill_s=0.5, wanted=1.0, lengths=(0.1, 0.1, 0.1, 0.1))
    assert decide(short).fate is Fate.KEEP and decide(short).ttl_s == pytest.approx(0.125)
    assert decide(replace(short, lengths=(20.0,))).fate is Fate.DROP
    assert decide(replace(short, lengths=(20.0,), wanted=0.0)).fate is Fate.KEEP  # nobody else wants the memory
    assert decide(replace(short, lengths=(20.0,), others=100_000)).fate is Fate.KEEP  # all would wait for the prefill
    assert decide(replace(short, prefill_s=0.0)).fate is Fate.DROP  # nothing is lost
    # One tool in ten takes for ever: nobody waits for that one.
    assert decide(replace(short, lengths=(*[0.1] * 9, 1000.0))).ttl_s == pytest.approx(0.125)


def test_lengths_are_learned() -> None:
    lengths = Lengths()
    assumed = lengths.ascending
    for count in range(1, 100):
        lengths.ended(5.0)
        known = lengths.ascending
        assert len(known) == max(len(assumed), min(count, 32)) and known.count(5.0) == min(count, 32)


# --- the ledger, in a scheduler ---


def paused_bench(blocks: int = 40, max_wait_s: int = 10) -> Bench:
    return Bench(script=lambda history, draw: 7, blocks=blocks, max_wait_s=max_wait_s)


def finish(
    bench: Bench, name: str, prompt: tuple[int, ...], remaining: int = 8
) -> tuple[SegmentRequest, tuple[int, ...]]:
    """Run one answer to its end, then pause; its request and text."""
    asked = request(name, prompt, remaining)
    bench.engine.add(asked)
    ids = [token.id for delta in bench.all() for token in delta.tokens]
    return asked, (*prompt, *ids)


def text(base: int, tokens: int = 64) -> tuple[int, ...]:
    return tuple(range(base, base + tokens))


def test_a_kept_session_is_found_when_it_comes_back_and_others_are_evicted_before_it() -> None:
    bench = paused_bench(blocks=20)
    asked, ids = finish(bench, "a", text(1000))
    assert bench.engine.pause(asked, ids).fate is Fate.KEEP
    pauses = bench.scheduler.pauses
    assert pauses.blocks == bench.pool.pinned == 71 // 16
    finish(bench, "b", text(2000, 130))  # by itself: it may take all, but evicts what is not kept first
    assert pauses.blocks == 4
    bench.engine.add(request("c", (*ids, 5, 5, 5), 4))
    usage = next(delta.finish.usage for delta in bench.all() if delta.finish)
    assert usage.cached_tokens == 64
    assert (pauses.counts.resumed, pauses.blocks, bench.pool.pins) == (1, 0, 0)


def test_it_is_found_by_its_messages_where_the_answer_is_written_otherwise() -> None:
    """A client sends the call again with other white space: the prompt is the same, and that is enough."""
    bench = paused_bench()
    asked, ids = finish(bench, "a", text(1000))
    bench.engine.pause(asked, ids)
    bench.engine.add(request("b", (*text(1000), 9, 9, 9, 9, 9, 9, 9, 9, 9), 4))
    bench.all()
    assert bench.scheduler.pauses.counts.resumed == 1 and not bench.pool.pins


def test_at_the_end_of_its_time_nothing_is_kept() -> None:
    bench = paused_bench()
    asked, ids = finish(bench, "a", text(1000))
    ttl = bench.engine.pause(asked, ids).ttl_s
    for elapsed, kept in ((0.9 * ttl, 4), (0.2 * ttl, 0)):
        bench.clock.advance(elapsed)
        bench.engine.step()
        assert bench.pool.pinned == kept
    assert bench.scheduler.pauses.counts.expired == 1
    assert bench.pool.cached == 4  # still found, by whoever comes before it is evicted


def test_an_arrival_leaves_what_is_kept_and_an_answer_that_has_begun_need_not() -> None:
    bench = paused_bench(blocks=12, max_wait_s=1000)
    asked, ids = finish(bench, "a", text(1000))
    bench.engine.pause(asked, ids)
    assert bench.pool.pinned == 4
    long = FixedResidency(Decision.KEEP)
    bench.engine.add(request("running", text(2000, 16), 17, residency=long))  # 2 blocks
    bench.engine.step()
    new = request("new", text(3000, 64), 48, residency=long)  # 7 blocks; 6 are left beside what is kept
    bench.engine.add(new)
    bench.engine.step()
    assert bench.scheduler.occupancy().waiting == 1 and bench.pool.pinned == 4
    bench.engine.add(replace(new, id="begun", state=GenerationState(emitted=5)))
    bench.engine.step()
    assert bench.scheduler.occupancy().running == 2 and bench.pool.pinned == 3
    bench.all()


def test_what_is_kept_is_bounded() -> None:
    bench = paused_bench(blocks=32)
    for number in range(6):
        asked, ids = finish(bench, f"r{number}", text(1000 * (number + 1)))
        bench.engine.pause(asked, ids)
        assert bench.pool.pins <= 32 // SHARE
    counts = bench.scheduler.pauses.counts
    assert (counts.kept, counts.displaced) == (6, 2)
    asked, ids = finish(bench, "large", text(50_000, 20 * 16))  # more than the bound by itself
    bench.engine.pause(asked, ids)
    assert counts.dropped == 1


class Life:
    """Answers, pauses and returns over one engine, one event at a time."""

    def __init__(self, blocks: int) -> None:
        self.bench = Bench(script=lambda history, draw: 7, blocks=blocks, max_wait_s=5)
        self.asked: dict[str, SegmentRequest] = {}
        self.output: dict[str, list[int]] = {}
        self.ended: list[tuple[SegmentRequest, FinishReason]] = []

    def step(self) -> None:
        for delta in self.bench.engine.step():
            self.output[delta.request_id] += [token.id for token in delta.tokens]
            if delta.finish is not None:
                self.ended.append((self.asked[delta.request_id], delta.finish.reason))

    def ask(self, prompt: tuple[int, ...], remaining: int) -> None:
        asked = request(f"r{len(self.asked)}", prompt, remaining)
        self.asked[asked.id], self.output[asked.id] = asked, []
        self.bench.engine.add(asked)

    def said(self, at: int) -> tuple[SegmentRequest, tuple[int, ...]]:
        """An answer that has ended, and its text."""
        asked, _ = self.ended[at % len(self.ended)]
        return asked, (*asked.prompt, *self.output[asked.id])

    def move(self, kind: str, at: int, size: int) -> None:
        if kind == "wait":
            self.bench.clock.advance((0.01, 0.5, 40.0)[at % 3])
        elif kind == "step":
            self.step()
        elif kind == "new" or not self.ended:
            self.ask(text(1000 * (1 + at % 4), size), 1 + size % 20)
        elif kind == "pause":
            self.bench.engine.pause(*self.said(at))
        else:
            self.ask(((*self.said(at)[1], 3, 3))[:120], 1 + size % 20)


MOVES = st.tuples(
    st.sampled_from(["new", "back", "pause", "step", "step", "wait"]), st.integers(0, 9), st.integers(1, 70)
)


@settings(max_examples=80)
@given(st.integers(10, 24), st.lists(MOVES, min_size=5, max_size=30))
def test_no_answer_fails_for_what_is_kept(blocks: int, moves: list[tuple[str, int, int]]) -> None:
    """In any order all answers end, the books agree after every event, and in the end nothing is kept."""
    life = Life(blocks)
    bench = life.bench
    for move in moves:
        life.move(*move)
        bench.scheduler.check_integrity()
        assert bench.pool.pins <= bench.pool.num_blocks // SHARE
    steps = 0
    while not bench.engine.idle and steps < 5000:
        life.step()
        steps += 1
    assert bench.engine.idle and len(life.ended) == len(life.asked)
    assert {reason for _, reason in life.ended} <= {FinishReason.LENGTH}
    bench.clock.advance(LONGEST_S)
    bench.engine.step()
    assert bench.pool.pins == bench.pool.pinned == bench.pool.referenced == 0
    for record in bench.scheduler.pauses.records:
        assert decide(record.view) == record.decision
