"""Intervals against published values, against every possible resample, and against numpy."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ghostkv.errors import ConfigError
from ghostkv.evaluate.statistics import cluster_mean, cluster_slope, slope, t_quantile, wilson

ANSCOMBE_X = [10, 8, 13, 9, 11, 14, 6, 4, 12, 7, 5]
ANSCOMBE_Y = [8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68]


@pytest.mark.parametrize(
    ("hits", "trials", "low", "high"),
    [  # Newcombe, Statistics in Medicine 17 (1998), table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (29, 29, 1 - 0.1170, 1.0),
    ],
)
def test_wilson_is_as_published(hits: int, trials: int, low: float, high: float) -> None:
    found = wilson(hits, trials)
    assert (found.estimate, found.low, found.high) == pytest.approx((hits / trials, low, high), abs=6e-5)


def test_wilson_without_trials_knows_nothing() -> None:
    assert (wilson(0, 0).low, wilson(0, 0).high) == (0.0, 1.0)
    with pytest.raises(ConfigError):
        wilson(3, 2)


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_its_estimate(case: tuple[int, int]) -> None:
    found = wilson(*case)
    assert 0 <= found.low <= found.estimate <= found.high <= 1


def test_the_bootstrap_agrees_with_every_resample() -> None:
    clusters = [[1.0, 0.0, 0.0], [1.0, 1.0], [0.0], [1.0, 0.0, 1.0, 1.0]]
    means = [np.mean([value for i in pick for value in clusters[i]]) for pick in product(range(4), repeat=4)]
    low, high = np.quantile(means, (0.025, 0.975))
    found = cluster_mean(clusters, draws=20_000)
    assert found.estimate == pytest.approx(6 / 10)
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.03)
    assert found == cluster_mean(clusters, draws=20_000)


def test_whole_clusters_are_drawn() -> None:
    """Values that are equal within a cluster carry no more than one value each."""
    few = cluster_mean([[0.0], [1.0]] * 5)
    many = cluster_mean([[0.0] * 50, [1.0] * 50] * 5)
    assert (few.low, few.high) == pytest.approx((many.low, many.high))
    apart = cluster_mean([[value] for value in [0.0] * 250 + [1.0] * 250])
    assert apart.high - apart.low < (many.high - many.low) / 3


def test_a_mean_of_nothing_is_refused() -> None:
    for clusters in ([], [[1.0], []]):
        with pytest.raises(ConfigError):
            cluster_mean(clusters)


def test_slope_of_anscombes_first_set() -> None:
    found = slope(ANSCOMBE_X, ANSCOMBE_Y)  # slope 0.5001, standard error 0.1179, t(9) = 2.2622
    half = 0.1179 * 2.2622
    assert (found.estimate, found.low, found.high) == pytest.approx((0.5001, 0.5001 - half, 0.5001 + half), abs=1e-4)


@given(st.lists(st.tuples(st.integers(-50, 50), st.integers(-50, 50)), min_size=3, max_size=30))
def test_slopes_agree_with_numpy(points: list[tuple[int, int]]) -> None:
    x, y = zip(*points)
    if len(set(x)) == 1:
        with pytest.raises(ConfigError):
            slope(x, y)
        return
    expected = pytest.approx(float(np.polyfit(x, y, 1)[0]), abs=1e-8)
    assert slope(x, y).estimate == expected
    assert cluster_slope(x, y, draws=50).estimate == expected


def test_both_limits_of_a_slope_find_noise_and_trend() -> None:
    noise = np.random.default_rng(3).normal(size=40)
    x = list(range(40))
    for limits in (slope, cluster_slope):
        flat = limits(x, list(noise))
        rising = limits(x, list(noise + 0.2 * np.arange(40)))
        assert flat.low < 0 < flat.high
        assert 0.1 < rising.low < 0.2 < rising.high < 0.3


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (10, 2.228), (18, 2.101), (60, 2.000)],
)
def test_students_quantiles(freedom: int, quantile: float) -> None:
    assert t_quantile(freedom) == pytest.approx(quantile, abs=0.02 if freedom == 3 else 0.005)
