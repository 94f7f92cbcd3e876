"""Text whose facts recur: every repetition is true, was said long enough before, and stands where it is said to."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from ghostkv.evaluate.documents import Fact
from ghostkv.evaluate.invention import prose
from ghostkv.evaluate.recurring import APART, recurring

SEGMENT = 150


def count(text: str) -> int:
    return -(-len(text) // 4)


def filler() -> Iterator[str]:
    return prose("The rain had stopped by noon, and the road was dry. Nobody came to the gate that day.")


def statements(text: str, fact: Fact, value: str) -> list[int]:
    """Where the text says, in any words, that the fact has this value."""
    attribute = fact.attribute
    forms = [f"{attribute.stem} {{v}}", attribute.statement, attribute.update]
    found = {
        match.start()
        for form in filter(None, forms)
        for match in re.finditer(re.escape(form.format(s=fact.subject, v=value)) + r"(?!\w|\.\d|:\d)", text)
    }
    return sorted(found)


@settings(max_examples=15)
@given(st.integers(0, 10_000))
def test_what_is_repeated_was_said_long_before_and_still_holds(seed: int) -> None:
    found = recurring(seed, 3000, count, filler())
    text = " ".join(found.text.split())
    assert count(text) >= 3000
    times = Counter(repetition.fact for repetition in found.repetitions)
    assert all(repetition.fact.value in found.sentences[repetition.index] for repetition in found.repetitions)
    for fact, repeated in times.items():
        stated = statements(text, fact, fact.value)
        assert len(stated) == 1 + repeated
        for one, next_one in pairwise(stated):
            assert count(text[one:next_one]) >= 0.95 * APART * SEGMENT
        if fact.replaced:
            assert max(statements(text, fact, fact.replaced)) < stated[0]


def test_how_much_recurs() -> None:
    found = [recurring(seed, 3000, count, filler()) for seed in range(5)]
    for each in found:
        words = " ".join(each.text.split())
        assert min(repetition.apart for repetition in each.repetitions) >= APART * SEGMENT
        assert 20 <= len(each.repetitions) <= 60  # of 20 segments, most after the first three
        assert len({repetition.fact.subject for repetition in each.repetitions}) > 8
        verbatim = sum(words.count(repetition.fact.sentence) > 1 for repetition in each.repetitions)
        assert verbatim > len(each.repetitions) / 4
    assert recurring(1, 3000, count, filler()) == found[1] != found[2]
