"""The activations of a gated MLP, by number, as compiled kernels take them."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Any

import numpy as np
from numba import njit

from ghostkv.model import vector as v

SILU, GELU_TANH = 1, 2
ACTIVATIONS = MappingProxyType({"silu": SILU, "gelu_pytorch_tanh": GELU_TANH})
"""By their names in a Hugging Face config."""

_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)
_CUBE = np.float32(0.044715)
_STEEP = np.float32(2 * math.sqrt(2 / math.pi))


@njit(nogil=True, cache=True)
def activated(x: Any, kind: int) -> Any:
    """Sixteen lanes: silu(x) = x / (1 + e**-x) (SwiGLU, Shazeer 2020), or GELU by its tanh approximation.

    (1 + tanh(u)) / 2 = 1 / (1 + e**-2u), so that GELU is x / (1 + e**-2u) with u = sqrt(2 / pi) (x + 0.044715 x**3).
    """
    steep = x
    if kind == GELU_TANH:
        cube = v.mul(v.mul(x, x), x)
        steep = v.mul(v.fma(cube, v.splat(_CUBE), x), v.splat(_STEEP))
    return v.div(x, v.add(v.splat(_ONE), v.exp(v.sub(v.splat(_ZERO), steep))))
