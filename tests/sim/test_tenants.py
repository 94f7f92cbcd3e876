"""Programs of one tenant under `auto`, in a pool that they fill."""

from __future__ import annotations

from itertools import pairwise

from ghostkv.engine.admission import Limits
from ghostkv.engine.order import OUTPUT_CHARGE, PROMPT_CHARGE
from ghostkv.engine.step_cost import StepTimes
from ghostkv.residency import policy
from ghostkv.sim.simulation import Setup, Simulation
from ghostkv.sim.workload import Job, Workload
from ghostkv.step import BLOCK_TOKENS, Runner, StepPlan, StepResult

LINE = StepTimes(0.01454, 0.000909, 0.000626, 0.0)
NEVER = Setup(LINE, Limits(max_context=8192, max_waiting=9999, max_wait_s=1e9))  # nobody gets a turn for waiting
CAP = 192


def test_programs_under_auto_differ_by_no_more_than_the_bound_and_a_segment_at_every_step() -> None:
    prompt, blocks = 60, 120
    jobs = [
        Job(f"{name}{i}", 0.0, prompt, 400, 400, program=name)
        for name, count in (("many", 30), ("few", 10), ("some", 14))
        for i in range(count)
    ]
    seen: list[dict[str, float]] = []
    watched: list[Simulation] = []

    class Watch:
        def __init__(self, runner: Runner) -> None:
            self._runner = runner

        def run(self, plan: StepPlan) -> StepResult:
            line = watched[0].scheduler._line
            account = line._accounts[""]
            if len(account.waiting) == 3:
                seen.append(line.programs(""))
            return self._runner.run(plan)

    simulation = Simulation(Workload(tuple(jobs), blocks), policy("auto"), NEVER, wrap=Watch)
    watched.append(simulation)
    outcome = simulation.run()
    assert len(outcome.ended) == len(jobs) and len(seen) > 500
    segment = PROMPT_CHARGE * (prompt + 132) + OUTPUT_CHARGE * CAP
    bound = 2 * OUTPUT_CHARGE * blocks * BLOCK_TOKENS + segment
    assert all(max(each.values()) - min(each.values()) <= bound for each in seen)
    for before, after in pairwise(seen):
        assert all(after[name] >= before[name] for name in before)  # a charge is never taken back
