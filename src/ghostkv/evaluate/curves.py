"""The perplexity experiment: segment lengths, tails and payload parts, each beside its baselines at equal memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from ghostkv.errors import ConfigError
from ghostkv.evaluate.arms import parts
from ghostkv.evaluate.lab import Lab
from ghostkv.evaluate.perplexity import (
    ASK,
    LastIds,
    Reading,
    Segmented,
    TextArm,
    Whole,
    compared,
    held,
    length_for,
    measure,
    passages,
    scaled,
)
from ghostkv.residency import Policy, SegmentBudget, policy
from ghostkv.residency.segment import Segment

WindowOf = Callable[[int, int], Policy]  # (sinks, recent) -> a policy that sees no more


@dataclass(frozen=True, slots=True)
class Curves:
    """What is varied."""

    targets: tuple[int, ...] = (32, 64, 150)
    tails: tuple[int, ...] = (16, 32, 64, 96, 128, 192)
    boundaries: int = 20  # at least, at the budget's own target
    passages: int = 3
    sinks: int = 4


async def curves(
    lab: Lab,
    text: str,
    plan: Curves,
    *,
    budget: SegmentBudget,
    window: WindowOf | None,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Every arm at every point. Without `window` the engine has no such policy, and those arms are left out."""
    texts = _passages(lab, text, plan, budget)
    full_arm = Whole("full", policy("full"))
    full = await measure(lab, full_arm, texts, [[len(ids)] for ids in texts], tell)
    experiment = _Experiment(lab, texts, full, plan, window, tell)
    rows = []
    for target in plan.targets:
        for tail in plan.tails:
            at = replace(scaled(budget, target), tail=tail)
            rows += await experiment.point(at, {"tail": replace(at, state=0, recall=0), "segment": at})
    return {
        "passages": len(texts),
        "passage_tokens": len(texts[0]),
        "parts": await experiment.point(budget, parts(budget)),
        "curves": rows,
    }


@dataclass(frozen=True, slots=True)
class _Experiment:
    """What all points have in common."""

    lab: Lab
    texts: Sequence[tuple[int, ...]]
    full: Sequence[Reading]
    plan: Curves
    window: WindowOf | None
    tell: Callable[[str], None]

    async def point(self, budget: SegmentBudget, budgets: Mapping[str, SegmentBudget]) -> list[dict[str, Any]]:
        """`budgets` by name, and baselines that hold as much as `budget`, which is among them."""
        cuts = [
            [len(segment.ids) for segment in self.lab.forced(ASK, Segment(budget=budget), ids) if segment.ids]
            for ids in self.texts
        ]
        rows = [self._row(Whole("full", policy("full")), cuts, self.full, budget)]
        readings: list[Reading] = []
        for name, each in budgets.items():
            arm = Segmented(name, each)
            found = await measure(self.lab, arm, self.texts, cuts, self.tell)
            rows.append(self._row(arm, cuts, found, each))
            if each == budget:
                readings = found
        for baseline in self._baselines(readings, cuts):
            found = await measure(self.lab, baseline, self.texts, cuts, self.tell)
            rows.append(self._row(baseline, cuts, found, budget))
        return rows

    def _baselines(self, readings: Sequence[Reading], cuts: Sequence[Sequence[int]]) -> list[TextArm]:
        mean, peak = held(readings, [lengths[0] for lengths in cuts])
        head = len(self.lab.render(ASK))
        longest = max(length for lengths in cuts for length in lengths[1:])
        arms: list[TextArm] = [
            LastIds("last ids, equal mean", _last_ids(mean - head, cuts)),
            LastIds("last ids, equal peak", max(0, peak - head - longest + 1)),
        ]
        if self.window is not None:
            for name, size in (("equal mean", _window(mean, head, cuts)), ("equal peak", peak)):
                arms.append(Whole(f"sink window, {name}", self.window(self.plan.sinks, size - self.plan.sinks)))
        return arms

    def _row(
        self, arm: TextArm, cuts: Sequence[Sequence[int]], readings: Sequence[Reading], budget: SegmentBudget
    ) -> dict[str, Any]:
        return {
            "arm": arm.name,
            "target": budget.target,
            "tail": budget.tail,
            "configuration": dict(arm.configuration()),
        } | compared(readings, self.full, cuts)


def _passages(lab: Lab, text: str, plan: Curves, budget: SegmentBudget) -> list[tuple[int, ...]]:
    head = len(lab.render(ASK))
    room = lab.worker.backend.capabilities().max_context - head - 1
    length = length_for(budget, plan.boundaries)
    if length > room:
        raise ConfigError(
            f"{plan.boundaries} boundaries of {budget.cap} tokens need {length}, but the whole history must fit the "
            f"model's context, which leaves {room}"
        )
    return passages(lab.encode(text), plan.passages, length)


def _last_ids(mean: float, cuts: Sequence[Sequence[int]]) -> int:
    """How many last ids to carry, so that beside the head there are `mean` tokens on average, after first segments.

    A segment holds what is carried and what it has generated; an early one has less behind it than may be carried.
    """
    segments = [
        (start, length) for lengths in cuts for start, length in zip(accumulate(lengths), lengths[1:], strict=False)
    ]
    total = sum(length for _, length in segments)
    wanted = mean * total - sum(length * (length - 1) / 2 for _, length in segments)

    def carried(last: int) -> int:
        return sum(length * min(last, start) for start, length in segments)

    return bisect_left(range(max(start for start, _ in segments)), wanted, key=carried)


def _window(mean: float, head: int, cuts: Sequence[Sequence[int]]) -> int:
    """How many tokens a window must show to hold `mean` on average after first segments; early ones see fewer."""
    tokens = [head + at for lengths in cuts for at in range(lengths[0], sum(lengths))]

    def seen(size: int) -> int:
        return sum(min(size, before) for before in tokens)

    return bisect_left(range(max(tokens)), mean * len(tokens), key=seen)
