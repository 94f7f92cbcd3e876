"""What the live page keeps: derived residency, bounded memory, rests. A hand-turned clock; no engine, no page."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ghostkv.engine.stats import StepTrace
from ghostkv.errors import EngineFault, InvalidRequest
from ghostkv.page.live import Live, State
from ghostkv.page.timeline import MOMENT_S, SPAN_S, Timeline
from ghostkv.request import BoundaryMark, Decision, FinishReason, Message, Sampling, SegmentUsage, Token
from ghostkv.session.turn import Finished, Output, SegmentRecord, Turn

FLUSH = BoundaryMark("paragraph", Decision.FLUSH)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def live(clock: Clock) -> Live:
    made = Live(clock)
    made.timeline.begin([10])
    return made


def turn(name: str = "a", question: str = "Why?") -> Turn:
    return Turn(id=name, sampling=Sampling(seed=1), max_tokens=9, messages=(Message("user", question),))


def output(tokens: int, resident: int) -> Output:
    return Output(tuple(Token(1) for _ in range(tokens)), "x" * tokens, resident)


def record(index: int, boundary: BoundaryMark | None = FLUSH, **more: Any) -> SegmentRecord:
    usage = SegmentUsage(20, 4, 8, 27, 0.0, 0.0, 0.0)
    return SegmentRecord(index, usage, boundary, 0, **more)


def step(live: int, *, cached: int = 0, seconds: float = 0.1, running: int = 1, waiting: int = 0) -> StepTrace:
    return StepTrace(1, 0.0, seconds, 1, 5, running, waiting, live, cached, 9)


def finished() -> Finished:
    return Finished(FinishReason.STOP, 12, 3, True, 0)


def test_an_answer_rises_and_falls_at_each_flush(live: Live, clock: Clock) -> None:
    live.started(turn())
    for base in (20, 30):
        for held in range(base, base + 5):
            clock.now += 2
            live.event(turn(), output(1, held))
        live.event(turn(), record(0))
    answer = live.answers()[0]
    heights = [held for _, held in answer.curve]
    assert heights == [0, 20, 21, 22, 23, 24, 24, 0, 0, 30, 31, 32, 33, 34, 34, 0]
    assert [at for at, _ in answer.curve] == sorted(at for at, _ in answer.curve)
    assert (answer.resident, answer.peak, answer.generated, answer.flushed) == (0, 34, 10, 2)


def test_sums_follow_the_records(live: Live) -> None:
    live.started(turn())
    live.event(turn(), record(0, tail=0, state=0, recalled=0, payload_bytes=50))
    live.event(turn(), record(1, tail=7, state=5, recalled=3, payload_bytes=80))
    live.event(turn(), record(2, None, tail=1, state=2, recalled=4, payload_bytes=70))
    answer = live.answers()[0]
    assert (answer.carried, answer.recalled, answer.payload_bytes) == (15, 7, 70)
    assert answer.rehydrated == 2 * 16  # the first segment was not flushed into
    assert (answer.flushed, live.flushed) == (2, 2)


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (None, State.DONE),
        (asyncio.CancelledError(), State.STOPPED),
        (GeneratorExit(), State.STOPPED),
        (InvalidRequest("no <b>"), State.REFUSED),
        (EngineFault("dead"), State.FAILED),
        (RuntimeError("bug"), State.FAILED),
    ],
)
def test_ends_are_told_apart(live: Live, error: BaseException | None, state: State) -> None:
    live.started(turn())
    live.event(turn(), output(3, 40))
    live.event(turn(), finished())
    live.ended(turn(), error)
    answer = live.answers()[0]
    assert (answer.state, answer.open, answer.resident, live.running) == (state, False, 0, 0)
    assert answer.curve[-1][1] == 0
    assert live.timeline.read(busy=False)[-1].resident == 0


def test_what_runs_comes_first_then_what_waits_then_what_has_ended(live: Live) -> None:
    for name in "abcd":
        live.started(turn(name))
    live.ended(turn("d"), None)
    live.ended(turn("b"), None)
    live.event(turn("a"), output(1, 9))  # the others wait
    assert [answer.id for answer in live.answers()] == ["a", "c", "b", "d"]
    assert live.answer("b") is live.answers()[2]
    assert live.answer("z") is None


def test_memory_stays_bounded(live: Live, clock: Clock) -> None:
    for name in range(2000):
        live.started(turn(str(name), "q" * 5000))
    for index in range(3000):
        clock.now += 1
        live.event(turn("0"), output(1, 10))
        live.event(turn("0"), record(index))
        live.event(turn("1999"), output(1, 10))  # not watched, still counted
    watched = live.answers()
    assert len(watched) == 256
    assert max(len(answer.question) for answer in watched) == 120
    assert max(len(answer.curve) for answer in watched) <= 360
    assert max(len(answer.segments) for answer in watched) <= 200
    assert live.generated == 6000
    assert live.running == 2000
    for name in range(2000):
        live.ended(turn(str(name)), None)
    assert len(live.answers()) == 64
    assert live.running == 0
    assert live.timeline.read(busy=False)[-1].resident == 0


def test_steps_of_a_moment_stand_at_their_highest(live: Live, clock: Clock) -> None:
    for blocks in (3, 8, 5):
        live.stepped(0, step(blocks, cached=blocks, waiting=blocks))
    live.event(turn(), output(4, 0))
    moment = live.timeline.read(busy=True)[-1]
    assert (moment.live, moment.cached, moment.waiting, moment.prefilled, moment.generated) == (80, 50, 8, 15, 4)


def test_a_rest_is_at_zero_and_a_long_step_is_not(clock: Clock) -> None:
    timeline = Timeline(clock)
    timeline.begin([10])
    timeline.stepped(0, step(4))
    clock.now += 10
    timeline.stepped(0, step(6, seconds=9.95))  # one step, all the while
    assert [moment.live for moment in timeline.read(busy=True)] == [40, 60]
    clock.now += 10
    timeline.stepped(0, step(7))
    assert [moment.live for moment in timeline.read(busy=True)] == [40, 60, 0, 0, 70]


@pytest.mark.parametrize("every", [0.1, 0.5, 0.7, 3.0])
def test_after_the_last_answer_memory_falls_to_zero_for_every_reader(clock: Clock, every: float) -> None:
    timeline = Timeline(clock)
    timeline.begin([10])
    timeline.stepped(0, step(4, cached=2))
    while clock.now < 1004:
        clock.now += every
        assert timeline.read(busy=True)[-1].live == 40  # a long step
    last = None
    while clock.now < 1010:
        clock.now += every
        last = timeline.read(busy=False)[-1]
    assert last is not None
    assert (last.live, last.running, last.cached) == (0, 0, 20)


def test_workers_add_up_while_they_step(clock: Clock) -> None:
    timeline = Timeline(clock)
    timeline.begin([10, 100])
    timeline.stepped(0, step(4, cached=1))
    timeline.stepped(1, step(2, cached=3))
    timeline.stepped(2, step(9))  # nobody told of it
    assert timeline.read(busy=True)[-1].live == 240
    for _ in range(10):
        clock.now += MOMENT_S
        timeline.stepped(0, step(5, cached=1))
    last = timeline.read(busy=True)[-1]
    assert (last.live, last.cached) == (50, 310)


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(0, 50)), max_size=60))
def test_time_goes_forward_and_never_beyond_the_span(events: list[tuple[float, int]]) -> None:
    clock = Clock()
    timeline = Timeline(clock)
    timeline.begin([1])
    for pause, blocks in events:
        clock.now += pause
        timeline.stepped(0, step(blocks, seconds=0.01))
        read = timeline.read(busy=bool(blocks % 2))
        places = [moment.index for moment in read]
        assert places == sorted(set(places))
        assert clock.now - SPAN_S <= read[0].at
        assert read[-1].at - MOMENT_S <= clock.now < read[-1].at
        assert read[-1].live >= blocks


def test_begin_takes_every_worker() -> None:
    def worker(per_token: int) -> Any:
        capabilities = SimpleNamespace(kv_bytes_per_token=per_token, block_tokens=16)
        return SimpleNamespace(backend=SimpleNamespace(capabilities=lambda: capabilities))

    members = {"a": worker(1), "b": worker(2)}

    live = Live(Clock())
    live.begin(cast(Any, SimpleNamespace(members=lambda: members, prompt_tokens=lambda turn: 77)))
    live.stepped(0, step(1))
    live.stepped(1, step(1))
    assert live.timeline.read(busy=True)[-1].live == 16 + 32
    live.started(turn())
    assert live.answers()[0].prompt == 77


def test_what_a_segment_leaves_is_kept_unless_it_is_large_or_of_a_plan(live: Live) -> None:
    def carried(data: bytes) -> Any:
        return SimpleNamespace(memory=SimpleNamespace(payload=SimpleNamespace(data=data)))

    planned = replace(turn("p"), plan="auto")
    for asked in (turn(), planned):
        live.started(asked)
        live.closed(asked, carried(b"first"))
        live.closed(asked, carried(b"second"))
    live.closed(turn("z"), carried(b"unknown"))
    kept = {answer.id: answer.payload for answer in live.answers()}
    assert kept == {"a": b"second", "p": b""}
    live.closed(turn(), carried(bytes(65537)))
    watched = live.answer("a")
    assert watched is not None
    assert watched.payload == b""
