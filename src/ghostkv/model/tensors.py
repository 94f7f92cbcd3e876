"""Checks that every loader makes on weights before a kernel sees them. Not the loading itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from ghostkv.errors import ModelError

Shape = tuple[int, ...]


def check_layout(expected: Mapping[str, Shape], found: Mapping[str, Shape], file_of: Callable[[str], Path]) -> None:
    """Refuse a missing tensor, one of another shape, and one that the architecture does not know.

    `file_of` gives the file that holds, or should hold, a tensor; errors name it. An unknown tensor (a bias, a rotary
    table, an adapter) changes what the model computes; leaving it out would not fail.
    """
    for name, shape in expected.items():
        if name not in found:
            raise ModelError(f"{file_of(name)}: tensor {name} is missing")
        if found[name] != shape:
            raise ModelError(f"{file_of(name)}: tensor {name} has shape {found[name]}; the metadata asks for {shape}")
    for name in found:
        if name not in expected:
            raise ModelError(f"{file_of(name)}: tensor {name} is not part of this architecture")


def check_finite(file: Path, name: str, tensor: torch.Tensor) -> None:
    """Refuse NaN and infinite weights; `tensor` may have any floating dtype."""
    low, high = tensor.aminmax()  # propagates NaN; far cheaper than isfinite on bfloat16
    if not (torch.isfinite(low) and torch.isfinite(high)):
        raise ModelError(f"{file}: tensor {name} holds NaN or infinite values")
