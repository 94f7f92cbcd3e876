"""What a step costs, measured while the engine runs: the one table that speculation and the controller ask.

Straight lines through what was measured, with stairs where products take rows in tiles, refitted with every step. It
knows counts and seconds, and decides nothing.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_MEMORY = 256  # steps over which their cost is averaged
# Seconds per second of an empty step where nothing is known (a CPU and a small model): of a tile, of a row that
# decodes, of a prompt token, of a token in the pool that a row reads.
_PRIOR = np.array([1 / 4, 1 / 32, 1 / 32, 1 / 12_000])
_EXPLAINED = 0.98  # of the mean, at most: an empty step always costs something
# How much each must vary between steps (squared) to outweigh that.
_WEIGHT = np.array([0.02, 4.0, 64.0, 250_000.0])


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of a step: `base`, and for each of what it computes; none negative."""

    base: float
    row: float  # a row that decodes
    prefill: float  # a prompt token
    read: float  # a token in the pool, for each row that decodes and sees it
    _: KW_ONLY
    tile: float = 0.0  # `tile_rows` rows of any kind, or what is left of them: products take so many at once
    tile_rows: int = 1

    def step(self, rows: float, read: float = 0.0, prefill: float = 0.0) -> float:
        """Seconds of a step of `rows` decoding rows that read `read` tokens in all, beside `prefill` prompt tokens."""
        tiles = math.ceil((rows + prefill) / self.tile_rows)
        return self.base + self.tile * tiles + self.row * rows + self.read * read + self.prefill * prefill


class StepCost:
    """Exponentially weighted least squares of seconds over tiles, rows, prompt tokens and tokens read.

    What does not vary between steps says nothing about its own cost, so each slope is drawn towards a fixed share of
    the base with a small weight.
    """

    def __init__(self, tile_rows: int = 1) -> None:
        """`tile_rows`: how many rows the model's products take at once; with 1, a tile is a row and costs nothing."""
        self._tile_rows = tile_rows
        first = 0 if tile_rows > 1 else 1  # of what is fitted
        self._prior, self._ridge = _PRIOR[first:], np.diag(_WEIGHT[first:])
        self._mean: Floats = np.zeros(len(self._prior))
        self._seconds = 0.0
        self._covariance: Floats = np.zeros((len(self._prior), len(self._prior)))
        self._with_seconds: Floats = np.zeros(len(self._prior))
        self._weight = 1.0  # of the next observation
        self._times: StepTimes | None = None  # until the next observation

    def observe(self, rows: int, seconds: float, *, prefill: int = 0, read: int = 0) -> None:
        """A step of `rows` decoding rows that read `read` tokens, and of `prefill` prompt tokens, took `seconds`."""
        weight = self._weight
        self._weight = max(weight / (1 + weight), 1 / _MEMORY)  # the plain mean until the memory is full
        tiles = [] if self._tile_rows == 1 else [-(-(rows + prefill) // self._tile_rows)]
        off = np.array([*tiles, rows, prefill, read], dtype=np.float64) - self._mean
        off_seconds = seconds - self._seconds
        self._mean += weight * off
        self._seconds += weight * off_seconds
        self._covariance += weight * ((1 - weight) * np.outer(off, off) - self._covariance)
        self._with_seconds += weight * ((1 - weight) * off_seconds * off - self._with_seconds)
        self._times = None

    @property
    def mean_read(self) -> float:
        """Tokens that a step reads on average."""
        return float(self._mean[-1])

    @property
    def measured(self) -> bool:
        """Whether `times` is more than an assumption."""
        return self._seconds > 0

    def times(self) -> StepTimes:
        """The costs, none negative; a second and fixed shares of it before the first step."""
        if self._times is None:
            self._times = self._fitted()
        return self._times

    def _fitted(self) -> StepTimes:
        mean = self._seconds
        if mean <= 0:
            return self._named(1.0, self._prior)
        prior = self._prior * (mean / (1 + float(self._prior @ self._mean)))
        slopes = np.linalg.solve(self._covariance + self._ridge, self._with_seconds + self._ridge @ prior)
        slopes = np.maximum(slopes, 0.0)
        explained, most = float(slopes @ self._mean), _EXPLAINED * mean
        if explained > most:
            slopes *= most / explained
            explained = most
        return self._named(mean - explained, slopes)

    def _named(self, base: float, slopes: Floats) -> StepTimes:
        tile, row, prefill, read = (0.0, *slopes.tolist())[-4:]
        return StepTimes(base, row, prefill, read, tile=tile, tile_rows=self._tile_rows)
