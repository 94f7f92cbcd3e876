from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ghostkv.request import BoundaryView, Decision
from ghostkv.residency import DEFAULT_RESIDENCY, SegmentBudget, policy
from ghostkv.residency.recorded import Recorded

QUIET = BoundaryView("sentence", 300, 150, 900, free_blocks=0, waiting=3, reserved=42, max_wait_s=10.0, turns=1.0)
AUTO = policy("auto")


def test_it_is_the_default_with_the_constants_of_segment() -> None:
    segment = policy("segment").budget
    assert DEFAULT_RESIDENCY == "auto" and segment is not None
    assert AUTO.budget == replace(segment, whole=True)
    assert [AUTO.reserve(n) for n in (1, 64, 192, 5000)] == [1, 64, 192, 192]


@pytest.mark.parametrize(
    ("changes", "decision"),
    [
        ({}, Decision.KEEP),
        ({"gain": 0.0999}, Decision.KEEP),
        ({"gain": 0.1}, Decision.FLUSH),
        ({"waited_s": 9.99}, Decision.KEEP),
        ({"waited_s": 10.0}, Decision.FLUSH),
        ({"waited_s": 10.0, "turns": 0.9}, Decision.KEEP),  # the turns so far have cost enough
        ({"gain": 0.05, "waited_s": 99.0, "waiting": 0}, Decision.KEEP),  # nobody would come in
        ({"gain": 0.1, "waiting": 0}, Decision.FLUSH),  # those who run are in each other's way
        ({"gain": 5.0, "waited_s": 99.0, "repeatable": True, "others": 1}, Decision.KEEP),  # they go first
        ({"gain": 0.1, "repeatable": True, "others": 0}, Decision.FLUSH),
        ({"waited_s": 10.0, "repeatable": True, "others": 0}, Decision.FLUSH),
    ],
)
def test_it_flushes_for_a_gain_or_for_whoever_waited_too_long(changes: dict[str, Any], decision: Decision) -> None:
    assert AUTO.at_boundary(replace(QUIET, **changes)) is decision


def test_a_record_is_followed_to_the_token() -> None:
    again = Recorded("auto", SegmentBudget(10, 16, 8, 0, 0), total=100, flushes=(0, 30, 75))
    assert [again.reserve(left) for left in (100, 99, 70, 26, 25, 1)] == [30, 29, 45, 1, 25, 1]
    assert again.at_boundary(replace(QUIET, reserved=1)) is Decision.KEEP
    assert again.at_boundary(replace(QUIET, reserved=0)) is Decision.FLUSH
