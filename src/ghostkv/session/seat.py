"""Where a segment runs. With one worker that is always the same place; `crossing` chooses among several."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ghostkv.backends.base import Backend
from ghostkv.session.chain import Carried, Chain


@dataclass(frozen=True, slots=True)
class Seat:
    """A segment's worker and what it starts from there."""

    backend: Backend
    chain: Chain  # the turn as that worker sees it
    carried: Carried
    worker: str = ""  # its name; "" where there is only one
    reason: str = ""  # why it was chosen


Seating = Callable[[Seat], Seat]
"""The seat in which the last segment ended (before the first: the turn's own) -> the next segment's."""

Seats = Callable[[Chain], Seating]
"""The seating of one chain's segments."""


def stay(seat: Seat) -> Seat:
    """The seating where there is one worker."""
    return seat


def one_worker(chain: Chain) -> Seating:
    """The seats where there is one worker."""
    return stay
