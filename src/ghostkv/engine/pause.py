"""What becomes of a session's blocks while a tool runs: numbers in, a decision out. Pure, so a record can be replayed.

The costs are InferCept's (Abhyankar et al., ICML 2024): memory held for nothing, in token-seconds. Until when to hold
it is Continuum's question (Li et al., 2025): a time-to-live, chosen over how long tools took before.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

LONGEST_S = 60.0
"""The most that blocks are kept for a tool, whatever it is expected to gain."""
_REMEMBERED = 32  # pauses whose lengths are known
_SLACK = 1.25  # what a time-to-live is longer than a pause that it is to cover
_FIRST = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)  # seconds, where nothing is known: from lookups to slow services


class Fate(StrEnum):
    """What is done with the blocks."""

    KEEP = "keep"  # evicted after all others, until the time-to-live is over
    DROP = "drop"  # evicted like any other that nobody uses


@dataclass(frozen=True, slots=True)
class PauseView:
    """What a decision may look at."""

    tokens: int  # of the session, in the pool
    others: int  # tokens of what runs meanwhile, and would wait for a prefill
    prefill_s: float  # of computing the tokens again
    wanted: float  # share of what is held that somebody else could use, 0 to 1
    lengths: tuple[float, ...]  # seconds that pauses took before, ascending


@dataclass(frozen=True, slots=True)
class PauseDecision:
    """What was decided, with the costs that it was decided by."""

    fate: Fate
    ttl_s: float  # 0 for DROP
    keep_cost: float  # expected token-seconds of keeping for `ttl_s`
    drop_cost: float  # likewise of dropping at once


def decide(view: PauseView) -> PauseDecision:
    """The time-to-live with the least expected waste; one of 0 is to drop.

    Keeping for t: tokens x wanted x E[min(T, t)] + P(T > t) x again, where `again` is what dropping costs: while the
    session's tokens are computed once more, they and those of the others hold memory without a new token. T is how
    long a pause takes; the candidates are a little more than it took before.
    """
    again = view.prefill_s * (view.tokens + view.others)
    best, cost = 0.0, again
    for length in view.lengths:
        ttl = min(_SLACK * length, LONGEST_S)
        kept = expected_cost(view, ttl)
        if kept < cost:
            best, cost = ttl, kept
    return PauseDecision(Fate.KEEP if best else Fate.DROP, best, cost, again)


def expected_cost(view: PauseView, ttl: float) -> float:
    """Token-seconds that are expected to be wasted by keeping for `ttl` seconds."""
    count = len(view.lengths)
    held = sum(min(length, ttl) for length in view.lengths) / count
    late = sum(length > ttl for length in view.lengths) / count
    return view.tokens * view.wanted * held + late * view.prefill_s * (view.tokens + view.others)


@dataclass(slots=True)
class Lengths:
    """How long pauses took: the latest, which push out one by one what is assumed at first."""

    _latest: deque[float] = field(default_factory=lambda: deque(_FIRST))
    _assumed: int = len(_FIRST)

    def ended(self, seconds: float) -> None:
        """A pause took so long."""
        self._latest.append(seconds)
        if self._assumed or len(self._latest) > _REMEMBERED:
            self._latest.popleft()
            self._assumed = max(0, self._assumed - 1)

    @property
    def ascending(self) -> tuple[float, ...]:
        """For a view."""
        return tuple(sorted(self._latest))
