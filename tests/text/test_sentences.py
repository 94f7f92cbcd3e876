"""Sentence boundaries: examples by hand, and what holds for any text."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ghostkv.text.sentences import ends_sentence, sentence_starts

ENDS = [
    "He left.",
    "He left. ",
    "Who?",
    "Stop!",
    "What?!",
    'He said "no."',
    "He said “no.”",
    "(He left.)",
    "**Note.**",
    "No.",
    "It was 21.4.",
    "It happened in 1999.",
    "on Sol 42.",
    "See example.com.",
    "他走了。",
    "真的吗？",
    "「行く。」",
    "वह गया।",
    "I said:\n- apples and pears.",
]
GOES_ON = [
    "",
    " ",
    "Hello",
    "Hello,",
    "Dr.",
    "said Mr.",
    "e.g.",
    "(e.g.",
    "in the U.S.",
    "at 5 p.m.",
    "J.",
    "by J. R.",
    "J.R.",
    "cf.",
    "see Fig.",
    "etc.",
    "wait...",
    "wait…",
    "wait..",
    "21.",
    "- item\n1.",
    "a.",
    "She said:",
    'He said. "',
    ".",
    " .",
    "\n\n",
]


@pytest.mark.parametrize("text", ENDS)
def test_ends(text: str) -> None:
    assert ends_sentence(text)


@pytest.mark.parametrize("text", GOES_ON)
def test_goes_on(text: str) -> None:
    assert not ends_sentence(text)


@pytest.mark.parametrize(
    "sentences",
    [
        ["Dr. Okafor left at 21.4 degrees. ", "She did not return."],
        ["It was cold, e.g. minus 60. ", "Nobody spoke."],
        ['"Stop!" he said. ', '"Why?" ', '"Because."'],
        ["He waited... and left. ", "Then it rained."],
        ["By J. R. Smith, cf. Fig. 3 and No. 5 there. ", "No. ", "Never."],
        ["It cost $3.50 (cheap). ", "(It was old.) ", "“Fine.” ", "She paid."],
        ["他走了。", "她没有走！", "真的吗？"],
        ["「行く。」", "彼は言った。"],
        ["# Title\n\n", "Text here. ", "More.\n", "- first item\n", "- second item\n", "1. third\n", "2. fourth"],
        ["One.\n\n\n", "two starts a paragraph"],
        ["In 1999. ", "3 people came."],
        ["Visit a.b.com now. ", "Do it."],
        ["no end here"],
    ],
)
def test_starts(sentences: list[str]) -> None:
    text = "".join(sentences)
    expected, at = [], 0
    for sentence in sentences:
        expected.append(at)
        at += len(sentence)
    assert sentence_starts(text) == expected


def test_leading_space_is_not_a_sentence() -> None:
    assert sentence_starts("  \n One. Two.") == [4, 9]
    assert sentence_starts("") == sentence_starts(" \n\n ") == []


TEXT = st.lists(
    st.sampled_from(
        ["Dr", "No", "e.g", "a", "He", "left", ".", "!", "?", "...", "。", '"', ")", " ", "\n", "\n\n", "4", "- "]
    ),
    max_size=30,
).map("".join)


@given(TEXT)
def test_a_start_follows_an_end_or_opens_a_line(text: str) -> None:
    starts = sentence_starts(text)
    assert starts == sorted(set(starts))
    for start in starts:
        assert not text[start].isspace()
        before = text[:start]
        assert not before.strip() or ends_sentence(before) or "\n" in before[len(before.rstrip()) :]


@given(TEXT, TEXT)
def test_only_the_neighbourhood_counts(text: str, prefix: str) -> None:
    """Cutting far before the end changes nothing, so a caller may pass a tail of its text."""
    filler = "word " * 100
    assert ends_sentence(prefix + filler + text) == ends_sentence(filler + text)


@pytest.mark.parametrize("unit", ["\n", ". ", ".", ")", ".\n", " ", "a.", "\n \t", "。", "Dr. ", "\n- "])
def test_linear_time(unit: str) -> None:
    begin = time.process_time()
    sentence_starts(unit * 50_000)
    ends_sentence(unit * 50_000)
    assert time.process_time() - begin < 3  # quadratic code needs minutes
