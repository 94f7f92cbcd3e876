"""Deadlines: met, refused at once with the predicted seconds, or ended with a reason; never silently late."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ghostkv.engine.admission import Limits
from ghostkv.engine.step_cost import StepTimes
from ghostkv.residency import policy
from ghostkv.sim.simulation import Outcome, Setup, Simulation
from ghostkv.sim.workload import Job, Workload, equal_jobs, random_workload

LINE = StepTimes(0.01454, 0.000909, 0.000626, 0.0)
STEP_S = 0.5  # the longest: 512 prompt tokens beside what decodes


def run(jobs: tuple[Job, ...], blocks: int, residency: str = "auto") -> Outcome:
    setup = Setup(LINE, Limits(max_context=8192, max_waiting=9999))
    return Simulation(
        Workload(tuple(sorted(jobs, key=lambda job: job.arrival)), blocks), policy(residency), setup
    ).run()


@pytest.mark.parametrize("residency", ["full", "segment", "auto"])
@pytest.mark.parametrize("seed", [3, 7, 12, 31])
def test_no_answer_is_silently_late(seed: int, residency: str) -> None:
    rng, workload = random.Random(seed), random_workload(seed, most_tokens=4000)
    jobs = tuple(
        replace(job, deadline_s=rng.choice((None, 0.5, 3.0, 10.0, 40.0)), program=rng.choice("ab"))
        for job in workload.jobs
    )
    outcome = run(jobs, workload.blocks, residency)
    assert {answer.job for answer in outcome.ended} | {missed.job for missed in outcome.missed} == set(jobs)
    assert len(outcome.ended) + len(outcome.missed) == len(jobs)
    for answer in outcome.ended:
        assert answer.job.deadline_s is None or answer.latency_s <= answer.job.deadline_s + STEP_S
    for missed in outcome.missed:
        assert missed.job.deadline_s is not None and missed.why
        assert missed.at <= missed.job.deadline_s + STEP_S
    assert outcome.ended and outcome.missed


def test_what_the_line_will_not_reach_is_refused_at_once() -> None:
    busy = equal_jobs(20, 48, 400)
    asked = tuple(Job(f"q{i}", 8.0, 48, 50, 50, deadline_s=seconds) for i, seconds in enumerate((2.0, 12.0, 600.0)))
    outcome = run((*busy, *asked), 90, "full")  # three at a time; a wave takes 7 s, and the next has just begun
    (missed,) = outcome.missed
    assert missed.job.name == "q0" and missed.at == 0.0
    assert "predicted to be complete in" in missed.why and "try again" in missed.why
    assert {"q1", "q2"} <= {answer.job.name for answer in outcome.ended}


def test_what_takes_too_long_even_alone_is_refused_for_good() -> None:
    jobs = (Job("first", 0.0, 48, 300, 300), Job("long", 20.0, 48, 300, 300, deadline_s=2.0))
    (missed,) = run(jobs, 200).missed
    assert missed.job.name == "long" and missed.at == 0.0
    assert "with nothing else running" in missed.why and "deadline of 2 s" in missed.why
    assert run((jobs[0], replace(jobs[1], deadline_s=9.0)), 200).missed == ()


def test_the_prediction_is_about_what_comes() -> None:
    """With 20 % more than was predicted it is met, with 20 % less it is refused."""
    busy = equal_jobs(12, 48, 200)
    probe = Job("probe", 8.0, 48, 100, 100)
    took = next(answer.latency_s for answer in run((*busy, probe), 64, "full").ended if answer.job == probe)
    for factor, met in ((0.8, False), (1.25, True)):
        outcome = run((*busy, replace(probe, deadline_s=factor * took)), 64, "full")
        assert bool(outcome.missed) is not met
        assert all(each.at == 0.0 for each in outcome.missed)


def test_before_anything_was_measured_nothing_is_refused_and_what_runs_ends_with_its_deadline() -> None:
    (missed,) = run((Job("only", 0.0, 48, 300, 300, deadline_s=2.0),), 200).missed
    assert 2.0 <= missed.at <= 2.0 + STEP_S and missed.tokens > 20
    assert missed.why == f"its deadline passed after {missed.tokens} output tokens"


def test_a_request_in_line_that_becomes_impossible_ends_there() -> None:
    """It was let in when nothing had been measured; then others of its tenant, with nearer deadlines, went first."""
    jobs = (*equal_jobs(3, 48, 400), Job("waits", 0.0, 48, 300, 300, deadline_s=8.0))
    (missed,) = run(jobs, 30, "full").missed
    assert missed.job.name == "waits" and missed.tokens == 0
    assert "more and its deadline is in" in missed.why and missed.at < 8.0


def test_the_earliest_deadline_runs_first() -> None:
    busy = equal_jobs(1, 48, 200)
    asked = tuple(Job(f"q{i}", 0.1 + i / 100, 48, 100, 100, deadline_s=60.0 - 10 * i) for i in range(4))
    outcome = run((*busy, *asked), 20, "full")
    order = sorted(outcome.ended, key=lambda answer: answer.job.arrival + answer.latency_s)
    assert [answer.job.name for answer in order] == ["u0", "q3", "q2", "q1", "q0"]
