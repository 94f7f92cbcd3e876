"""`auto`: as `full` until memory or throughput asks for a flush; after one, as `segment`.

What is predicted and measured is the engine's business; here stands what follows from it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ghostkv.request import BoundaryView, Decision, Window
from ghostkv.residency.registry import SegmentBudget, register
from ghostkv.residency.segment import MEASURED

_BUDGET = replace(MEASURED, whole=True)

LEAST_GAIN = 0.1
"""A flush that is predicted to give less is not worth what it leaves out."""


@register
@dataclass(frozen=True, slots=True)
class Auto:
    """Reserve a segment; at a boundary flush only what gives more, or whoever has had its turn."""

    name: str = "auto"
    budget: SegmentBudget = _BUDGET
    """The constants of `segment`; the first prompt is the client's whole one."""
    visible: Window | None = None
    """None: every token sees all before it."""

    def reserve(self, remaining: int) -> int:
        """One segment up to its cap: at least 64 tokens, where there are so many."""
        return min(self.budget.cap, remaining)

    def at_boundary(self, view: BoundaryView) -> Decision:
        """Keep, unless flushing gains enough or somebody has waited too long. Repeatable requests go last."""
        if view.repeatable and view.others:
            return Decision.KEEP
        if view.gain >= LEAST_GAIN or (view.waiting and view.waited_s >= view.max_wait_s and view.turns >= 1):
            return Decision.FLUSH
        return Decision.KEEP
