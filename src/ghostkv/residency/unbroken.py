"""A structured answer under a policy that flushes: its prompt is that policy's, but it is one segment, all reserved.

Not a policy that a request can name: a grammar is what asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ghostkv.request import BoundaryView, Decision, Window
from ghostkv.residency.registry import SegmentBudget


@dataclass(frozen=True, slots=True)
class Unbroken:
    """Reserve the whole answer; keep at every boundary."""

    name: str
    """The policy's that assembles the prompt."""
    budget: SegmentBudget
    """That policy's, with the whole answer as its cap."""
    visible: Window | None = None
    """None: every token sees all before it."""

    def reserve(self, remaining: int) -> int:
        """All of it: a structure is never flushed inside."""
        return remaining

    def at_boundary(self, view: BoundaryView) -> Decision:
        """Keep."""
        return Decision.KEEP
