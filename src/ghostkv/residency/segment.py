"""`segment`: the KV cache lives for one segment. Output depends on the request alone, never on pool or load."""

from __future__ import annotations

from dataclasses import dataclass

from ghostkv.request import BoundaryView, Decision
from ghostkv.residency.registry import SegmentBudget, register

_FIRST_VALUES = SegmentBudget(target=150, cap=192, tail=64, state=64, recall=40)  # no measurement has tuned them yet


@register
@dataclass(frozen=True, slots=True)
class Segment:
    """Reserve one segment; flush at every boundary."""

    name: str = "segment"
    budget: SegmentBudget = _FIRST_VALUES
    """Its own constants; see SegmentBudget."""

    def reserve(self, remaining: int) -> int:
        """One segment up to its cap."""
        return min(self.budget.cap, remaining)

    def at_boundary(self, view: BoundaryView) -> Decision:
        """Flush."""
        return Decision.FLUSH
