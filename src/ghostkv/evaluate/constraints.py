"""Instructions whose keeping a program can check, in the manner of IFEval (Zhou et al. 2023). One segment at a time.

A segment may begin and end inside a sentence, so nothing here depends on its edges: a check of sentences looks at those
that are whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ghostkv.text.sentences import sentence_starts


@dataclass(frozen=True, slots=True)
class Constraint:
    """An instruction and the check that a segment of the answer keeps it."""

    name: str
    instruction: str
    kept: Callable[[str], bool]


def no_commas(text: str) -> bool:
    """No comma."""
    return "," not in text


def lower_case(text: str) -> bool:
    """No capital letter."""
    return text == text.lower()


def without_word(text: str, word: str) -> bool:
    """Not that word, in any case."""
    return re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE) is None


def with_word(text: str, word: str, times: int) -> bool:
    """That word at least so often."""
    return len(re.findall(rf"\b{re.escape(word)}\b", text, re.IGNORECASE)) >= times


def no_digits(text: str) -> bool:
    """No digit."""
    return re.search(r"\d", text) is None


def short_sentences(text: str, words: int) -> bool:
    """Every whole sentence has at most so many words."""
    return all(len(sentence.split()) <= words for sentence in whole_sentences(text))


def ends_with(text: str, mark: str) -> bool:
    """Every whole sentence ends with that mark."""
    return all(sentence.rstrip("\"'”’)*_ ").endswith(mark) for sentence in whole_sentences(text))


def bullets(text: str) -> bool:
    """Every whole line that is not empty is an item of a list with hyphens or asterisks."""
    lines = [line.strip() for line in text.split("\n")[1:-1]]
    items = [line for line in lines if line]
    return bool(items) and all(re.match(r"[-*•] ", line) for line in items)


def whole_sentences(text: str) -> Sequence[str]:
    """The sentences of `text` but for the first and the last, which may be cut."""
    starts = sentence_starts(text)
    return [text[start:stop].strip() for start, stop in pairwise(starts[1:])]


CONSTRAINTS = (
    Constraint("no commas", "Do not use any commas.", no_commas),
    Constraint("lower case", "Write everything in lower case letters, without any capital letter.", lower_case),
    Constraint("no digits", "Do not use any digits.", no_digits),
    Constraint("without 'very'", 'Never use the word "very".', lambda text: without_word(text, "very")),
    Constraint("with 'water'", 'Use the word "water" again and again.', lambda text: with_word(text, "water", 2)),
    Constraint("short sentences", "No sentence may have more than 20 words.", lambda text: short_sentences(text, 20)),
    Constraint("exclamations", "End every sentence with an exclamation mark.", lambda text: ends_with(text, "!")),
    Constraint("bullets", "Write only a list, in which every line begins with a hyphen.", bullets),
)
