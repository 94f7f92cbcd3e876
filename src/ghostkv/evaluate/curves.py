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
    LastIds,
    Reading,
    Segmented,
    TextArm,
    Whole,
    compared,
    held,
    length_for,
    measure,
    scaled,
)
from ghostkv.evaluate.texts import FORMS, PROSE, RAW, TEXTS, Passage, from_prose, from_recurring, head_tokens
from ghostkv.residency import Policy, SegmentBudget, policy
from ghostkv.residency.segment import Segment

NO_SINKS = "sink window, no sinks"
WindowOf = Callable[[int, int], Policy]  # (sinks, recent) -> a policy that sees no more


@dataclass(frozen=True, slots=True)
class Curves:
    """What is varied."""

    targets: tuple[int, ...] = (32, 64, 150)
    tails: tuple[int, ...] = (16, 32, 64, 96, 128, 192)
    boundaries: int = 20  # at least, at the budget's own target
    passages: int = 3
    sinks: int = 4
    form: str = RAW
    texts: tuple[str, ...] = TEXTS

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise ConfigError(f"there is no form {self.form!r} of reading: choose among {', '.join(FORMS)}")
        unknown = [name for name in self.texts if name not in TEXTS]
        if unknown or not self.texts:
            raise ConfigError(f"there is no text {', '.join(unknown)!r}: choose among {', '.join(TEXTS)}")


async def curves(
    lab: Lab,
    text: str,
    plan: Curves,
    *,
    budget: SegmentBudget,
    window: WindowOf | None,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Every arm at every point, for each text. Without `window` the engine has no such policy: no arms of it."""
    texts = _texts(lab, text, plan, budget)
    found = {name: await _curves(lab, passages, plan, budget, window, tell) for name, passages in texts.items()}
    return {"form": plan.form, "texts": found}


async def _curves(
    lab: Lab,
    texts: Sequence[Passage],
    plan: Curves,
    budget: SegmentBudget,
    window: WindowOf | None,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    full = await measure(lab, Whole("full", policy("full")), texts, [[len(passage.ids)] for passage in texts], tell)
    experiment = _Experiment(lab, texts, full, plan, window, tell)
    rows = []
    for target in plan.targets:
        for tail in plan.tails:
            at = replace(scaled(budget, target), tail=tail)
            rows += await experiment.point(at, {"tail": replace(at, state=0, recall=0), "segment": at})
    return {
        "passages": len(texts),
        "passage_tokens": len(texts[0].ids),
        "parts": await experiment.point(budget, parts(budget), without_sinks=True),
        "curves": rows,
    }


@dataclass(frozen=True, slots=True)
class _Experiment:
    """What all points have in common."""

    lab: Lab
    texts: Sequence[Passage]
    full: Sequence[Reading]
    plan: Curves
    window: WindowOf | None
    tell: Callable[[str], None]

    async def point(
        self, budget: SegmentBudget, budgets: Mapping[str, SegmentBudget], *, without_sinks: bool = False
    ) -> list[dict[str, Any]]:
        """`budgets` by name, and baselines that hold as much as `budget`, which is among them."""
        cuts = [
            [
                len(segment.ids)
                for segment in self.lab.forced(passage.asked, Segment(budget=budget), passage.ids)
                if segment.ids
            ]
            for passage in self.texts
        ]
        rows = [self._row(Whole("full", policy("full")), cuts, self.full, budget)]
        readings: list[Reading] = []
        for name, each in budgets.items():
            arm = Segmented(name, each)
            found = await measure(self.lab, arm, self.texts, cuts, self.tell)
            rows.append(self._row(arm, cuts, found, each))
            if each == budget:
                readings = found
        for baseline in self._baselines(readings, cuts, without_sinks=without_sinks):
            found = await measure(self.lab, baseline, self.texts, cuts, self.tell)
            rows.append(self._row(baseline, cuts, found, budget))
        return rows

    def _baselines(
        self, readings: Sequence[Reading], cuts: Sequence[Sequence[int]], *, without_sinks: bool
    ) -> list[TextArm]:
        mean, peak = held(readings, [lengths[0] for lengths in cuts])
        head = head_tokens(self.lab, self.plan.form)
        longest = max(length for lengths in cuts for length in lengths[1:])
        arms: list[TextArm] = [
            LastIds("last ids, equal mean", _last_ids(mean - head, cuts)),
            LastIds("last ids, equal peak", max(0, peak - head - longest + 1)),
        ]
        if self.window is not None:
            seen = _window(mean, head, cuts)
            for name, size in (("equal mean", seen), ("equal peak", peak)):
                arms.append(Whole(f"sink window, {name}", self.window(self.plan.sinks, size - self.plan.sinks)))
            if without_sinks:
                arms.append(Whole(NO_SINKS, self.window(0, seen)))
        return arms

    def _row(
        self, arm: TextArm, cuts: Sequence[Sequence[int]], readings: Sequence[Reading], budget: SegmentBudget
    ) -> dict[str, Any]:
        return {
            "arm": arm.name,
            "target": budget.target,
            "tail": budget.tail,
            "configuration": dict(arm.configuration()),
        } | compared(readings, self.full, cuts, [passage.repeated for passage in self.texts])


def _texts(lab: Lab, text: str, plan: Curves, budget: SegmentBudget) -> dict[str, list[Passage]]:
    """The passages of every text that is read, before anything is measured."""
    length = length_for(budget, plan.boundaries)
    room = lab.worker.backend.capabilities().max_context - head_tokens(lab, plan.form) - 1
    if length > room:
        raise ConfigError(
            f"{plan.boundaries} boundaries of {budget.cap} tokens need {length}, but the whole history must fit the "
            f"model's context, which leaves {room}"
        )
    found = {}
    for name in plan.texts:
        if name == PROSE:
            found[name] = from_prose(lab, text, plan.form, plan.passages, length)
        else:
            found[name] = from_recurring(lab, text, plan.form, plan.passages, length)
    return found


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
