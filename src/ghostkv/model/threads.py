"""One process-wide lock around compute, and the thread counts it runs with.

Numba's fallback threading layer aborts when two threads enter parallel code at once, and torch's thread count is
global, so two engines in one process take turns.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import numba
import torch

_lock = threading.Lock()

T = TypeVar("T")


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


def on_passing_thread(function: Callable[[], T]) -> T:
    """Call `function` on a thread that ends with it, and with the thread its OpenMP team.

    A team stays with the thread that computed. Where the teams of a process count more threads than there are cores,
    GNU OpenMP lets idle members sleep at once instead of waiting a moment for the next region, and waking them costs a
    step of few rows half of its speed. So what computes once, as loading does, leaves the cores to the engine's thread.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="ghostkv-load") as thread:
        return thread.submit(function).result()
