"""What a trace says, and what it refuses to say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ghostkv.engine.stats import StepTrace
from ghostkv.errors import InvariantViolation
from ghostkv.request import BoundaryMark, Decision, SegmentUsage
from ghostkv.session.turn import SegmentRecord
from ghostkv.trace import Footing, Trace

FOOTING = Footing("m", "0", kv_budget=4 * 16 * 10, kv_bytes_per_token=10, block_tokens=16)


def step(index: int, prefill: int, decode: int, live: int = 3) -> StepTrace:
    return StepTrace(index, float(index), 0.1, decode, prefill, 1, 0, live, 0, 1)


def segment(index: int, prompt: int, cached: int, generated: int) -> SegmentRecord:
    usage = SegmentUsage(prompt, cached, generated, prompt + generated - 1, 0.0, 0.1, 0.1)
    return SegmentRecord(index, usage, BoundaryMark("line", Decision.FLUSH), 0)


def two_segments() -> Trace:
    """20 prompt tokens in two chunks and 3 output tokens; then 24, of which 16 are cached, and 2."""
    steps = [step(0, 16, 0), step(1, 4, 0), step(2, 0, 1), step(3, 0, 1), step(4, 8, 0), step(5, 0, 1, live=4)]
    return Trace(steps, [segment(0, 20, 0, 3), segment(1, 24, 16, 2)])


def test_filled_slots_are_a_saw_tooth() -> None:
    assert two_segments().filled_tokens() == [16, 20, 21, 22, 24, 25]


def test_steps_of_another_session_are_noticed() -> None:
    trace = two_segments()
    trace.steps[4] = replace(trace.steps[4], prefill_tokens=30)
    with pytest.raises(InvariantViolation, match="segment 1 ended with 25"):
        trace.filled_tokens()
    trace.steps = trace.steps[:3]
    with pytest.raises(InvariantViolation, match="no steps"):
        trace.filled_tokens()


def test_a_window_fills_and_stays_full() -> None:
    long = segment(0, 40, 0, 4)
    record = replace(long, usage=replace(long.usage, resident_tokens=30))
    trace = Trace([step(0, 24, 0), step(1, 16, 0), *(step(i, 0, 1) for i in (2, 3, 4))], [record])
    assert trace.filled_tokens() == [24, 30, 30, 30, 30]


def test_the_budget() -> None:
    trace = two_segments()
    trace.check_budget(FOOTING)
    assert trace.peak_live_bytes(FOOTING) == 4 * 16 * 10
    trace.steps.append(step(6, 0, 1, live=5))
    with pytest.raises(InvariantViolation, match="step 6: 800 bytes"):
        trace.check_budget(FOOTING)


def test_lines(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "trace.jsonl"
    two_segments().write(path, FOOTING)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["header", *["step"] * 6, *["segment"] * 2]
    assert lines[0]["kv_budget"] == 640
    assert lines[-1]["usage"]["cached_tokens"] == 16
    assert (lines[-1]["boundary"]["kind"], lines[-1]["boundary"]["decision"]) == ("line", "flush")
