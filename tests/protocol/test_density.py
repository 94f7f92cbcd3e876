"""Density: 0 for nothing, about one half for prose, near 1 for records, and what each term adds."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ghostkv.protocol.density import estimate_density

PROSE = (
    "The road wound down between the hills, and towards evening the travellers saw smoke above the trees. Nobody had "
    "expected a village so far from the coast. An old woman came out to meet them and asked, without surprise, whether "
    "they had eaten. They had not, and she led them to a long table under the fig trees where others were waiting."
)
RECORD = "Unit AX-4471 left Dock 7 at 14:05 with 312 kg for Port Ellis; seal 88-GH-20, invoice 5561-C, due 12 May 2031."


@given(st.text(max_size=300), st.integers(0, 500), st.text(max_size=300), st.lists(st.floats(-50, 0), max_size=20))
def test_always_between_0_and_1(text: str, items: int, before: str, logprobs: list[float]) -> None:
    assert 0.0 <= estimate_density(text, items, before=before, logprobs=logprobs) <= 1.0


def test_records_are_denser_than_prose_and_prose_than_repetition() -> None:
    repeated = "They had to repair the ship. " * 12
    record = estimate_density(RECORD, 8)
    prose = estimate_density(PROSE, 1)
    assert record > 0.9
    assert 0.25 < prose < 0.6
    assert estimate_density(repeated, 0) < 0.15
    assert estimate_density("", 0) == 0.0


def test_each_term_counts() -> None:
    plain = estimate_density(PROSE, 2)
    assert estimate_density(PROSE, 4) > plain
    assert estimate_density(PROSE, 2, before=PROSE) < plain  # nothing in it is new
    assert estimate_density(PROSE, 2, logprobs=[-math.log(2) * 7] * 9) > plain
    assert estimate_density(PROSE, 2, logprobs=[-0.01] * 9) < plain


def test_the_scale() -> None:
    """Of the items alone: 2.8 in 100 words are one half and 9.4 are 1; they weigh three times what novelty does."""
    words = " ".join(f"w{i}" for i in range(1000))
    low, middle, high = (estimate_density(words, items) for items in (0, 28, 94))
    assert middle - low == pytest.approx(0.5 * 0.75)
    assert high - middle == pytest.approx(0.5 * 0.75)
    assert estimate_density(words, 200) == high
