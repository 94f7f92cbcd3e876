"""`full`: the whole history stays resident. The output is that of an engine without segments."""

from __future__ import annotations

from dataclasses import dataclass

from ghostkv.request import BoundaryView, Decision, Window
from ghostkv.residency.registry import SegmentBudget, register


@register
@dataclass(frozen=True, slots=True)
class Full:
    """Reserve all that the answer may need; keep at every boundary."""

    name: str = "full"
    budget: SegmentBudget | None = None
    """None: nothing is ever flushed."""
    visible: Window | None = None
    """None: every token sees all before it."""

    def reserve(self, remaining: int) -> int:
        """All of it, so that no later extension can fail."""
        return remaining

    def at_boundary(self, view: BoundaryView) -> Decision:
        """Keep."""
        return Decision.KEEP
