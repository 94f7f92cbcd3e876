"""Memory in large pages: what is read at random, or all of it in every step, and is too big for any cache.

NumPy asks the system for large pages (Linux: MADV_HUGEPAGE) where it allocates much, torch does not.
"""

from __future__ import annotations

import math

import numpy as np
import torch

_LINE = 64  # bytes of a cache line: a vector that lies across two costs twice


def zeros(*shape: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros of that shape from the start of a cache line on; large pages where the CPU's system has them to give."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = math.prod(shape) * dtype.itemsize
    memory = np.zeros(size + _LINE, dtype=np.uint8)
    start = -memory.ctypes.data % _LINE
    return torch.from_numpy(memory[start : start + size]).view(dtype).view(shape)
