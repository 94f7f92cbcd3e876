"""The compiled rows around integer products: from floats to digits.

Reference: `int8.linear`. Arrays are flat; work is dealt to threads by row, so no row depends on another.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from ghostkv.model import vector as v

_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)
_LARGEST = np.float32(127.0)


@njit(nogil=True, cache=True, inline="never")
def transform(x: Any, at: int, width: int, block: int) -> None:
    """Each run of `block` values of x[at : at + width] times the Hadamard matrix of +-1, in place."""
    step = 1
    if block >= v.LANES:
        for j in range(at, at + width, v.LANES):
            v.store(x, j, v.hadamard(v.load(x, j)))
        step = v.LANES
        while 4 * step <= block:
            _two_steps(x, at, width, step)
            step *= 4
    while step < block:
        for start in range(at, at + width, 2 * step):
            if step >= v.LANES:
                for j in range(start, start + step, v.LANES):
                    low, high = v.load(x, j), v.load(x, j + step)
                    v.store(x, j, v.add(low, high))
                    v.store(x, j + step, v.sub(low, high))
            else:
                for j in range(start, start + step):
                    first, second = x[j], x[j + step]
                    x[j], x[j + step] = first + second, first - second
        step *= 2


@njit(nogil=True, cache=True)
def _two_steps(x: Any, at: int, width: int, step: int) -> None:
    """The butterflies of `transform` over `step` and then over 2 * step, reading and writing once."""
    for start in range(at, at + width, 4 * step):
        for j in range(start, start + step, v.LANES):
            first, second = v.load(x, j), v.load(x, j + step)
            third, fourth = v.load(x, j + 2 * step), v.load(x, j + 3 * step)
            sum_low, difference_low = v.add(first, second), v.sub(first, second)
            sum_high, difference_high = v.add(third, fourth), v.sub(third, fourth)
            v.store(x, j, v.add(sum_low, sum_high))
            v.store(x, j + step, v.add(difference_low, difference_high))
            v.store(x, j + 2 * step, v.sub(sum_low, sum_high))
            v.store(x, j + 3 * step, v.sub(difference_low, difference_high))


@njit(nogil=True, cache=True)
def mix(x: Any, matrix: Any, output: Any, block: int, blocks: int) -> None:
    """output[row, j] += sum over i of matrix[j, i] * x[row, i], in order; x and output [rows, blocks, block]."""
    width = block * blocks
    for at in range(0, len(x), width):
        for j in range(blocks):
            for i in range(blocks):
                factor = matrix[j * blocks + i]
                for k in range(block):
                    output[at + j * block + k] += factor * x[at + i * block + k]


@njit(nogil=True, cache=True)
def largest(x: Any, at: int, width: int) -> tuple[float, float]:
    """The largest absolute value of x[at : at + width], and 0, or NaN where a value is infinite or NaN."""
    most = probe = v.splat(_ZERO)
    zero = v.splat(_ZERO)
    for j in range(0, width, v.LANES):
        value = v.load_part(x, at + j, width - j)
        most = v.maximum(v.absolute(value), most)
        probe = v.fma(value, zero, probe)
    return v.lane_max(most), v.lane_sum(probe)


@njit(nogil=True, cache=True, inline="never")
def _digits_of_row(x: Any, at: int, digits: Any, to: int, width: int) -> float:
    """Write the row's digits; returns its scale, NaN where a value is not finite."""
    most, probe = largest(x, at, width)
    inverse = v.splat(_LARGEST / most if most > _ZERO else _ZERO)
    for j in range(0, width, v.LANES):
        v.store_digits(digits, to + j, v.mul(v.load_part(x, at + j, width - j), inverse), width - j)
    return most / _LARGEST + probe


@njit(nogil=True, cache=True, parallel=True, error_model="numpy")
def quantize(x: Any, digits: Any, scales: Any, scratch: Any, rows: int, width: int, block: int, threads: int) -> None:
    """digits[row] * scales[row] = transformed x[row], nearly.

    x float32 [rows, width]; digits int8, in -127..127, or uint8, these plus 128; scales float32 [rows]; scratch float32
    [threads * width].
    """
    for thread in prange(threads):
        for row in range(thread, rows, threads):
            if block == 1:
                scales[row] = _digits_of_row(x, row * width, digits, row * width, width)
            else:
                at = thread * width
                for j in range(0, width, v.LANES):  # element by element, Numba would look for negative indices
                    v.store_part(scratch, at + j, v.load_part(x, row * width + j, width - j), width - j)
                transform(scratch, at, width, block)
                scales[row] = _digits_of_row(scratch, at, digits, row * width, width)
