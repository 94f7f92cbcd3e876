"""`sink_window`: the first tokens and a sliding window stay resident (StreamingLLM, Xiao et al. 2024, section 3.2).

The baseline that the other policies are measured against. It is never exact: what left the window is gone, without a
trace in any prompt. It works inside the engine, so an answer is one segment however long it grows.
"""

from __future__ import annotations

from dataclasses import dataclass

from ghostkv.request import BoundaryView, Decision, Window
from ghostkv.residency.registry import SegmentBudget, register


@register
@dataclass(frozen=True, slots=True)
class SinkWindow:
    """Reserve a constant number of blocks; keep at every boundary."""

    name: str = "sink_window"
    budget: SegmentBudget | None = None
    """None: nothing is ever flushed."""
    sinks: int = 4
    """First tokens that stay visible. With 0 the attention that pools on them has nowhere to go."""
    window: int = 256
    """Most recent tokens that a query sees, itself included; at least 1."""

    @property
    def visible(self) -> Window:
        """The window as the engine sees it. Raises ConfigError if it holds nothing."""
        return Window(self.sinks, self.window)

    def reserve(self, remaining: int) -> int:
        """All of it: the blocks do not depend on the answer's length."""
        return remaining

    def at_boundary(self, view: BoundaryView) -> Decision:
        """Keep."""
        return Decision.KEEP
