"""Numbers from replies, against cases that can be counted by hand."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ghostkv.pressure.cells import Cell, Job
from ghostkv.pressure.measures import measure, percentile
from ghostkv.pressure.replies import Reply

JOB = Job(7, 4)


def reply(asked: float, *arrivals: tuple[float, int], outcome: str = "complete", job: Job = JOB) -> Reply:
    ended = arrivals[-1][0] if arrivals else asked + 1
    return Reply(job, asked, ended, outcome, arrivals, 7, arrivals[-1][1] if arrivals else 0)


def cell(*replies: Reply, timeout_s: float = 600.0) -> Cell:
    return Cell("test", "test", tuple(each.job for each in replies), 64, timeout_s)


def test_what_did_not_complete_is_lost() -> None:
    replies = [
        reply(0.0, (1.0, 1), (2.0, 4)),
        reply(0.0, (1.0, 1), (10.0, 3), outcome="timeout"),
        reply(5.0, outcome="refused"),
    ]
    found = measure(cell(*replies), replies)
    assert (found["tokens"], found["tokens_lost"], found["wall_s"]) == (4, 3, 10.0)
    assert found["tokens_per_second"] == 0.4
    assert found["outcomes"] == {"complete": 1, "timeout": 1, "refused": 1}
    assert found["timeouts"]["30"]["success"] == 0.3333


def test_patience_and_goodness() -> None:
    quick = reply(0.0, (1.0, 1), (9.0, 4))
    silent = reply(0.0, (1.0, 1), (12.0, 4))  # eleven seconds of silence
    late = reply(0.0, (31.0, 1), (32.0, 4))  # begins after 30 s, and is over after them
    replies = [quick, silent, late]
    found = measure(cell(*replies), replies)
    within = found["timeouts"]
    assert (within["30"]["success"], within["30"]["good"]) == (0.6667, 0.3333)
    assert (within["120"]["success"], within["120"]["good"]) == (1.0, 0.3333)
    assert within["30"]["tokens_per_second"] == round(8 / 32, 3)
    assert found["silence_s"]["max"] == 11.0
    assert found["first_s"]["p50"] == 1.0


def test_a_run_says_nothing_of_clients_more_patient_than_its_own() -> None:
    replies = [reply(0.0, (1.0, 4))]
    assert set(measure(cell(*replies, timeout_s=120.0), replies)["timeouts"]) == {"30", "120"}


def test_background_jobs_are_counted_apart() -> None:
    chat = replace(JOB, tenant="chat")
    load = replace(JOB, tenant="batch", background=True)
    replies = [reply(0.0, (2.0, 4), job=chat), reply(0.0, (1.0, 2), (50.0, 3), outcome="stopped", job=load)]
    found = measure(cell(*replies), replies)
    assert (found["wall_s"], found["tokens"], found["outcomes"]) == (2.0, 4, {"complete": 1})
    assert found["background"]["outcomes"] == {"stopped": 1}
    assert found["tenants"]["chat"]["first_s"]["p95"] == 2.0


@given(st.lists(st.integers(0, 50), min_size=1), st.sampled_from([0.5, 0.95, 0.99, 1.0]))
def test_a_percentile_is_the_least_value_that_so_many_do_not_exceed(values: list[int], share: float) -> None:
    found = percentile(sorted(values), share)
    assert found in values
    assert sum(each <= found for each in values) >= share * len(values) - 1e-9
    assert sum(each < found for each in values) < share * len(values)


def test_nothing_has_no_percentile() -> None:
    assert percentile([], 0.5) is None
    assert measure(Cell("test", "test", (JOB,), 64), [reply(0.0, outcome="refused")])["request_s"]["p50"] is None
