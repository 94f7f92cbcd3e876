"""The compiled routines around a slot of the KV pool: written as 16-bit or 32-bit numbers, or as digits with a scale.

Reference: `kv_codec`. `scales` is None where the pool holds no digits, which Numba settles when it compiles; arrays are
flat. Numba's disk cache knows the file of a kernel, not this one: after an edit here, `make clean-kernels`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from ghostkv.model import kv_block
from ghostkv.model import vector as v
from ghostkv.model.int8_kernels import largest, transform
from ghostkv.step import BLOCK_TOKENS

_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)
_LARGEST = np.float32(127.0)


@njit(nogil=True, cache=True)
def scaled(x: Any, scales: Any, at: int) -> Any:
    """Sixteen lanes, one for each slot of a block, times the slots' scales."""
    if scales is None:
        return x
    return v.mul(x, v.load(scales, at))


@njit(nogil=True, cache=True, inline="never", error_model="numpy")
def write_key(x: Any, at: int, size: int, keys: Any, to: int, scales: Any, scale_at: int) -> None:
    """Write x[at : at + size] as one slot's key, rounded; its first channel stands at `to`.

    With scales as digits, and scales[scale_at] is set.
    """
    scale = _ONE if scales is None else _write_scale(x, at, size, scales, scale_at)
    for j in range(0, size, v.LANES):
        kv_block.store_key(keys, to + j * BLOCK_TOKENS, _over(v.load(x, at + j), scales, scale))


@njit(nogil=True, cache=True, inline="never", error_model="numpy")
def write_value(x: Any, at: int, size: int, values: Any, to: int, scales: Any, scale_at: int) -> None:
    """`write_key` of a value."""
    scale = _ONE if scales is None else _write_scale(x, at, size, scales, scale_at)
    for j in range(0, size, v.LANES):
        kv_block.store_value(values, to + j * kv_block.per_word(values), _over(v.load(x, at + j), scales, scale))


@njit(nogil=True, cache=True)
def _over(lanes: Any, scales: Any, scale: float) -> Any:
    if scales is None:
        return lanes
    return v.div(lanes, v.splat(scale))


@njit(nogil=True, cache=True, error_model="numpy")
def _write_scale(x: Any, at: int, size: int, scales: Any, scale_at: int) -> Any:
    """Store the vector's scale, NaN where a value is not finite. Returns a divisor: the scale as stored, never 0."""
    most, probe = largest(x, at, size)
    v.store_part(scales, scale_at, v.splat(most / _LARGEST + probe), 1)
    scale = v.lane_sum(v.load_part(scales, scale_at, 1))
    return scale if scale > _ZERO else _ONE


@njit(nogil=True, cache=True)
def turn_key(x: Any, at: int, size: int) -> None:
    """x[at : at + size] = H x / n in place, n the order of H: the largest power of two that divides size."""
    order = size & -size
    transform(x, at, size, order)
    share = v.splat(_ONE / np.float32(order))
    for j in range(at, at + size, v.LANES):
        v.store(x, j, v.mul(v.load(x, j), share))


@njit(nogil=True, cache=True, inline="never")
def turn_block(keys: Any, base: int, tile: Any, to: int, size: int) -> None:
    """Write H times the 16 keys [size, 16] at `base`, before their scales, to tile[to : to + size * 16], float32."""
    for j in range(0, size * BLOCK_TOKENS, BLOCK_TOKENS):
        v.store(tile, to + j, kv_block.channel(keys, base, j // BLOCK_TOKENS))
    step = BLOCK_TOKENS
    while step < (size & -size) * BLOCK_TOKENS:
        for start in range(to, to + size * BLOCK_TOKENS, 2 * step):
            for j in range(start, start + step, BLOCK_TOKENS):
                low, high = v.load(tile, j), v.load(tile, j + step)
                v.store(tile, j, v.add(low, high))
                v.store(tile, j + step, v.sub(low, high))
        step *= 2
