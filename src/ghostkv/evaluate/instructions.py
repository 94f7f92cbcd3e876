"""Are instructions still kept after many boundaries? Every segment of long answers is checked by program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any

from ghostkv.evaluate.constraints import CONSTRAINTS, Constraint
from ghostkv.evaluate.generations import Session, Tell, residency_figures, sessions
from ghostkv.evaluate.lab import Lab
from ghostkv.evaluate.statistics import wilson
from ghostkv.request import Message
from ghostkv.residency import Policy, SegmentBudget

_TOPICS = ("a journey down a river", "the life of a lighthouse keeper", "how a small town changes over a year")
_EDGE = 3  # segments at the beginning and at the end that are compared: one alone is a coin toss


async def instructions(
    lab: Lab, arms: Mapping[str, Policy], budget: SegmentBudget, segments: int, tell: Tell
) -> dict[str, Any]:
    """The share of segments that keep their instruction, by segment, for each arm."""
    cases = [(constraint, topic) for constraint in CONSTRAINTS for topic in _TOPICS]
    asked = [[Message("user", f"Write a very long text about {topic}. {each.instruction}")] for each, topic in cases]
    found: dict[str, Any] = {}
    for name, residency in arms.items():
        tell(f"instructions: {name}, {len(asked)} answers of {segments} segments")
        answered = await sessions(lab, asked, residency, budget, segments)
        found[name] = checked([constraint for constraint, _ in cases], answered, segments)
        found[name] |= residency_figures(answered)
    return {"segments": segments, "answers": len(asked), "arms": found}


def checked(constraints: Sequence[Constraint], answered: Sequence[Session], segments: int) -> dict[str, Any]:
    """Shares kept: by segment, at both ends, and of those kept at the first the part still kept at the last."""
    kept = [
        [constraint.kept(text) for text in session.segments[:segments]]
        for constraint, session in zip(constraints, answered, strict=True)
    ]
    by_segment = [[row[index] for row in kept if index < len(row)] for index in range(segments)]
    first, last = (list(chain.from_iterable(group)) for group in (by_segment[:_EDGE], by_segment[-_EDGE:]))
    by_constraint: dict[str, list[bool]] = {}
    for constraint, row in zip(constraints, kept, strict=True):
        by_constraint.setdefault(constraint.name, []).extend(row)
    return {
        "by_segment": [sum(group) / len(group) if group else None for group in by_segment],
        "first": asdict(wilson(sum(first), len(first))),
        "last": asdict(wilson(sum(last), len(last))),
        "last_to_first": sum(last) / len(last) / (sum(first) / len(first)) if last and any(first) else None,
        "by_constraint": {name: sum(row) / len(row) for name, row in by_constraint.items()},
    }
