"""Sampling against sorting-based float64 oracles."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ghostkv.model import vocabulary
from ghostkv.model.sampler import Sampler, adjust
from ghostkv.request import Sampling
from ghostkv.step import Draw

Row = npt.NDArray[np.float32]


def kept_by_sorting(scores: Row, sampling: Sampling) -> dict[int, float]:
    """Index -> probability after top-k, top-p, min-p, by the definitions, ties with the last one kept included."""
    x = scores.astype(np.float64) / sampling.temperature
    p = np.exp(x - x.max())
    keep = np.ones(len(p), dtype=bool)
    if 0 < sampling.top_k < len(p):
        keep &= p >= np.sort(p)[-sampling.top_k]
    if sampling.top_p < 1:
        ranked = np.sort(p[keep])[::-1]
        enough = np.cumsum(ranked) >= sampling.top_p * ranked.sum()
        least = ranked[int(np.argmax(enough))] if enough.any() else ranked[-1]
        keep &= p >= least
    keep &= p >= sampling.min_p
    return {int(i): float(p[i] / p[keep].sum()) for i in np.flatnonzero(keep)}


def drawn(scores: Row, sampling: Sampling, uniform: float) -> int:
    sampler = Sampler(len(scores), 1)
    return sampler.sample(torch.from_numpy(scores.copy())[None], [Draw(sampling, uniform)])[0].id


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"top_k": 1},
        {"top_k": 7},
        {"top_p": 0.5},
        {"top_p": 0.999999},
        {"min_p": 0.2},
        {"top_k": 20, "top_p": 0.7, "min_p": 0.05},
        {"temperature": 0.3, "top_p": 0.9},
        {"temperature": 2.5, "top_k": 50},
    ],
)
@pytest.mark.parametrize("size", [37, 1000, 4099])
def test_draws_walk_the_cumulative_distribution(filters: dict[str, Any], size: int) -> None:
    scores = np.random.default_rng(size).normal(0, 3, size).astype(np.float32)
    sampling = Sampling(**filters)
    kept = kept_by_sorting(scores, sampling)
    middle = 0.0
    for index, probability in kept.items():  # vocabulary order
        if probability > 1e-5:
            assert drawn(scores, sampling, middle + probability / 2) == index
        middle += probability


@given(
    st.lists(st.integers(-20, 20), min_size=2, max_size=60),
    st.integers(1, 8),
    st.floats(0.05, 0.99),
    st.floats(0, 0.999),
)
def test_draws_stay_inside_the_filters_with_many_ties(values: list[int], k: int, p: float, uniform: float) -> None:
    scores = (np.array(values) / 2).astype(np.float32)
    sampling = Sampling(top_k=k, top_p=p)
    kept = kept_by_sorting(scores, sampling)
    looser = kept_by_sorting(scores, Sampling(top_k=k, top_p=min(1.0, p + 1e-5)))  # float32 weights may cross the edge
    assert drawn(scores, sampling, uniform) in kept.keys() | looser.keys()


def test_frequencies_match_probabilities() -> None:
    scores = np.random.default_rng(1).normal(0, 1.5, 50).astype(np.float32)
    uniforms = (np.arange(5000) + 0.5) / 5000
    counts = np.bincount([drawn(scores, Sampling(temperature=0.8), u) for u in uniforms], minlength=50)
    expected = np.zeros(50)
    for index, probability in kept_by_sorting(scores, Sampling(temperature=0.8)).items():
        expected[index] = probability
    assert np.abs(counts / 5000 - expected).max() < 2 / 5000 * 2


def test_greedy_takes_the_lowest_of_equals_wherever_it_stands() -> None:
    for size in (5, 16, 17, 40, 49152):
        for at in {0, size // 2, size - 1}:
            scores = np.full(size, -3.0, dtype=np.float32)
            scores[at:] = 2.0
            assert drawn(scores, Sampling(temperature=0.0), 0.0) == at


def test_a_tiny_temperature_is_greedy_in_effect() -> None:
    scores = np.array([0.0, 1.0, 0.999], dtype=np.float32)
    assert drawn(scores, Sampling(temperature=1e-40), 0.999) == 1


def test_logprobs_are_of_the_unmodified_distribution() -> None:
    scores = np.random.default_rng(2).normal(0, 2, 300).astype(np.float32)
    sampling = Sampling(temperature=0.0, logprobs=5, logit_bias=((7, 50.0),))
    token = Sampler(300, 1).sample(torch.from_numpy(scores)[None], [Draw(sampling, 0.0)])[0]
    oracle = torch.from_numpy(scores).double().log_softmax(0)
    best = oracle.topk(5)
    assert token.id == 7
    assert token.logprob == pytest.approx(float(oracle[7]), abs=1e-6)
    assert [index for index, _ in token.top] == best.indices.tolist()
    assert [value for _, value in token.top] == pytest.approx(best.values.tolist(), abs=1e-6)


def test_penalties_bias_and_masks_follow_their_definitions() -> None:
    scores = np.array([2.0, -2.0, 1.0, 0.5, 3.0], dtype=np.float32)
    sampling = Sampling(
        repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25, logit_bias=((3, -1.0), (2, 4.0))
    )
    adjust(scores, Draw(sampling, 0.0, masked=(4,), client_ids=frozenset({0}), counts={1: 3}))
    # 0: client text only, divided; 1: multiplied as negative, then - 0.5 - 3 * 0.25; 2, 3: bias; 4: masked
    assert scores.tolist() == [1.0, -4.0 - 0.5 - 0.75, 5.0, -0.5, -np.inf]


def test_rows_are_drawn_apart() -> None:
    logits = torch.randn(6, 500, generator=torch.Generator().manual_seed(3)).bfloat16()
    draws = [
        Draw(Sampling(temperature=0.0), 0.0),
        Draw(Sampling(temperature=0.7, top_p=0.9), 0.31),
        Draw(Sampling(temperature=0.0, logprobs=2), 0.0),
        Draw(Sampling(min_p=0.1), 0.77),
        Draw(Sampling(temperature=0.0), 0.0, masked=(3,)),
        Draw(Sampling(temperature=1.3, top_k=9), 0.05),
    ]
    together = Sampler(500, 2).sample(logits, draws)
    alone = [Sampler(500, 1).sample(logits[i : i + 1], [draw])[0] for i, draw in enumerate(draws)]
    assert list(together) == alone


def test_log_sum_exp_is_float64_exact() -> None:
    scores = np.random.default_rng(4).normal(0, 8, 49152).astype(np.float32)
    oracle = float(torch.from_numpy(scores).double().logsumexp(0))
    assert vocabulary.log_sum_exp(scores, len(scores)) == pytest.approx(oracle, abs=1e-11)
