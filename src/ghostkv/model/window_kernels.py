"""Attention through a window: keys stand unrotated and are rotated when read, by their place among what is seen.

Beside `kernels`, whose running softmax it uses, so that ordinary rows pay nothing for it. Numba's disk cache knows the
file of a kernel, not that one: after an edit there, `make clean-kernels`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numba import njit, prange

from ghostkv.model import kv_block
from ghostkv.model import vector as v
from ghostkv.model.kernels import attend_block, begin_group, end_group, scratch_floats
from ghostkv.model.kv_kernels import turn_block
from ghostkv.model.kv_tensors import BLOCK_SCALES
from ghostkv.step import BLOCK_TOKENS

Floats = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, slots=True)
class LaneRope:
    """Rotary tables with positions innermost, so that 16 slots of a block are rotated at once.

    Flat float32 [head size / 2, stride]; position p stands at column p + 16, and 16 columns of zeros on either side
    serve the slots of a block that are not seen.
    """

    positions: int
    stride: int
    cosines: Floats
    sines: Floats

    @classmethod
    def of(cls, rope: tuple[torch.Tensor, torch.Tensor], positions: int) -> LaneRope:
        """For positions below `positions`; rope float32 [context, head size / 2]."""
        cosines, sines = (np.pad(table[:positions].numpy().T, ((0, 0), (v.LANES, v.LANES))) for table in rope)
        return cls(positions, cosines.shape[1], cosines.reshape(-1), sines.reshape(-1))


def tile_floats(size: int) -> int:
    """Floats of one thread's tile: a block's rotated keys."""
    return size * BLOCK_TOKENS


@njit(nogil=True, cache=True, inline="never")
def _rotate_block(
    keys: Any, base: int, cosines: Any, sines: Any, stride: int, position: int, tile: Any, to: int, size: int
) -> None:
    """Rotate the 16 keys of the block at `base` by position, position + 1, ...; the formula of `rotate_and_write`.

    They may stand in the tile already.
    """
    half = size // 2
    for j in range(half):
        cosine = v.load(cosines, j * stride + v.LANES + position)
        sine = v.load(sines, j * stride + v.LANES + position)
        first = kv_block.channel(keys, base, j)
        second = kv_block.channel(keys, base, half + j)
        v.store(tile, to + j * BLOCK_TOKENS, v.sub(v.mul(first, cosine), v.mul(second, sine)))
        v.store(tile, to + (half + j) * BLOCK_TOKENS, v.fma(second, cosine, v.mul(first, sine)))


@njit(nogil=True, cache=True, parallel=True)
def attend_windowed(
    queries: Any,
    keys: Any,
    values: Any,
    scales: Any,
    tables: Any,
    width: int,
    table_of_row: Any,
    members: Any,
    tokens: Any,
    sinks: Any,
    gone: Any,
    ring_at: Any,
    ring_blocks: Any,
    cosines: Any,
    sines: Any,
    stride: int,
    output: Any,
    scratch: Any,
    tiles: Any,
    kv_heads: int,
    heads: Any,
    chains: Any,
    size: int,
    threads: int,
) -> None:
    """Attention of each row in `members` over its sinks and its window, oldest first.

    Arrays as in `kernels.attend` and `batch.WindowedRows`; cosines, sines and stride of a LaneRope; tiles is scratch
    for rotated keys, `tile_floats` for each thread.
    """
    group = len(heads)
    floats = scratch_floats(group, size)
    tile = size * BLOCK_TOKENS
    for thread in prange(threads):
        at = thread * floats
        to = thread * tile
        for task in range(thread, len(members) * kv_heads, threads):
            i = task // kv_heads
            head = task % kv_heads
            query = (members[i] * kv_heads + head) * group * size
            begin_group(scratch, at, group, size)
            table = table_of_row[members[i]] * width
            visible_sinks = min(sinks[i], tokens[i] + 1)
            sink_blocks = (visible_sinks + BLOCK_TOKENS - 1) // BLOCK_TOKENS
            last = tokens[i] - sinks[i]  # from here on, tokens are counted from the end of the sinks
            first_block = gone[i] // BLOCK_TOKENS
            blocks = sink_blocks + max(last // BLOCK_TOKENS + 1 - first_block, 0)
            for turn in range(blocks):
                if turn < sink_blocks:
                    block = np.int64(tables[table + turn])
                    position = turn * BLOCK_TOKENS
                    first = 0
                    behind = min(BLOCK_TOKENS, visible_sinks - position)
                else:
                    begin = (first_block + turn - sink_blocks) * BLOCK_TOKENS
                    block = np.int64(tables[table + ring_at[i] + begin // BLOCK_TOKENS % ring_blocks[i]])
                    position = sinks[i] + begin - gone[i]  # of the block's first slot, seen or not
                    first = max(gone[i] - begin, 0)
                    behind = min(BLOCK_TOKENS, last + 1 - begin)
                place = block * kv_heads + head
                base = place * size * BLOCK_TOKENS
                if scales is None:
                    _rotate_block(keys, base, cosines, sines, stride, position, tiles, to, size)
                else:
                    turn_block(keys, base, tiles, to, size)
                    _rotate_block(tiles, to, cosines, sines, stride, position, tiles, to, size)
                at_scales = place * BLOCK_SCALES
                attend_block(
                    tiles, to, values, base, scales, at_scales, 0, first, behind, queries, query,
                    scratch, at, heads, chains, size,
                )  # fmt: skip
            end_group(scratch, at, group, size, output, query)
