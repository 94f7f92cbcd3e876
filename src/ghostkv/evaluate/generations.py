"""Long real answers and what they are cut into: the common ground of the tests of instructions and of drift."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import fmean

from ghostkv.evaluate.lab import Generated, Lab
from ghostkv.protocol.segmenter import SegmentBoundary
from ghostkv.request import Boundary, Message, Sampling
from ghostkv.residency import Policy, SegmentBudget
from ghostkv.session.turn import Turn
from ghostkv.text.detokenizer import Detokenizer


@dataclass(frozen=True, slots=True)
class Session:
    """One long answer, cut where its segments ended, or would have."""

    asked: tuple[Message, ...]
    seed: int
    ids: tuple[int, ...]
    segments: tuple[str, ...]
    lengths: tuple[int, ...]  # tokens of each segment
    mean_resident: float
    peak_resident: int


async def sessions(
    lab: Lab, asked: Sequence[Sequence[Message]], residency: Policy, budget: SegmentBudget, segments: int
) -> list[Session]:
    """Answer every conversation at once, each at the length of `segments` segments or a little more.

    Sampled with a fixed seed; no token ends an answer early. `budget` says where an answer that is never flushed would
    have been cut.
    """
    turns = [_turn(messages, seed, segments * budget.target) for seed, messages in enumerate(asked)]
    found = await asyncio.gather(*(lab.answer(turn, residency) for turn in turns))
    return [_session(lab, turn, generated, budget) for turn, generated in zip(turns, found, strict=True)]


def _turn(messages: Sequence[Message], seed: int, tokens: int) -> Turn:
    sampling = Sampling(temperature=0.8, top_p=0.95, seed=seed, min_tokens=tokens)
    return Turn(f"long-{seed}", sampling, tokens, messages=tuple(messages))


def _session(lab: Lab, turn: Turn, generated: Generated, budget: SegmentBudget) -> Session:
    records = generated.segments
    flushed = len(records) > 1
    lengths = [record.usage.generated_tokens for record in records] if flushed else _natural(lab, generated.ids, budget)
    held = [
        record.usage.resident_tokens - record.usage.generated_tokens / 2 for record in records
    ]  # half of what it generates, on average
    shares = [record.usage.generated_tokens for record in records]
    ends = [0, *accumulate(lengths)]
    return Session(
        asked=turn.messages,
        seed=turn.sampling.seed,
        ids=generated.ids,
        segments=tuple(lab.decode(generated.ids[start:stop]) for start, stop in pairwise(ends)),
        lengths=tuple(lengths),
        mean_resident=sum(h * s for h, s in zip(held, shares, strict=True)) / sum(shares),
        peak_resident=max(record.usage.resident_tokens for record in records),
    )


def _natural(lab: Lab, ids: Sequence[int], budget: SegmentBudget) -> list[int]:
    """Where the boundary rule of `budget` would have cut."""
    rule = fresh = SegmentBoundary(budget.target, budget.cap)
    detokenizer, undecoded = Detokenizer(lab.worker.tokenizer), b""
    lengths, length = [], 0
    for token_id in ids:
        piece, undecoded = detokenizer.feed(undecoded, token_id)
        following, verdict = rule.feed(token_id, piece)
        rule = following if isinstance(following, SegmentBoundary) else fresh
        length += 1
        if isinstance(verdict, Boundary) or length == budget.cap:
            rule = rule.next_segment()
            lengths.append(length)
            length = 0
    return [*lengths, length] if length else lengths


def residency_figures(found: Sequence[Session]) -> dict[str, float]:
    """Mean and largest number of resident tokens over sessions."""
    return {
        "mean_resident": fmean(session.mean_resident for session in found),
        "peak_resident": max(session.peak_resident for session in found),
    }


Tell = Callable[[str], None]
