"""Teacher forcing as a request among others: a prompt that is only read. The same for every backend."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from ghostkv.backends.base import SCORING
from ghostkv.errors import InvalidRequest
from ghostkv.request import (
    BoundaryView,
    Decision,
    Delta,
    GenerationState,
    PromptScores,
    Sampling,
    SegmentRequest,
    Window,
)


@dataclass(frozen=True, slots=True)
class Reading:
    """The residency of a text that is read through `visible` and not continued."""

    visible: Window | None
    name: str = SCORING

    def reserve(self, remaining: int) -> int:
        """Nothing: what remains is 0."""
        return remaining

    def at_boundary(self, view: BoundaryView) -> Decision:
        """Never asked."""
        return Decision.KEEP


def scoring_request(number: int, ids: Sequence[int], start: int, window: Window | None) -> SegmentRequest:
    """Asks for the log-probabilities of ids[start:]. Raises InvalidRequest where that is no part of the text."""
    if not 1 <= start < len(ids):
        raise InvalidRequest(f"scoring starts at token {start}, outside 1..{len(ids) - 1}", param="start")
    return SegmentRequest(
        id=f"{SCORING}-{number}",
        prompt=tuple(ids),
        sampling=Sampling(temperature=0.0),
        state=GenerationState(),
        residency=Reading(window),
        remaining=0,
        tenant=SCORING,
        scores=PromptScores(start),
    )


async def scored(deltas: AsyncGenerator[Delta, None]) -> list[float]:
    """What a scoring request was answered."""
    async with aclosing(deltas) as told:
        return [token.logprob async for delta in told for token in delta.prompt if token.logprob is not None]
