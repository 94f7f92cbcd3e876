"""Prompt lookup against a search that keeps no index, and the estimate of how often guesses are right."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ghostkv.engine.drafter import Drafts, PromptLookup, drafter, names
from ghostkv.errors import ConfigError


def search(tokens: list[int], limit: int) -> tuple[int, ...]:
    """What PromptLookup says, found by reading everything."""
    length = len(tokens)
    places = [end for end in range(length - 1, 1, -1) if tokens[end - 2 : end] == tokens[-2:]][:8]
    if not places or limit < 1:
        return ()

    def past(place: int) -> int:
        return next(n for n in range(17) if n == 16 or n == place or tokens[place - n - 1] != tokens[length - n - 1])

    best = max(places, key=lambda place: (past(place), place))
    endless = list(tokens)
    while len(endless) < length + limit:
        endless.append(endless[best + len(endless) - length])
    return tuple(endless[length:])


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=30), st.integers(0, 9))
def test_lookup_finds_what_a_search_finds(pieces: list[list[int]], limit: int) -> None:
    made, tokens = PromptLookup(), []
    for piece in pieces:
        tokens += piece
        assert made.propose(tokens, limit) == search(tokens, limit)


def test_lookup_prefers_the_longest_past_to_the_latest() -> None:
    assert PromptLookup().propose([1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3], 2) == (7, 9)


def test_a_repetition_goes_on() -> None:
    assert PromptLookup().propose([5, 1, 2, 1, 2], 5) == (1, 2, 1, 2, 1)


def test_names() -> None:
    assert names() == ("off", "lookup")
    assert drafter("off") is None and drafter("lookup") is PromptLookup
    with pytest.raises(ConfigError, match="choose one of off, lookup"):
        drafter("magic")


def test_the_chance_follows_what_is_right_also_of_guesses_that_were_not_computed() -> None:
    drafts = Drafts(PromptLookup())
    assert drafts.chance == 0.5
    drafts.propose([1, 2, 3, 1, 2], 2)
    drafts.learn([3])  # the first guess of two
    right = drafts.chance
    assert 0.5 < right < 1
    drafts.learn([4, 1])  # the second was chosen after another token: it says nothing
    assert drafts.chance == pytest.approx(right * 7 / 8)
    drafts.propose([1, 2, 3, 1, 2, 9], 2)
    nothing = drafts.chance
    drafts.learn([1])  # without a guess
    assert drafts.proposal == () and drafts.chance == nothing
