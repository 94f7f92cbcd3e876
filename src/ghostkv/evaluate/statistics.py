"""Intervals for shares, means of clusters and slopes. Every random number comes from a fixed seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
import numpy.typing as npt

from ghostkv.errors import ConfigError

_Z = 1.959963984540054  # normal quantile of a two-sided 95 % interval
_DRAWS = 2000
_SEED = 20231  # any fixed number: the same data give the same interval

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its 95 % limits."""

    estimate: float
    low: float
    high: float


def wilson(hits: int, trials: int) -> Interval:
    """A share with Wilson's score interval (J. Am. Stat. Assoc. 22, 1927). Without trials: 0 to 1."""
    if not 0 <= hits <= trials:
        raise ConfigError(f"{hits} hits in {trials} trials is no share")
    if trials == 0:
        return Interval(float("nan"), 0.0, 1.0)
    share, square = hits / trials, _Z * _Z
    centre = (share + square / (2 * trials)) / (1 + square / trials)
    half = _Z * sqrt(share * (1 - share) / trials + square / (4 * trials * trials)) / (1 + square / trials)
    # At the edges the limits are the edges, but for rounding.
    low = 0.0 if hits == 0 else centre - half
    high = 1.0 if hits == trials else centre + half
    return Interval(share, low, high)


def cluster_mean(clusters: Sequence[Sequence[float]], draws: int = _DRAWS) -> Interval:
    """The mean over all values; limits by a percentile bootstrap that draws whole clusters.

    Values of one cluster (the probes of a document, the tokens after a boundary) need not be independent.
    """
    sums, sizes = _sums(clusters)
    picks = _picks(len(clusters), draws)
    means = sums[picks].sum(axis=1) / sizes[picks].sum(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return Interval(float(sums.sum() / sizes.sum()), float(low), float(high))


def slope(x: Sequence[float], y: Sequence[float]) -> Interval:
    """Least-squares slope of y over x with Student's t limits. At least three points, not all at one x."""
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    spread = _spread(xs)
    freedom = len(xs) - 2
    if freedom < 1:
        raise ConfigError(f"a slope with limits needs three points, not {len(xs)}")
    found = _slopes(xs[None], ys[None])[0]
    residuals = ys - ys.mean() - found * (xs - xs.mean())
    half = t_quantile(freedom) * sqrt(float(residuals @ residuals) / freedom / spread)
    return Interval(float(found), float(found) - half, float(found) + half)


def cluster_slope(x: Sequence[float], y: Sequence[float], draws: int = _DRAWS) -> Interval:
    """Least-squares slope with percentile bootstrap limits; each (x, y) is the mean of one cluster."""
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    _spread(xs)
    picks = _picks(len(xs), draws)
    picks = picks[np.ptp(xs[picks], axis=1) > 0]  # a draw of one point alone has no slope
    low, high = np.quantile(_slopes(xs[picks], ys[picks]), (0.025, 0.975))
    return Interval(float(_slopes(xs[None], ys[None])[0]), float(low), float(high))


def t_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t; exact for 1 and 2 degrees, else within 0.01.

    Expansion in 1 / freedom of Fisher and Cornish (Technometrics 2, 1960).
    """
    if freedom <= 2:
        return (12.706204736, 4.302652730)[freedom - 1]
    z, n = _Z, freedom
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    fourth = (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160
    return z + first / n + second / n**2 + third / n**3 + fourth / n**4


def _sums(clusters: Sequence[Sequence[float]]) -> tuple[Floats, Floats]:
    if not clusters or any(len(cluster) == 0 for cluster in clusters):
        raise ConfigError("a mean needs at least one cluster, and every cluster a value")
    sums = np.array([sum(cluster) for cluster in clusters], dtype=np.float64)
    return sums, np.array([len(cluster) for cluster in clusters], dtype=np.float64)


def _picks(clusters: int, draws: int) -> npt.NDArray[np.int64]:
    """Indices [draws, clusters], drawn with replacement."""
    return np.random.default_rng(_SEED).integers(0, clusters, (draws, clusters))


def _spread(xs: Floats) -> float:
    spread = float(np.square(xs - xs.mean()).sum()) if len(xs) else 0.0
    if spread == 0:
        raise ConfigError("a slope needs at least two different places")
    return spread


def _slopes(xs: Floats, ys: Floats) -> Floats:
    """One slope for each row of xs and ys [rows, points]."""
    x = xs - xs.mean(axis=1, keepdims=True)
    y = ys - ys.mean(axis=1, keepdims=True)
    slopes: Floats = (x * y).sum(axis=1) / np.square(x).sum(axis=1)
    return slopes
