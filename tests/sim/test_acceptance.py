from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ghostkv.cli import app
from ghostkv.engine.step_cost import StepTimes
from ghostkv.errors import ConfigError
from ghostkv.residency import policy
from ghostkv.sim.acceptance import LEAST, trials
from ghostkv.sim.hardware import read_hardware
from ghostkv.sim.simulation import Setup, Simulation
from ghostkv.sim.workload import Workload, equal_jobs, random_workload

LINE = StepTimes(0.01454, 0.000909, 0.000626, 0.0)  # benchmarks/step_line.json: reading costs nothing of its own


def test_the_workloads_are_the_same_for_everyone_and_each_job_fits() -> None:
    for seed in range(200):
        workload = random_workload(seed)
        assert workload == random_workload(seed)
        for job in workload.jobs:
            assert 0 < job.output <= job.max_tokens
            assert -(-(job.prompt + job.max_tokens) // 16) <= workload.blocks


def test_auto_is_as_fast_as_the_better_of_the_others() -> None:
    """The short form of `ghostkv sim --acceptance 1000`."""
    found = list(trials(range(100, 108), Setup(LINE)))
    assert min(trial.share for trial in found) >= LEAST
    assert sum(trial.flushes["auto"] for trial in found) > 5
    assert any(trial.rates["segment"] > 1.2 * trial.rates["full"] for trial in found)  # there was something to choose


@pytest.mark.parametrize("name", ["full", "segment", "auto"])
def test_everything_ends_within_memory_and_nothing_is_lost(name: str) -> None:
    jobs = equal_jobs(20, 40, 300, spread_s=0.5, tenants=3)
    outcome = Simulation(Workload(jobs, 60), policy(name), Setup(LINE)).run()
    assert len(outcome.ended) == 20 and outcome.tokens == 20 * 300
    assert outcome.peak_blocks <= 60
    assert all(0 < answer.first_token_s <= answer.latency_s for answer in outcome.ended)


def test_with_memory_for_all_auto_is_full() -> None:
    for pressure in (0.25, 1.0):
        jobs = equal_jobs(24, 48, 600)
        blocks = round(24 * -(-648 // 16) / pressure)
        full, auto = (Simulation(Workload(jobs, blocks), policy(name), Setup()).run() for name in ("full", "auto"))
        assert auto.flushes == 0
        assert (auto.seconds, auto.steps) == (full.seconds, full.steps)


def test_whoever_waits_too_long_gets_a_turn() -> None:
    jobs = equal_jobs(12, 48, 2000)
    setup = Setup(LINE)
    blocks = 5 + 2 * 128
    full, auto = (Simulation(Workload(jobs, blocks), policy(name), setup).run() for name in ("full", "auto"))
    assert auto.first_token_s(0.99) < full.first_token_s(0.99) / 2


def test_costs_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    file.write_text('{"base": 0.02, "row": 0.001, "prefill": 0.0005, "read": 0}')
    assert read_hardware(file) == StepTimes(0.02, 0.001, 0.0005, 0.0)
    for text in ("", "{}", "no json", '{"sequences": 1}'):
        file.write_text(text)
        with pytest.raises(ConfigError, match="holds no step costs"):
            read_hardware(file)


def test_the_command_prints_the_policies_and_the_acceptance(tmp_path: Path) -> None:
    ran = CliRunner().invoke(app, ["sim", "--users", "8", "--tokens", "200", "--pool", "900"])
    assert ran.exit_code == 0, ran.output
    assert all(name in ran.output for name in ("full", "segment", "auto", "simulated"))
    out = tmp_path / "trials.jsonl"
    ran = CliRunner().invoke(app, ["sim", "--acceptance", "2", "--first", "100", "--out", str(out)])
    assert ran.exit_code == 0, ran.output
    assert "0 of 2 below 0.95" in ran.output and len(out.read_text().splitlines()) == 2
