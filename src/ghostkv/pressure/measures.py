"""Numbers from replies: what clients saw, the same definitions for every engine.

A token that came to a client who then left is lost: rates count tokens of complete replies only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ghostkv.pressure.cells import Cell
from ghostkv.pressure.replies import BROKEN, COMPLETE, REFUSED, SHORT, STOPPED, TIMEOUT, Reply

TIMEOUTS = (30.0, 120.0, 600.0)
FIRST_S, SILENCE_S = 30.0, 10.0
"""Of goodput: a reply is good if it is complete in time, begins within FIRST_S and is never silent for longer."""

SEGMENT = 150
"""Tokens of a segment as clients see it, whatever the engine does inside (the article's benchmark mode)."""

_OUTCOMES = (COMPLETE, SHORT, TIMEOUT, REFUSED, BROKEN, STOPPED)


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles of seconds, nearest rank; None of nothing."""

    p50: float | None
    p95: float | None
    p99: float | None
    most: float | None

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Of these."""
        ranked = sorted(values)
        return cls(*(percentile(ranked, share) for share in (0.5, 0.95, 0.99, 1.0)))

    def rounded(self) -> dict[str, float | None]:
        """For a row."""
        named = {"p50": self.p50, "p95": self.p95, "p99": self.p99, "max": self.most}
        return {name: None if value is None else round(value, 4) for name, value in named.items()}


def percentile(ranked: Sequence[float], share: float) -> float | None:
    """The least value that `share` of all do not exceed."""
    if not ranked:
        return None
    return ranked[max(0, -(-int(share * 10_000) * len(ranked) // 10_000) - 1)]


def measure(cell: Cell, replies: Sequence[Reply]) -> dict[str, Any]:
    """Everything that a row says of what clients saw; background jobs are in `outcomes` of their own only."""
    asked = [reply for reply in replies if not reply.job.background]
    complete = [reply for reply in asked if reply.outcome == COMPLETE]
    wall = max((reply.ended for reply in asked), default=0.0) - min((reply.asked for reply in asked), default=0.0)
    tokens = sum(reply.tokens for reply in complete)
    background = [reply for reply in replies if reply.job.background]
    return {
        "wall_s": round(wall, 3),
        "tokens": tokens,
        "tokens_per_second": _rate(tokens, wall),
        "tokens_lost": sum(reply.tokens for reply in asked) - tokens,
        "outcomes": _outcomes(asked),
        "reasons": sorted({reply.reason for reply in asked if reply.reason})[:3],
        "timeouts": {f"{limit:g}": _within(asked, limit, wall) for limit in TIMEOUTS if limit <= cell.timeout_s},
        "timeouts_computed_from_s": cell.timeout_s,
        "first_s": Spread.of(_first(asked)).rounded(),
        "silence_s": Spread.of(_silence(complete)).rounded(),
        "gap_s": Spread.of(gap for reply in complete for gap in reply.gaps).rounded(),
        "request_s": Spread.of(reply.whole_s for reply in complete).rounded(),
        "segment_s": Spread.of(each for reply in complete for each in reply.segments(SEGMENT)).rounded(),
        "prompt_tokens": _prompts(complete),
        "text_share": _rate(sum(reply.text_tokens for reply in complete), tokens),
        **({"background": _background(background, wall)} if background else {}),
        **({"tenants": _tenants(asked)} if len(cell.tenants) > 1 else {}),
    }


def _within(asked: Sequence[Reply], limit: float, wall: float) -> dict[str, Any]:
    """Shares of clients with a patience of `limit` seconds whose reply is complete, and good; tokens/s of both."""
    complete = [reply for reply in asked if reply.outcome == COMPLETE and reply.whole_s <= limit]
    good = [reply for reply in complete if _good(reply)]
    return {
        "success": round(len(complete) / len(asked), 4) if asked else None,
        "tokens_per_second": _rate(sum(reply.tokens for reply in complete), wall),
        "good": round(len(good) / len(asked), 4) if asked else None,
        "good_tokens_per_second": _rate(sum(reply.tokens for reply in good), wall),
    }


def _good(reply: Reply) -> bool:
    return (reply.first_s or 0.0) <= FIRST_S and max(reply.gaps, default=0.0) <= SILENCE_S


def _first(replies: Iterable[Reply]) -> list[float]:
    return [reply.first_s for reply in replies if reply.first_s is not None]


def _silence(replies: Iterable[Reply]) -> list[float]:
    return [max(reply.gaps, default=0.0) for reply in replies]


def _outcomes(replies: Sequence[Reply]) -> dict[str, int]:
    counted = {name: sum(reply.outcome == name for reply in replies) for name in _OUTCOMES}
    return {name: count for name, count in counted.items() if count}


def _prompts(replies: Sequence[Reply]) -> dict[str, Any]:
    """Whether every engine read prompts of the length that was made."""
    told = [reply for reply in replies if reply.prompt_tokens]
    off = sum(reply.prompt_tokens != reply.job.prompt for reply in told)
    return {"asked": sum(reply.job.prompt for reply in replies), "told": len(told), "differ": off}


def _background(replies: Sequence[Reply], wall: float) -> dict[str, Any]:
    """What the load that was stopped had got by then."""
    tokens = sum(reply.tokens for reply in replies)
    return {"outcomes": _outcomes(replies), "tokens": tokens, "tokens_per_second": _rate(tokens, wall)}


def _tenants(replies: Sequence[Reply]) -> dict[str, Any]:
    names = sorted({reply.job.tenant for reply in replies})
    return {
        name: {"first_s": Spread.of(_first(reply for reply in replies if reply.job.tenant == name)).rounded()}
        for name in names
    }


def _rate(count: float, seconds: float) -> float | None:
    return round(count / seconds, 3) if seconds > 0 else None
