"""What a step costs, measured while the engine runs: the one table that speculation and the controller ask.

A straight line through what was measured, refitted with every step. It knows counts and seconds, and decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_MEMORY = 256  # steps over which their cost is averaged
# Seconds per second of an empty step where nothing is known (a CPU and a small model): of a row that decodes, of a
# prompt token, of a token in the pool that a row reads.
_PRIOR = np.array([1 / 32, 1 / 32, 1 / 12_000])
# How much each must vary between steps (squared) to outweigh that.
_WEIGHT = np.array([4.0, 64.0, 250_000.0])


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of a step: `base`, and for each of what it computes; none negative."""

    base: float
    row: float  # a row that decodes
    prefill: float  # a prompt token
    read: float  # a token in the pool, for each row that decodes and sees it

    def step(self, rows: float, read: float = 0.0, prefill: float = 0.0) -> float:
        """Seconds of a step of `rows` decoding rows that read `read` tokens in all, beside `prefill` prompt tokens."""
        return self.base + self.row * rows + self.read * read + self.prefill * prefill


class StepCost:
    """Exponentially weighted least squares of seconds over rows, prompt tokens and tokens read.

    What does not vary between steps says nothing about its own cost, so each slope is drawn towards a fixed share of
    the base with a small weight.
    """

    def __init__(self) -> None:
        self._mean: npt.NDArray[np.float64] = np.zeros(3)
        self._seconds = 0.0
        self._covariance: npt.NDArray[np.float64] = np.zeros((3, 3))
        self._with_seconds: npt.NDArray[np.float64] = np.zeros(3)
        self._weight = 1.0  # of the next observation
        self._times: StepTimes | None = None  # until the next observation

    def observe(self, rows: int, seconds: float, *, prefill: int = 0, read: int = 0) -> None:
        """A step of `rows` decoding rows that read `read` tokens, and of `prefill` prompt tokens, took `seconds`."""
        weight = self._weight
        self._weight = max(weight / (1 + weight), 1 / _MEMORY)  # the plain mean until the memory is full
        off = np.array([rows, prefill, read], dtype=np.float64) - self._mean
        off_seconds = seconds - self._seconds
        self._mean += weight * off
        self._seconds += weight * off_seconds
        self._covariance += weight * ((1 - weight) * np.outer(off, off) - self._covariance)
        self._with_seconds += weight * ((1 - weight) * off_seconds * off - self._with_seconds)
        self._times = None

    def line(self) -> tuple[float, float]:
        """(base, row) in seconds of a step that only decodes and reads as much as steps do on average."""
        times = self.times()
        return times.base + times.read * float(self._mean[2]), times.row

    def times(self) -> StepTimes:
        """The costs, none negative; a second and fixed shares of it before the first step."""
        if self._times is None:
            self._times = self._fitted()
        return self._times

    def _fitted(self) -> StepTimes:
        mean = self._seconds
        if mean <= 0:
            return StepTimes(1.0, *_PRIOR.tolist())
        prior = _PRIOR * (mean / (1 + float(_PRIOR @ self._mean)))
        slopes = np.linalg.solve(self._covariance + np.diag(_WEIGHT), self._with_seconds + _WEIGHT * prior)
        slopes = np.maximum(slopes, 0.0)
        explained = float(slopes @ self._mean)
        if explained > mean:
            slopes *= mean / explained
            explained = mean
        return StepTimes(mean - explained, *slopes.tolist())
