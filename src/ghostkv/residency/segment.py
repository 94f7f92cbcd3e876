"""`segment`: the KV cache lives for one segment. Output depends on the request alone, never on pool or load."""

from __future__ import annotations

from dataclasses import dataclass

from ghostkv.request import BoundaryView, Decision, Window
from ghostkv.residency.registry import SegmentBudget, register

# Measured (docs/experiments.md, "Boundary work"): a boundary prefills fewer than 130 tokens on average.
MEASURED = SegmentBudget(target=150, cap=192, tail=72, state=34, recall=26)


@register
@dataclass(frozen=True, slots=True)
class Segment:
    """Reserve one segment; flush at every boundary."""

    name: str = "segment"
    budget: SegmentBudget = MEASURED
    """Its own constants; see SegmentBudget."""
    visible: Window | None = None
    """None: within a segment, every token sees all before it."""

    def reserve(self, remaining: int) -> int:
        """One segment up to its cap."""
        return min(self.budget.cap, remaining)

    def at_boundary(self, view: BoundaryView) -> Decision:
        """Flush."""
        return Decision.FLUSH
