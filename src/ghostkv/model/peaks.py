"""What this machine can do at most: bytes read a second, and multiplications of a large product, both measured.

The roofline that `ghostkv bench engine` holds a step against (Williams 2009). Not a benchmark of anything of ours but
the product.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numba import njit, prange

from ghostkv.model import int8
from ghostkv.model import vector as v
from ghostkv.model.gemm import Linear, lay_out_int8, prepare, product
from ghostkv.model.panels import ZERO_POINT
from ghostkv.model.threads import compute

_READ = 1 << 26  # floats: far more than any cache holds
_SIDE, _ROWS = 2048, 256
_TRIES = 7
_STREAMS = 4  # reads that each thread has in flight


@dataclass(frozen=True, slots=True)
class Peaks:
    """Bytes read from memory per second, and multiply-adds per second of a product of large matrices."""

    bytes_per_second: float
    macs_per_second: float


@njit(nogil=True, cache=True, parallel=True)
def _read(x: Any, out: Any, threads: int) -> None:
    """Read all of x, float32, its length a multiple of 64 * threads; out takes what the reads come to."""
    each = len(x) // threads
    for thread in prange(threads):
        a = b = c = d = v.splat(np.float32(0.0))
        for at in range(thread * each, (thread + 1) * each, _STREAMS * v.LANES):
            a = v.maximum(a, v.load(x, at))
            b = v.maximum(b, v.load(x, at + v.LANES))
            c = v.maximum(c, v.load(x, at + 2 * v.LANES))
            d = v.maximum(d, v.load(x, at + 3 * v.LANES))
        v.store(out, thread * v.LANES, v.maximum(v.maximum(a, b), v.maximum(c, d)))


def measure_peaks(dtype: str, threads: int) -> Peaks:
    """The best of several tries with `threads` threads; the product is that of `EngineConfig.dtype`."""
    memory = np.ones(_READ // (64 * threads) * 64 * threads, dtype=np.float32)
    found = np.empty(threads * v.LANES, dtype=np.float32)
    linear, x = _product(dtype)
    with compute(threads):
        read_s = _fastest(lambda: _read(memory, found, threads))
        product_s = _fastest(lambda: product(x, linear))
    return Peaks(memory.nbytes / read_s, _ROWS * _SIDE * _SIDE / product_s)


def _product(dtype: str) -> tuple[Linear, torch.Tensor]:
    weight = torch.ones(_SIDE, _SIDE)
    if dtype == "int8":
        return lay_out_int8(int8.prepare_int8(weight)), torch.full((_ROWS, _SIDE), ZERO_POINT + 1, dtype=torch.uint8)
    kind = torch.bfloat16 if dtype == "bfloat16" else torch.float32
    return prepare(weight.to(kind)), torch.ones(_ROWS, _SIDE, dtype=kind)


def _fastest(run: Callable[[], object]) -> float:
    """Seconds of the fastest of several runs, the first one, which compiles, not counted."""
    run()
    times = []
    for _ in range(_TRIES):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)
