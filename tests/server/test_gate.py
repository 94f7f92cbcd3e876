"""The line: what it holds, what is refused, and when those who were refused are to come again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fakes import VirtualClock
from ghostkv.errors import Draining, GhostError, InvalidRequest, Overloaded
from ghostkv.request import Token
from ghostkv.server.gate import Asked, Gate, Place, Room
from ghostkv.session.turn import Output

WIDE = Room(1000, 10**9)


def nobody(error: GhostError) -> None:
    raise AssertionError("not asked to end")


def spoke(tokens: int) -> Output:
    return Output(tuple(Token(7) for _ in range(tokens)), "x" * tokens)


def enter(gate: Gate, *costs: tuple[int, int], room: Room = WIDE, **more: Any) -> list[Place]:
    return gate.enter([Asked(*cost) for cost in costs], room, nobody, **more)


def measured(clock: VirtualClock, gate: Gate, rate: int = 100, answer: int = 100) -> None:
    """Enough answers of `answer` tokens, at `rate` tokens per second, that both are known."""
    for _ in range(100):
        [place] = enter(gate, (0, answer))
        clock.advance(answer / rate)
        gate.took(place, spoke(answer))
        gate.leave(place)


def refusal(ask: Callable[[], object]) -> int:
    with pytest.raises(Overloaded) as caught:
        ask()
    assert f"try again in {caught.value.retry_after} s" in caught.value.message
    return caught.value.retry_after


def test_an_answer_is_in_line_until_its_first_token_and_inside_until_its_end() -> None:
    gate = Gate(VirtualClock().now)
    first, second = enter(gate, (10, 5), (20, 7))
    assert (gate.waiting, gate.waiting_tokens, gate.inside) == (2, 42, 2)
    gate.took(first, spoke(1))
    gate.took(first, spoke(1))
    assert (gate.waiting, gate.waiting_tokens, gate.inside) == (1, 27, 2)
    gate.leave(second)  # went away while it waited
    assert (gate.waiting, gate.inside) == (0, 1)
    gate.leave(first)
    assert (gate.waiting, gate.waiting_tokens, gate.inside) == (0, 0, 0)


def test_all_answers_of_a_request_enter_or_none() -> None:
    gate, room = Gate(VirtualClock().now), Room(3, 1000)
    enter(gate, (1, 1), (1, 1), room=room)
    refusal(lambda: enter(gate, (1, 1), (1, 1), room=room))
    assert gate.waiting == 2
    enter(gate, (1, 1), room=room)
    refusal(lambda: enter(gate, (1, 1), room=room))


def test_more_answers_than_the_line_ever_holds_are_no_matter_of_waiting() -> None:
    gate = Gate(VirtualClock().now)
    with pytest.raises(InvalidRequest, match=r"4 answers .* at most 3"):
        enter(gate, *[(1, 1)] * 4, room=Room(3, 1000))


def test_the_line_is_bounded_in_tokens_too_but_an_empty_one_takes_any_request() -> None:
    gate, room = Gate(VirtualClock().now), Room(10, 100)
    [huge] = enter(gate, (500, 500), room=room)
    refusal(lambda: enter(gate, (1, 1), room=room))
    gate.took(huge, spoke(1))
    enter(gate, (40, 10), room=room)
    enter(gate, (40, 10), room=room)
    refusal(lambda: enter(gate, (0, 1), room=room))


def test_retry_after_is_the_work_in_line_at_the_measured_speed() -> None:
    clock = VirtualClock()
    gate = Gate(clock.now)
    measured(clock, gate, rate=100, answer=100)
    room = Room(4, 10**9)
    for _ in range(4):
        enter(gate, (200, 5000), room=room)  # 200 to read and about 100 to write, whatever is allowed
    assert gate.wait_s == pytest.approx(4 * 300 / 100, rel=0.02)
    assert refusal(lambda: enter(gate, (0, 1), room=room)) in (12, 13)


def test_those_who_were_refused_come_back_one_after_another() -> None:
    clock = VirtualClock()
    gate = Gate(clock.now)
    measured(clock, gate, rate=100, answer=100)
    room = Room(1, 10**9)
    enter(gate, (0, 1000), room=room)  # 1 s
    times = [refusal(lambda: enter(gate, (0, 1000), room=room)) for _ in range(100)]
    assert times[0] in (1, 2)
    assert times == sorted(times)
    assert times[20] - times[0] in (19, 20, 21)  # 1 s each
    assert times[-1] == 60  # clients do not heed more
    clock.advance(1000)
    assert refusal(lambda: enter(gate, (0, 1000), room=room)) in (1, 2)  # promises are forgotten


def test_a_speed_that_was_never_measured_still_gives_a_sensible_time() -> None:
    gate, room = Gate(VirtualClock().now), Room(1, 10**9)
    enter(gate, (1, 1), room=room)
    assert refusal(lambda: enter(gate, (1, 1), room=room)) == 1


def test_speed_is_that_of_the_best_of_the_latest_busy_seconds() -> None:
    clock = VirtualClock()
    gate = Gate(clock.now)
    [alone] = enter(gate, (0, 10**6))
    for _ in range(50):  # one answer, 10 tokens a second
        clock.advance(0.1)
        gate.took(alone, spoke(1))
    assert gate.pace.rate == pytest.approx(10)
    many = enter(gate, *[(0, 10**6)] * 9)
    for _ in range(20):  # ten side by side
        clock.advance(0.1)
        for place in (alone, *many):
            gate.took(place, spoke(1))
    assert gate.pace.rate == pytest.approx(100, rel=0.11)
    for place in many:
        gate.leave(place)
    for _ in range(30):  # one again: a line would still move at the speed of ten
        clock.advance(0.1)
        gate.took(alone, spoke(1))
    assert gate.pace.rate > 50
    gate.leave(alone)
    before = gate.pace.rate
    clock.advance(10_000)  # nothing to do is not slowness
    [late] = enter(gate, (0, 10))
    clock.advance(0.5)
    gate.took(late, spoke(5))
    assert gate.pace.rate == before


def test_a_deadline_that_would_pass_in_line_is_refused_at_once() -> None:
    clock = VirtualClock()
    gate = Gate(clock.now)
    measured(clock, gate, rate=100, answer=100)
    for _ in range(10):
        enter(gate, (0, 1000))  # 10 s of work
    enter(gate, (0, 1000), deadline_s=1)  # all came at once: the line may be moving in a moment
    clock.advance(2)  # it did not
    assert refusal(lambda: enter(gate, (0, 1000), deadline_s=5)) >= 10
    enter(gate, (0, 1000), deadline_s=20)
    enter(gate, (0, 1000))  # none named: it may wait


def test_before_anything_was_measured_no_deadline_is_refused() -> None:
    clock = VirtualClock()
    gate = Gate(clock.now)
    enter(gate, *[(1000, 1000)] * 50)
    clock.advance(5)
    enter(gate, (1000, 1000), deadline_s=0.001)


def test_a_closed_gate_lets_nobody_in_and_says_for_how_long() -> None:
    clock = VirtualClock()
    gate = Gate(clock.now)
    [place] = enter(gate, (1, 1))
    gate.close(10)
    clock.advance(2.5)
    with pytest.raises(Draining) as caught:
        enter(gate, (1, 1))
    assert caught.value.retry_after == 8
    assert gate.inside == 1
    gate.leave(place)
    clock.advance(100)
    with pytest.raises(Draining) as caught:
        gate.check_open()
    assert caught.value.retry_after == 1


def test_ending_all_gives_each_an_error_of_its_own() -> None:
    gate, errors = Gate(VirtualClock().now), list[GhostError]()
    places = gate.enter([Asked(1, 1), Asked(1, 1)], WIDE, errors.append)
    gate.took(places[0], spoke(1))
    gate.end_all(lambda: Draining("over"))
    assert len(errors) == 2 and errors[0] is not errors[1]
