"""One process-wide lock around compute, and the thread counts it runs with.

Numba's fallback threading layer aborts when two threads enter parallel code at once, and torch's thread count is
global, so two engines in one process take turns.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numba
import torch

_lock = threading.Lock()


def available_threads() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def compute(threads: int) -> Iterator[None]:
    """Hold the compute lock with torch and Numba set to `threads`."""
    with _lock:
        set_threads(threads)
        with torch.inference_mode():
            yield


def set_threads(threads: int) -> None:
    """Have torch and Numba compute with so many threads. Call under `compute`."""
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    if numba.get_num_threads() != threads:
        numba.set_num_threads(threads)
