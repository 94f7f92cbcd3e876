"""Where the tokens of a windowed request stand: the sinks in blocks of their own, the others in a ring of blocks.

A constant number of blocks, whatever the length: a token takes the slot of the one that left the window long ago. It
is arithmetic over token and slot numbers; which pool blocks a request holds is the pool's business.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ghostkv.errors import InvalidRequest
from ghostkv.request import Window
from ghostkv.step import BLOCK_TOKENS

_SPARE_BLOCKS = 2  # beyond the window, so that a chunk of 33 tokens or more can be computed in one step


@dataclass(frozen=True, slots=True)
class Ring:
    """The block table of a windowed request: `sink_blocks` and then `ring_blocks`. All numbers are tokens or blocks."""

    window: Window
    block_tokens: int = BLOCK_TOKENS

    @property
    def sink_blocks(self) -> int:
        """Blocks of the sinks; they hold nothing else, so that the ring's own blocks are whole."""
        return -(-self.window.sinks // self.block_tokens)

    @property
    def ring_blocks(self) -> int:
        """Blocks of all other tokens."""
        return -(-self.window.recent // self.block_tokens) + _SPARE_BLOCKS

    @property
    def blocks(self) -> int:
        """Blocks of the whole table."""
        return self.sink_blocks + self.ring_blocks

    def slots(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The slot of each token, counted from the table's start."""
        ring = self.sink_blocks * self.block_tokens
        turned = (tokens - self.window.sinks) % (self.ring_blocks * self.block_tokens)
        return np.where(tokens < self.window.sinks, tokens, ring + turned)

    def gone(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """How many earlier tokens each no longer sees; all of them follow the sinks directly."""
        return np.maximum(tokens + 1 - self.window.size, 0)

    def chunk_end(self, start: int) -> int:
        """The token before which a step that starts at `start` must end.

        A step writes all its tokens before any of them looks back, so what it overwrites must already be out of sight
        for its first one: token t overwrites t - ring, and `start` sees as far back as start - recent + 1.
        """
        ring = self.ring_blocks * self.block_tokens
        return max(self.window.sinks + ring, start + ring - self.window.recent + 1)

    def resident(self, filled: int) -> int:
        """How many of the first `filled` tokens can still be seen."""
        return min(filled, self.window.size)

    def check_fits(self, pool_blocks: int, max_context: int, max_window: int | None = None) -> None:
        """Raises InvalidRequest where the pool, or the model's range of positions, cannot hold it.

        `max_window`: what the model's own window shows in the layer that sees fewest; None where all see everything.
        """
        if max_window is not None and self.window.size > max_window:
            raise InvalidRequest(
                f"a window of {self.window.sinks} + {self.window.recent} tokens is longer than the {max_window} that "
                f"layers of this model see: its sinks would be out of their sight",
                param="ghostkv.residency",
            )
        if self.blocks > pool_blocks or self.window.size > max_context:
            raise InvalidRequest(
                f"a window of {self.window.sinks} + {self.window.recent} tokens needs {self.blocks} KV blocks of "
                f"{self.block_tokens} tokens and {self.window.size} positions; "
                f"the pool has {pool_blocks} blocks, the model's context is {max_context} tokens",
                param="ghostkv.residency",
            )
