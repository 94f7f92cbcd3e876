"""Perplexity of a real continuation after flushed boundaries: extra nats per token against the whole history.

Every arm reads the same text as an answer that is forced, not decoded, after the same opening (`texts`), and its tokens
are scored where the arm would have generated them. Only tokens after the first boundary count; differences are paired
token by token. The arms that keep a constant number of tokens (the last ids, a window) are given as many as the
protocol holds on average, and once as many as it holds at its peak.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from statistics import fmean
from typing import Any, Protocol

from ghostkv.evaluate.lab import Lab
from ghostkv.evaluate.statistics import cluster_mean, cluster_slope, slope
from ghostkv.evaluate.texts import Passage
from ghostkv.residency import Policy, SegmentBudget, policy
from ghostkv.residency.segment import Segment

BUCKETS = ((1, 4), (5, 16), (17, 64), (65, None))  # tokens after a boundary, from 1


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens that are scored in one go: `ids` after `prompt`."""

    prompt: tuple[int, ...]
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """One arm over one passage."""

    logprobs: tuple[float, ...]  # of every token of the passage after its opening
    resident: tuple[int, ...]  # tokens in the cache when it was chosen
    cuts: tuple[int, ...]  # tokens of each segment; their sum is the passage


class TextArm(Protocol):
    """One way to carry an answer over its boundaries."""

    @property
    def name(self) -> str:
        """As tables show it."""
        ...

    @property
    def residency(self) -> Policy:
        """What the engine scores under."""
        ...

    def configuration(self) -> Mapping[str, Any]:
        """The numbers behind it."""
        ...

    def pieces(self, lab: Lab, passage: Passage, cuts: Sequence[int]) -> list[Piece]:
        """The passage, in order. `cuts` are the segments of the protocol under the same target."""
        ...


@dataclass(frozen=True, slots=True)
class Whole:
    """The whole history in one piece, under a policy that never flushes."""

    name: str
    residency: Policy

    def configuration(self) -> Mapping[str, Any]:
        """The policy, and its window if it has one."""
        window = self.residency.visible
        return {"residency": self.residency.name} | ({} if window is None else asdict(window))

    def pieces(self, lab: Lab, passage: Passage, cuts: Sequence[int]) -> list[Piece]:
        """One."""
        return [Piece(lab.render(passage.asked), passage.ids)]


@dataclass(frozen=True, slots=True)
class Segmented:
    """The protocol under a budget."""

    name: str
    budget: SegmentBudget

    @property
    def residency(self) -> Policy:
        """Each segment is exact for its prompt."""
        return policy("full")

    def configuration(self) -> Mapping[str, Any]:
        """Its constants."""
        return {"residency": "segment"} | asdict(self.budget)

    def pieces(self, lab: Lab, passage: Passage, cuts: Sequence[int]) -> list[Piece]:
        """One for each segment."""
        segments = lab.forced(passage.asked, Segment(budget=self.budget), passage.ids)
        return [Piece(segment.assembled.ids, segment.ids) for segment in segments if segment.ids]


@dataclass(frozen=True, slots=True)
class LastIds:
    """The opening and the last `tokens` ids of the answer at every boundary, wherever they begin."""

    name: str
    tokens: int

    @property
    def residency(self) -> Policy:
        """Each segment is exact for its prompt."""
        return policy("full")

    def configuration(self) -> Mapping[str, Any]:
        """How many."""
        return {"residency": "full", "tokens": self.tokens}

    def pieces(self, lab: Lab, passage: Passage, cuts: Sequence[int]) -> list[Piece]:
        """One for each of `cuts`."""
        head, ids, ends = lab.render(passage.asked), passage.ids, list(accumulate(cuts))
        return [
            Piece((*head, *ids[max(0, end - cut - self.tokens) : end - cut]), ids[end - cut : end])
            for end, cut in zip(ends, cuts, strict=True)
        ]


def scaled(budget: SegmentBudget, target: int) -> SegmentBudget:
    """The budget at another segment length, with the cap in proportion."""
    return replace(budget, target=target, cap=round(target * budget.cap / budget.target))


def length_for(budget: SegmentBudget, boundaries: int) -> int:
    """Tokens in which there are at least so many boundaries, wherever the natural ends are."""
    return (boundaries + 1) * budget.cap


async def read(lab: Lab, arm: TextArm, passage: Passage, cuts: Sequence[int]) -> Reading:
    """Score one passage under one arm."""
    logprobs: list[float] = []
    resident: list[int] = []
    pieces = arm.pieces(lab, passage, cuts)
    window = arm.residency.visible
    for piece in pieces:
        logprobs += await lab.score(piece.prompt, piece.ids, arm.residency)
        held = range(len(piece.prompt), len(piece.prompt) + len(piece.ids))
        resident += held if window is None else [min(tokens, window.size) for tokens in held]
    return Reading(tuple(logprobs), tuple(resident), tuple(len(piece.ids) for piece in pieces))


def held(readings: Iterable[Reading], first: Iterable[int]) -> tuple[float, int]:
    """Mean and largest number of resident tokens, over the tokens after `first` of each passage."""
    counted = [tokens for reading, start in zip(readings, first, strict=True) for tokens in reading.resident[start:]]
    return fmean(counted), max(counted)


def compared(
    arm: Sequence[Reading], full: Sequence[Reading], cuts: Sequence[Sequence[int]], marked: Sequence[Set[int]] = ()
) -> dict[str, Any]:
    """Nats per token after the first boundary, and how many more than `full`: in all, by distance, over boundaries.

    `marked` are indices of tokens of each passage that are also looked at by themselves: "repeated".
    """
    clusters: list[list[float]] = []
    places: list[float] = []
    buckets: dict[str, list[list[float]]] = {_label(bucket): [] for bucket in BUCKETS}
    own: list[float] = []
    repeated: list[list[float]] = []
    for mine, theirs, lengths, marks in zip(arm, full, cuts, marked or [frozenset()] * len(arm), strict=True):
        starts = [0, *accumulate(lengths)]
        for boundary, (start, length) in enumerate(zip(starts, lengths, strict=False)):
            if boundary == 0:
                continue
            extra = [theirs.logprobs[i] - mine.logprobs[i] for i in range(start, start + length)]
            own += [-mine.logprobs[i] for i in range(start, start + length)]
            clusters.append(extra)
            if again := [each for i, each in enumerate(extra, start) if i in marks]:
                repeated.append(again)
            places.append(float(boundary))
            for bucket in BUCKETS:
                if part := extra[bucket[0] - 1 : bucket[1]]:
                    buckets[_label(bucket)].append(part)
    means = [fmean(cluster) for cluster in clusters]
    mean, peak = held(arm, [lengths[0] for lengths in cuts])
    return {
        "tokens": len(own),
        "boundaries": len(clusters),
        "nats": fmean(own),
        "extra": asdict(cluster_mean(clusters)),
        "repeated_tokens": sum(map(len, repeated)),
        "repeated": asdict(cluster_mean(repeated)) if repeated else None,
        "by_distance": {label: asdict(cluster_mean(parts)) for label, parts in buckets.items() if parts},
        "slope": {"least_squares": asdict(slope(places, means)), "bootstrap": asdict(cluster_slope(places, means))},
        "mean_resident": mean,
        "peak_resident": peak,
    }


async def measure(
    lab: Lab, arm: TextArm, texts: Sequence[Passage], cuts: Sequence[Sequence[int]], tell: Callable[[str], None]
) -> list[Reading]:
    """Read every passage under one arm."""
    readings = []
    for number, (passage, lengths) in enumerate(zip(texts, cuts, strict=True), 1):
        tell(f"perplexity: {passage.text}, {arm.name}, passage {number} of {len(texts)}")
        readings.append(await read(lab, arm, passage, lengths))
    return readings


def _label(bucket: tuple[int, int | None]) -> str:
    first, last = bucket
    return f"{first}+" if last is None else f"{first}-{last}"
