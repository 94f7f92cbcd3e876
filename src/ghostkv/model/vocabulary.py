"""Compiled reductions over one row of logits: argmax, log-sum, thresholds, inverse-CDF draw. One row each, never split.

Logits and scores are float32 rows, or bfloat16 held in uint16. Sums are float64 in vocabulary order, so that a draw
depends on the row alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from ghostkv.model import vector as v

_NEGATIVE_INFINITY = np.float32(-np.inf)
_BINS = 2048


@njit(nogil=True, cache=True)
def widen(logits: Any, at: int, size: int, out: Any) -> None:
    """out[:size] = logits[at : at + size] as float32."""
    whole = size - size % v.LANES
    for j in range(0, whole, v.LANES):
        v.store(out, j, v.load(logits, at + j))
    if whole < size:
        v.store_part(out, whole, v.load_part(logits, at + whole, size - whole), size - whole)


@njit(nogil=True, cache=True)
def _largest(row: Any, at: int, size: int) -> float:
    whole = size - size % v.LANES
    best = v.splat(_NEGATIVE_INFINITY)
    for j in range(0, whole, v.LANES):
        best = v.maximum(v.load(row, at + j), best)
    if whole < size:
        rest = v.keep_first(v.load_part(row, at + whole, size - whole), size - whole, _NEGATIVE_INFINITY)
        best = v.maximum(rest, best)
    return v.lane_max(best)


@njit(nogil=True, cache=True)
def _first_equal(row: Any, at: int, size: int, value: float) -> int:
    for j in range(0, size - v.LANES, v.LANES):
        if v.any_equal(v.load(row, at + j), v.splat(value)):
            for i in range(j, j + v.LANES):
                if v.lane_sum(v.load_part(row, at + i, 1)) == value:
                    return i
    for i in range(max(0, size - 2 * v.LANES), size):
        if v.lane_sum(v.load_part(row, at + i, 1)) == value:
            return i
    return -1


@njit(nogil=True, cache=True, parallel=True)
def argmax_rows(logits: Any, rows: Any, size: int, out: Any, threads: int) -> None:
    """out[i] = lowest index of the largest logit of row rows[i]; -1 if the row holds no number."""
    for thread in prange(threads):
        for i in range(thread, len(rows), threads):
            at = rows[i] * size
            out[i] = _first_equal(logits, at, size, _largest(logits, at, size))


@njit(nogil=True, cache=True)
def log_sum_exp(scores: Any, size: int) -> float:
    """ln(sum(e**scores)), float64."""
    largest = np.float64(_largest(scores, 0, size))
    total = 0.0
    for i in range(size):
        total += np.exp(np.float64(scores[i]) - largest)
    return largest + np.log(total)


@njit(nogil=True, cache=True)
def _threshold(values: Any, weights: Any, size: int, target: float, floor: float) -> float:
    """The largest t for which the weights of all values >= t sum to `target`; values under `floor` do not count.

    Values are in [0, 1], where float bits order as values do: three rounds of 2,048 bins find t without sorting.
    """
    keys = values.view(np.uint32)
    mass = np.zeros(_BINS)
    prefix = np.uint32(0)
    above = 0.0
    for shift in (21, 10, 0):
        mass[:] = 0.0
        for i in range(size):
            if values[i] >= floor and (shift == 21 or keys[i] >> np.uint32(21 if shift == 10 else 10) == prefix):
                low = (keys[i] >> np.uint32(shift)) & np.uint32(0x7FF if shift else 0x3FF)
                mass[low] += weights[i]
        chosen = 0
        total = above
        for bin_ in range(_BINS - 1, -1, -1):
            if mass[bin_] > 0.0:  # the lowest such bin is chosen where rounding keeps the sum under the target
                chosen, above = bin_, total
                total += mass[bin_]
                if total >= target:
                    break
        width = np.uint32(10 if shift == 0 else 11)
        prefix = np.uint32((prefix << width) | np.uint32(chosen))
    result = np.empty(1, dtype=np.uint32)
    result[0] = prefix
    return result.view(np.float32)[0]


@njit(nogil=True, cache=True)
def _unnormalised(scores: Any, size: int, inverse: float, weights: Any) -> None:
    """weights = e**((scores - max) * inverse), float32."""
    largest = v.splat(_largest(scores, 0, size))
    scale = v.splat(inverse)
    whole = size - size % v.LANES
    for j in range(0, whole, v.LANES):
        v.store(weights, j, v.exp(v.mul(v.sub(v.load(scores, j), largest), scale)))
    if whole < size:
        rest = v.exp(v.mul(v.sub(v.load_part(scores, whole, size - whole), largest), scale))
        v.store_part(weights, whole, rest, size - whole)


@njit(nogil=True, cache=True)
def _mass(weights: Any, size: int, floor: float) -> float:
    """Sum of the weights from `floor` up, in vocabulary order."""
    total = 0.0
    for i in range(size):
        if weights[i] >= floor:
            total += weights[i]
    return total


@njit(nogil=True, cache=True)
def draw(
    scores: Any, size: int, temperature: float, top_k: int, top_p: float, min_p: float, uniform: float, weights: Any
) -> int:
    """Draw an index by inverse CDF in vocabulary order over softmax(scores / temperature), filtered.

    top-k first, top-p of what top-k left, min-p relative to the largest; ties with the last one kept are kept too.
    `weights` is scratch, float32 [size]. Returns -1 if the row holds no number.
    """
    _unnormalised(scores, size, np.float32(min(1.0 / temperature, 1e30)), weights)
    floor = np.float32(0.0)
    if 0 < top_k < size:
        ones = np.ones(size, dtype=np.float32)
        floor = _threshold(weights, ones, size, np.float64(top_k), floor)
    if top_p < 1.0:
        floor = max(floor, _threshold(weights, weights, size, top_p * _mass(weights, size, floor), floor))
    floor = max(floor, np.float32(min_p))
    target = uniform * _mass(weights, size, floor)
    cumulative = 0.0
    last = -1
    for i in range(size):
        if weights[i] >= floor and weights[i] > 0.0:
            cumulative += weights[i]
            last = i
            if cumulative > target:
                break
    return last  # the last kept one where uniform is just under 1 and rounding ate the rest
