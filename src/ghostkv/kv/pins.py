"""Cached blocks that are evicted after all others: those that somebody who will come back is likely to need.

A pin is no reference: where nothing else is left to evict, pinned blocks are, so nobody fails for them. It knows block
numbers; for whom and for how long is the engine's business.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from ghostkv.kv.prefix_index import Node


class Pins:
    """Counts of pins by block, and the pinned blocks that no allocation holds, next to evict first."""

    __slots__ = ("_counts", "order")

    def __init__(self) -> None:
        self.order: OrderedDict[int, None] = OrderedDict()
        """Pinned blocks without a reference; a child always before its parent."""
        self._counts: dict[int, int] = {}

    def __contains__(self, block: int) -> bool:
        return block in self._counts

    def __len__(self) -> int:
        """Pinned blocks, referenced or not."""
        return len(self._counts)

    def add(self, path: Sequence[Node], cached: OrderedDict[int, None]) -> None:
        """One pin more on each block of a path from a root; those in `cached` move here."""
        for node in reversed(path):
            self._counts[node.block] = self._counts.get(node.block, 0) + 1
            if node.block in cached:
                del cached[node.block]
                self.order[node.block] = None
            elif node.block in self.order:  # after the children that this path brings
                self.order.move_to_end(node.block)

    def take(self, path: Sequence[Node], cached: OrderedDict[int, None]) -> None:
        """One pin less; those without one move to the end of `cached`."""
        for node in reversed(path):
            left = self._counts[node.block] - 1
            if left:
                self._counts[node.block] = left
                continue
            del self._counts[node.block]
            if node.block in self.order:
                del self.order[node.block]
                cached[node.block] = None

    def evict(self, block: int) -> None:
        """The block is no longer indexed."""
        self._counts.pop(block, None)
        self.order.pop(block, None)
