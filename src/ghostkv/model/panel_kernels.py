"""Matrix products over weights laid out in panels (`panels.py`), one compiled routine for any number of rows.

Reference: `torch_ops`, `int8.linear`. Arrays are flat. Every row's sums run over its inputs in order, so they depend on
neither the batch nor the threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from ghostkv.model import vector as v
from ghostkv.model.activations import activated
from ghostkv.model.int8_kernels import quantize
from ghostkv.model.tile import PANEL, PARTS, TILE_ROWS, WORD, multiply_tile

_TILE = TILE_ROWS * PANEL


def product_scratch(threads: int, dtype: type[np.float32 | np.int32]) -> np.ndarray[Any, Any]:
    """Room for the sums of `multiply`: float32 for bfloat16 weights, int32 for digits."""
    return np.zeros(threads * 2 * _TILE, dtype=dtype)


@njit(nogil=True, cache=True)
def _scaled(sums: Any, at: int, scales: Any, scale: int) -> Any:
    """16 sums as float32, times the scales of their outputs where those are digits."""
    if scales is None:
        return v.load(sums, at)
    return v.mul(v.load(sums, at), v.load(scales, scale))


@njit(nogil=True, cache=True, inline="never")
def _finish_tile(
    sums: Any,
    at: int,
    scales: Any,
    own: int,
    second: int,
    gated: Any,
    row_scales: Any,
    rows: tuple[int, int],
    out: Any,
    to: int,
    width: int,
    n: int,
) -> None:
    """out[to : to + n] of each row = what its sums of one panel come to; `rows`: the first, and the one after the last.

    Scales begin at `own`. With second >= 0 there are the sums of another panel, a tile later, whose scales begin
    there: second digits, which are added, or, `gated` (a number of `activations`, else 0), what the activation of the
    first is multiplied by.
    """
    zero = v.splat(np.float32(0.0))
    for j in range(0, n, v.LANES):
        for row in range(rows[0], rows[1]):
            place = at + (row - rows[0]) * PANEL + j
            value = _scaled(sums, place, scales, own + j)
            other = _scaled(sums, place + _TILE, scales, second + j) if second >= 0 else zero
            if second >= 0 and not gated:
                value = v.add(value, other)
            if scales is not None:
                value = v.mul(value, v.splat(row_scales[row]))
            if gated:
                if scales is not None:
                    other = v.mul(other, v.splat(row_scales[row]))
                value = v.mul(activated(value, gated), other)
            target = to + row * width + j
            if n - j >= v.LANES:
                v.store(out, target, value)
            else:
                v.store_part(out, target, value, n - j)


@njit(nogil=True, cache=True)
def _task_at(unit: int, single: int) -> int:
    """The task that a unit of work falls into: `single` tasks of one unit each, then tasks of two."""
    return unit if unit <= single else single + (unit - single) // 2


@njit(nogil=True, cache=True, parallel=True)
def multiply(
    x: Any,
    panels: Any,
    starts: Any,
    scales: Any,
    row_scales: Any,
    out: Any,
    sums: Any,
    rows: int,
    inputs: int,
    width: int,
    paired: int,
    gated: Any,
    threads: int,
) -> None:
    """out[row] = x[row] @ weight.T [rows, width], as float32, or bfloat16 where out is uint16.

    bfloat16: x and panels uint16; starts, scales, row_scales None. Digits: x uint8 (digit + 128), panels int8, starts
    int32 and scales float32 by output as the panels stand, row_scales float32 [rows]. Behind the last `paired` outputs
    stand as many more of the weight: their second digits, which are added, or, `gated` (a number of `activations`),
    x @ those.T, by which the activation of the first is multiplied (all outputs then). Each thread takes a run of
    (panel, up to TILE_ROWS rows).
    """
    plain = width - paired
    alone, pairs = (plain + PANEL - 1) // PANEL, (paired + PANEL - 1) // PANEL
    tiles = (rows + TILE_ROWS - 1) // TILE_ROWS
    units = (alone + 2 * pairs) * tiles
    for thread in prange(threads):
        at = thread * 2 * _TILE
        begin, end = units * thread // threads, units * (thread + 1) // threads
        for task in range(_task_at(begin, alone * tiles), _task_at(end, alone * tiles)):
            panel, tile = task // tiles, task % tiles
            first, last = rows * tile // tiles, rows * (tile + 1) // tiles
            column = panel * PANEL if panel < alone else plain + (panel - alone) * PANEL
            count = min(PANEL, (plain if panel < alone else width) - column)
            source, own, second = first * inputs, panel * PANEL, -1
            # Tiles bring the next panel near, a part each; where there are fewer than three, memory is busy as it is.
            near = inputs * PANEL + tile % PARTS * v.LANES * WORD // panels.itemsize if tiles >= 3 else 0
            weights = own * inputs
            multiply_tile(x, source, inputs, panels, weights, starts, own, sums, at, last - first, weights + near)
            if panel >= alone:
                second, to = (panel + pairs) * PANEL, at + _TILE
                weights = second * inputs
                multiply_tile(
                    x, source, inputs, panels, weights, starts, second, sums, to, last - first, weights + near
                )
            _finish_tile(sums, at, scales, own, second, gated, row_scales, (first, last), out, column, width, count)


@njit(nogil=True, cache=True)
def multiply_values(
    values: Any,
    block: int,
    scratch: Any,
    digits: Any,
    panels: Any,
    starts: Any,
    scales: Any,
    row_scales: Any,
    out: Any,
    sums: Any,
    rows: int,
    inputs: int,
    width: int,
    paired: int,
    gated: Any,
    threads: int,
) -> None:
    """`quantize` the values [rows, inputs] into digits and row_scales, and `multiply` those: one call from Python."""
    quantize(values, digits, row_scales, scratch, rows, inputs, block, threads)
    multiply(
        digits, panels, starts, scales, row_scales, out, sums, rows, inputs, width, paired, gated, threads
    )  # fmt: skip
