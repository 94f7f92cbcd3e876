"""Matrix products over weights laid out in panels (`panels.py`), one compiled routine for any number of rows.

Reference: `torch_ops`, `int8.linear`. Arrays are flat. Every row's sums run over its inputs in order, so they depend on
neither the batch nor the threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from ghostkv.model import vector as v
from ghostkv.model.tile import PANEL, TILE_ROWS, multiply_tile

_TILE = TILE_ROWS * PANEL


def product_scratch(threads: int, dtype: type[np.float32 | np.int32]) -> np.ndarray[Any, Any]:
    """Room for the sums of `multiply`: float32 for bfloat16 weights, int32 for digits."""
    return np.zeros(threads * 2 * _TILE, dtype=dtype)


@njit(nogil=True, cache=True, inline="never")
def _scaled_row(
    sums: Any, at: int, scales: Any, scale: int, fine: int, row_scale: float, out: Any, to: int, n: int
) -> None:
    """out[to : to + n] = the sums of one row of a panel, times the scale of each output, times the row's.

    With `fine` >= 0 the second digits' sums follow a tile later, and their scales begin at `fine`.
    """
    for j in range(0, n, v.LANES):
        value = v.mul(v.load(sums, at + j), v.load(scales, scale + j))
        if fine >= 0:
            value = v.add(value, v.mul(v.load(sums, at + _TILE + j), v.load(scales, fine + j)))
        v.store_part(out, to + j, v.mul(value, v.splat(row_scale)), n - j)


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
    fine: int,
    threads: int,
) -> None:
    """out[row] = x[row] @ weight.T, float32 [rows, width].

    bfloat16: x and panels uint16; starts, scales, row_scales None. Digits: x uint8 (digit + 128), panels int8, starts
    int32 and scales float32 by output as the panels stand, row_scales float32 [rows]; to the last `fine` outputs their
    second digits are added. Each thread takes a run of (panel, up to 8 rows).
    """
    plain = width - fine
    alone, pairs = (plain + PANEL - 1) // PANEL, (fine + PANEL - 1) // PANEL
    tiles = (rows + TILE_ROWS - 1) // TILE_ROWS
    tasks = (alone + pairs) * tiles
    for thread in prange(threads):
        at = thread * 2 * _TILE
        for task in range(tasks * thread // threads, tasks * (thread + 1) // threads):
            panel, tile = task // tiles, task % tiles
            first, last = rows * tile // tiles, rows * (tile + 1) // tiles
            column = panel * PANEL if panel < alone else plain + (panel - alone) * PANEL
            count = min(PANEL, (plain if panel < alone else width) - column)
            source, own, second = first * inputs, panel * PANEL, (panel + pairs) * PANEL
            multiply_tile(x, source, inputs, panels, own * inputs, starts, own, sums, at, last - first)
            if panel >= alone:
                multiply_tile(
                    x, source, inputs, panels, second * inputs, starts, second, sums, at + _TILE, last - first
                )
            for row in range(first, last):
                each, to = at + (row - first) * PANEL, row * width + column
                if scales is None:
                    for j in range(0, count, v.LANES):
                        v.store_part(out, to + j, v.load(sums, each + j), count - j)
                else:
                    fine_scales = second if panel >= alone else -1
                    _scaled_row(sums, each, scales, own, fine_scales, row_scales[row], out, to, count)
