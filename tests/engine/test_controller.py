"""What keeping and flushing are predicted to give, on costs that are known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ghostkv.engine.controller import Controller
from ghostkv.engine.forecast import Forecast, Work
from ghostkv.engine.step_cost import StepCost, StepTimes
from ghostkv.residency.auto import LEAST_GAIN

TIMES = StepTimes(base=0.0155, row=0.000585, prefill=0.00031, read=0.0)


class Known(StepCost):
    def __init__(self, times: StepTimes = TIMES) -> None:
        super().__init__()
        self._known = times

    def times(self) -> StepTimes:
        return self._known


def controller(blocks: int = 136, times: StepTimes = TIMES) -> Controller:
    return Controller(Known(times), blocks, max_sequences=128)


def answers(count: int, output: int, prompt: int = 48) -> list[Work]:
    """New ones, all alike."""
    segment = min(192, output)
    return [Work(prompt, output, flushed=prompt + 132, segment=segment, reserved=segment, computed=prompt)] * count


@pytest.mark.parametrize(
    ("blocks", "output", "users", "flushes"),
    [
        (136, 250, 7, False),  # all fit
        (136, 250, 8, True),  # the eighth would run alone
        (136, 1000, 64, True),
        (136, 4000, 64, True),  # the pool does not hold one
        (136, 1000, 2, False),  # both fit
        (136, 1000, 3, True),
        (5000, 1000, 64, False),  # all fit
    ],
)
def test_what_flushing_is_worth(blocks: int, output: int, users: int, flushes: bool) -> None:
    assert (controller(blocks).gain(answers(users, output)) >= LEAST_GAIN) is flushes


def test_nothing_is_worth_a_flush_while_all_fit_even_where_shorter_texts_would_be_read_faster() -> None:
    reading = StepTimes(base=0.0155, row=0.000585, prefill=0.00031, read=1e-5)
    found = controller(20 * 66, reading)
    assert found.gain(answers(20, 1000)) == 0.0
    assert found.gain(answers(21, 1000)) > 0.0


def test_the_gain_is_what_the_two_ways_take() -> None:
    """Three at a time against five and a bit, by hand."""
    works = answers(12, 600)
    whole_s = 4 * 600 * TIMES.step(3) + 12 * 48 * TIMES.prefill
    assert controller(3 * 41).gain(works) == pytest.approx(whole_s / max(_parts(3 * 41, works)) - 1)


def _parts(blocks: int, works: list[Work]) -> tuple[float, ...]:
    return Forecast(TIMES, blocks, max_sequences=128, recomputed=0.5).parts_s(works)


def test_a_turn_costs_at_least_its_prefill_and_more_where_it_leaves_one_to_run_alone() -> None:
    found, others = controller(150), answers(10, 200)
    short, long = (Work(150, left, flushed=180, segment=192, reserved=0) for left in (40, 900))
    again = {work.left: replace(work, prompt=180, computed=90) for work in (short, long)}
    least = TIMES.prefill * 0.5 * 180
    assert found.turn_s([short, *others], again[40]) >= least
    assert found.turn_s([long, *others], again[900]) > 20 * least  # it would end long after all else


def test_turns_are_paid_from_a_share_of_the_time_that_somebody_has_waited_too_long() -> None:
    found = controller()
    assert found.turns(0.5) == 0.0
    for _ in range(100):
        found.overdue(1.0)
    assert found.turns(0.5) == pytest.approx(6.0)  # 3 %
    found.took_turn(0.5)
    assert found.turns(0.5) == pytest.approx(5.0)


def test_answers_that_can_be_had_again_are_kept_while_that_costs_little() -> None:
    works = answers(40, 600)
    assert controller(600).spares(works, [i == 0 for i in range(40)])
    assert not controller(600).spares(works, [i < 30 for i in range(40)])


def test_what_answers_use_of_what_they_may_is_learned() -> None:
    found = controller()
    assert found.expected(0, 1000) == 500 and not found.learned
    found.ended(1000, 1000)
    assert found.expected(0, 1000) == 750  # what was assumed counts as one answer
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
    assert cheap.gain(answers(26, 900)) > dear.gain(answers(26, 900))


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
