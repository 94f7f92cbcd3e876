"""What keeping and flushing are predicted to give, on costs that are known."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ghostkv.engine.controller import Controller, Outlook, Pressure
from ghostkv.engine.step_cost import StepCost, StepTimes

TIMES = StepTimes(base=0.0155, row=0.000585, prefill=0.00031, read=0.0)


class Known(StepCost):
    def __init__(self, times: StepTimes = TIMES) -> None:
        super().__init__()
        self._known = times

    def times(self) -> StepTimes:
        return self._known


def controller(blocks: int = 136, times: StepTimes = TIMES) -> Controller:
    return Controller(Known(times), blocks, max_sequences=128)


def outlook(prompt: int, left: int) -> Outlook:
    return Outlook(prompt, left, flushed=48 + 132, segment=192)


@pytest.mark.parametrize(
    ("blocks", "output", "users", "whole"),
    [
        (136, 250, 7, True),  # all fit
        (136, 250, 8, False),  # the eighth would run alone
        (136, 1000, 64, False),
        (136, 4000, 64, False),  # the pool does not hold one
        (136, 1000, 2, True),  # both fit
        (136, 1000, 3, False),
        (5000, 1000, 64, True),  # all fit
    ],
)
def test_room_for_the_whole_answer(blocks: int, output: int, users: int, whole: bool) -> None:
    assert controller(blocks).whole_pays(outlook(48, output), Pressure(0, users, 0)) is whole


def test_a_flush_gains_nothing_while_nobody_waits_or_nothing_is_freed() -> None:
    assert controller().gain(outlook(2000, 900), Pressure(8, 0, 6000)) == 0.0
    assert controller().gain(outlook(180, 900), Pressure(8, 9, 2000, head_tokens=240)) == 0.0


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 60), st.integers(1, 100), st.integers(200, 4000), st.integers(40, 800))
def test_the_gain_is_what_others_make_meanwhile(running: int, waiting: int, resident: int, head: int) -> None:
    """Against counting step by step: a segment with and without those that come in, at whole numbers of them."""
    asked, pressure = outlook(resident, 5000), Pressure(running, waiting, 0, head)
    found = controller(10_000)
    freed = -(-(resident + 192) // 16) - -(-(180 + 192) // 16)
    if freed <= 0:
        assert found.gain(asked, pressure) == 0.0
        return
    more = min(freed / -(-head // 16), waiting, 128 - running)
    keep_s = sum(TIMES.step(running) for _ in range(192))
    flush_s = sum(TIMES.step(running + more) for _ in range(192)) + 0.5 * 180 * TIMES.prefill
    lead = (running + more) * 192 / flush_s * keep_s - running * 192  # tokens, in the time that keeping takes
    assert found.gain(asked, pressure) == pytest.approx(lead / 192)


def test_what_answers_use_of_what_they_may_is_learned() -> None:
    found = controller()
    assert found.expected(0, 1000) == 1000
    for _ in range(200):
        found.ended(100, 400)
    assert found.expected(0, 1000) == pytest.approx(250, abs=2)
    assert found.expected(600, 400) == pytest.approx(100, abs=2)  # past what was likely: the same share of the rest
    assert found.expected(999, 1) == 1


def test_what_is_found_in_the_index_makes_a_flush_cheaper() -> None:
    dear, cheap = controller(), controller()
    for _ in range(50):
        dear.resumed(180, 180)
        cheap.resumed(180, 10)
    asked, pressure = outlook(900, 900), Pressure(6, 20, 3000, head_tokens=240)
    assert cheap.gain(asked, pressure) > dear.gain(asked, pressure)


@pytest.mark.parametrize("tile", [0.0, 0.003])
def test_costs_are_found_again_from_steps_of_all_kinds(tile: float) -> None:
    tile_rows = 8 if tile else 1
    cost, true = StepCost(tile_rows), StepTimes(0.016, 0.0007, 0.0006, 1.7e-6, tile=tile, tile_rows=tile_rows)
    for i in range(1500):
        rows, prefill, read = 1 + i * 7 % 60, (0, 0, 0, 180, 512)[i % 5], (1 + i * 7 % 60) * (50 + i * 13 % 900)
        cost.observe(rows, true.step(rows, read, prefill), prefill=prefill, read=read)
    times = cost.times()
    assert (times.base, times.read) == pytest.approx((true.base, true.read), rel=0.05)
    if tile:  # a tile of prompt tokens looks nearly like that many
        assert (times.row, times.tile) == pytest.approx((true.row, tile), rel=0.25)
        assert times.step(20, 0, 64) == pytest.approx(true.step(20, 0, 64), rel=0.02)
    else:
        assert (times.row, times.prefill) == pytest.approx((true.row, true.prefill), rel=0.05)


def test_costs_before_the_first_step_have_the_proportions_of_a_small_machine() -> None:
    times = StepCost().times()
    assert times.base == 1.0 and 0 < times.read < times.prefill <= times.row < times.base
