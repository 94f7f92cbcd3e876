"""How long known work takes, against counting it by hand and against the simulator."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ghostkv.engine.forecast import Forecast, Work
from ghostkv.engine.step_cost import StepTimes
from ghostkv.residency import policy
from ghostkv.sim.simulation import Setup, Simulation
from ghostkv.sim.workload import Workload, equal_jobs

TIMES = StepTimes(base=0.0155, row=0.000585, prefill=0.00031, read=0.0)


def forecast(blocks: int, times: StepTimes = TIMES) -> Forecast:
    return Forecast(times, blocks, max_sequences=128, recomputed=0.5)


def new(prompt: int, left: int) -> Work:
    return Work(prompt, left, flushed=prompt + 132, segment=192, reserved=min(192, left), computed=prompt)


def test_what_fits_runs_side_by_side_and_ends_in_order() -> None:
    ends = forecast(100).whole_s([new(16, 100), new(16, 300)])
    both = 32 * TIMES.prefill + 100 * TIMES.step(2)
    assert ends == pytest.approx((both, both + 200 * TIMES.step(1)))


def test_what_does_not_fit_waits_for_the_first_that_ends() -> None:
    each = 100 * TIMES.step(1) + 16 * TIMES.prefill
    assert forecast(10).whole_s([new(16, 100)] * 3) == pytest.approx((each, 2 * each, 3 * each))


def test_by_segments_more_run_than_fit_whole() -> None:
    works = [new(48, 1000)] * 6
    whole, parts = forecast(136).whole_s(works), forecast(136).parts_s(works)
    assert max(parts) < 0.5 * max(whole)
    assert len({round(end, 6) for end in parts}) == 1  # five and a bit fit, and all six take turns


def test_what_is_never_flushed_is_kept_either_way() -> None:
    works = [Work(48, 400, flushed=0, segment=400, reserved=400, computed=48)] * 4
    assert forecast(60).parts_s(works) == pytest.approx(forecast(60).whole_s(works), rel=0.35)


@settings(max_examples=25, deadline=None)
@given(st.integers(6, 30), st.integers(16, 200), st.integers(330, 900), st.integers(30, 300))
def test_as_long_as_the_simulator_takes(users: int, prompt: int, output: int, blocks: int) -> None:
    """Whole answers are counted exactly but for the steps that a prefill shares; segments are a fluid of many."""
    blocks = max(blocks, -(-(prompt + max(output, 330)) // 16) + 1, 4 * 33)
    workload = Workload(equal_jobs(users, prompt, output), blocks)
    works = [new(prompt, output)] * users
    full, segment = (Simulation(workload, policy(name), Setup(TIMES)).run() for name in ("full", "segment"))
    found = forecast(blocks)
    assert max(found.whole_s(works)) == pytest.approx(full.seconds, rel=0.1, abs=0.2)
    assert max(found.parts_s(works)) == pytest.approx(segment.seconds, rel=0.35, abs=0.5)
