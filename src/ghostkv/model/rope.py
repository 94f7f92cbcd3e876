"""Rotary position embedding: the frequencies of a model, and the tables that kernels read.

A model trained further on longer texts changes its frequencies once and for all; each such way is one small dataclass.
Not here: the rotation itself (`kernels`, `torch_ops`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch

RopeTables = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines, float32 [context, head_size / 2]."""


class Scaling(Protocol):
    """A change of the frequencies."""

    @property
    def magnitude(self) -> float:
        """What rotated queries and keys are multiplied by."""
        ...

    def scale(self, frequencies: torch.Tensor, theta: float) -> torch.Tensor:
        """The changed frequencies, float64 like those given."""
        ...


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions divided by `factor` (position interpolation, Chen 2023)."""

    factor: float
    magnitude: float = 1.0

    def scale(self, frequencies: torch.Tensor, theta: float) -> torch.Tensor:
        return frequencies / self.factor


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Long waves divided by `factor`, short ones kept, a smooth passage between (Llama 3.1).

    Waves are compared with the context of the first training, `original` tokens: long are those over original / low,
    short those under original / high.
    """

    factor: float
    low: float
    high: float
    original: int
    magnitude: float = 1.0

    def scale(self, frequencies: torch.Tensor, theta: float) -> torch.Tensor:
        turns = self.original * frequencies / (2 * math.pi)
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
        return frequencies * (kept + (1 - kept) / self.factor)


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """Channels that turn fewer than `slow` times in `original` tokens divided by `factor`, over `fast` kept (YaRN).

    Between them a ramp over the channels, whose ends are whole channels where `truncate` (Peng 2023, section 3.2).
    """

    factor: float
    original: int
    magnitude: float
    fast: float = 32.0
    slow: float = 1.0
    truncate: bool = True

    def scale(self, frequencies: torch.Tensor, theta: float) -> torch.Tensor:
        pairs = len(frequencies)

        def channel(turns: float) -> float:
            return pairs * math.log(self.original / (turns * 2 * math.pi)) / math.log(theta)

        first, last = channel(self.fast), channel(self.slow)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * pairs - 1)
        width = last - first or 0.001
        divided = ((torch.arange(pairs, dtype=torch.float64) - first) / width).clamp(0.0, 1.0)
        return frequencies * (1 - divided + divided / self.factor)


@dataclass(frozen=True, slots=True)
class Divisors:
    """Each frequency divided by a number of its own: how GGUF files write what Llama 3.1 does."""

    values: tuple[float, ...]
    magnitude: float = 1.0

    def scale(self, frequencies: torch.Tensor, theta: float) -> torch.Tensor:
        return frequencies / torch.tensor(self.values, dtype=torch.float64)


@dataclass(frozen=True, slots=True)
class Rope:
    """Angle(p, i) = p * theta**(-2i / head_size) (RoFormer, eq. 15), the frequencies then changed by `scaling`."""

    theta: float = 10000.0
    scaling: Scaling | None = None

    def tables(self, head_size: int, context: int, device: torch.device) -> RopeTables:
        """For positions below `context`."""
        exponents = torch.arange(0, head_size, 2, dtype=torch.float64) / head_size
        frequencies = self.theta**-exponents
        if self.scaling is not None:
            frequencies = self.scaling.scale(frequencies, self.theta)
        angles = torch.outer(torch.arange(context, dtype=torch.float64), frequencies)
        return angles.cos().float().to(device), angles.sin().float().to(device)

    @property
    def score_scale(self) -> float:
        """What scores are multiplied by, so that tables are plain rotations: magnitudes of query and key."""
        return 1.0 if self.scaling is None else self.scaling.magnitude**2
