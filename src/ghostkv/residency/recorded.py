"""An answer again, with the decisions that were recorded for it. Not a policy that a request can name.

Flushes stand where the record says, and nowhere else: each reservation is just the segment that was.
"""

from __future__ import annotations

from dataclasses import dataclass

from ghostkv.request import BoundaryView, Decision, Window
from ghostkv.residency.registry import SegmentBudget


@dataclass(frozen=True, slots=True)
class Recorded:
    """Reserve up to the next flush of the record; flush there."""

    name: str
    """The policy's whose decisions they were."""
    budget: SegmentBudget
    """That policy's."""
    total: int
    """Output tokens that the answer may have."""
    flushes: tuple[int, ...]
    """Output tokens before each flush, ascending."""
    visible: Window | None = None
    """None: every token sees all before it."""

    def reserve(self, remaining: int) -> int:
        """What the segment that begins here generated; after the last flush all that is left."""
        at = self.total - remaining
        return min(next((flush - at for flush in self.flushes if flush > at), remaining), remaining)

    def at_boundary(self, view: BoundaryView) -> Decision:
        """Flush where the reservation ends."""
        return Decision.KEEP if view.reserved else Decision.FLUSH
