"""Sums up outcomes of the recall test: shares, paired differences to the better ceiling, stale answers. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from statistics import fmean
from typing import Any

from ghostkv.evaluate.recall import Outcome
from ghostkv.evaluate.statistics import Interval, cluster_mean, wilson

VOID_BELOW = 0.7  # where both ceilings are lower, the model itself cannot do it, and no arm is judged


def summary(outcomes: Sequence[Outcome], ceilings: Sequence[str], configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that the report says about recall; arms in the order of `configuration`."""
    cells = []
    for (form, distance), group in _grouped(outcomes):
        by_arm = _by_arm(group)
        reached = {name: _share(by_arm[name]) for name in ceilings if name in by_arm}
        better = max(reached, key=lambda name: reached[name], default="")
        void = not reached or max(reached.values()) < VOID_BELOW
        cells.append(
            {
                "form": form,
                "distance": distance,
                "void": void,
                "ceiling": better,
                "arms": {name: _cell(by_arm[name], by_arm.get(better)) for name in configuration if name in by_arm},
            }
        )
    arms = {name: _arm(group) | {"configuration": configuration[name]} for name, group in _by_arm(outcomes).items()}
    return {"cells": cells, "arms": {name: arms[name] for name in configuration if name in arms}}


def paired(arm: Sequence[Outcome], other: Sequence[Outcome]) -> Interval:
    """Share right of `arm` minus that of `other`, over the questions that both had; limits by document."""
    theirs = {outcome.key: outcome.right for outcome in other}
    clusters: defaultdict[int, list[float]] = defaultdict(list)
    for outcome in arm:
        if outcome.key in theirs:
            clusters[outcome.document].append(float(outcome.right) - float(theirs[outcome.key]))
    return cluster_mean(list(clusters.values()))


def _cell(own: Sequence[Outcome], ceiling: Sequence[Outcome] | None) -> dict[str, Any]:
    chosen = [outcome.chosen for outcome in own if outcome.chosen is not None]
    return {
        "asked": len(own),
        "exact": asdict(wilson(sum(outcome.right for outcome in own), len(own))),
        "choice": asdict(wilson(sum(chosen), len(chosen))) if chosen else None,
        "difference": asdict(paired(own, ceiling)) if ceiling is not None else None,
    }


def _arm(own: Sequence[Outcome]) -> dict[str, Any]:
    changed = [outcome for outcome in own if outcome.changed]
    return {
        "stale": asdict(wilson(sum(outcome.stale for outcome in changed), len(changed))) if changed else None,
        "changed_asked": len(changed),
        "changed_right": sum(outcome.right for outcome in changed),
        "mean_resident": fmean(_resident(outcome, outcome.answer_tokens / 2) for outcome in own),
        "peak_resident": max(int(_resident(outcome, outcome.answer_tokens)) for outcome in own),
    }


def _resident(outcome: Outcome, answered: float) -> float:
    """Tokens in the pool when so many of the answer are there."""
    held = outcome.prompt_tokens + answered
    return held if outcome.window is None else min(held, outcome.window)


def _grouped(outcomes: Iterable[Outcome]) -> Iterable[tuple[tuple[str, int], list[Outcome]]]:
    def place(outcome: Outcome) -> tuple[str, int]:
        return outcome.form, outcome.distance

    return [(key, list(group)) for key, group in groupby(sorted(outcomes, key=place), place)]


def _by_arm(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    found: defaultdict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        found[outcome.arm].append(outcome)
    return dict(found)


def _share(outcomes: Sequence[Outcome]) -> float:
    return fmean(outcome.right for outcome in outcomes)
