"""The parts that were read from a text, and how they hang together. They are read in `asks` and `outline`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ghostkv.protocol.ask_words import BACK_REFERENCE, CODE, ENDING, MATHS, NARRATIVE, OPENING

_BESIDE = 0.5  # weight of an introduction or a conclusion
_OPENING_ASKED = re.compile(
    r"\b(?:an?|one)\s+(?:short\s+|brief\s+)?(introduction|prologue|preface|foreword)\b", re.IGNORECASE
)
_ENDING_ASKED = re.compile(
    r"\b(?:an?|one|with\s+the|and\s+the)\s+(?:[a-z]+\s+)?(conclusion|epilogue|comparison|summary)\b(?!\s+(?:of|for))|"
    r"\b(?:then|finally|and)\s+(?:please\s+)?(compare)\s+(?:them|the|all|both|these)\b",
    re.IGNORECASE,
)
_BOTH_ASKED = re.compile(r"\ban?\s+introduction\s+and\s+(?:an?\s+)?conclusion\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Part:
    """One part that was asked for, in document order."""

    title: str
    goal: str = ""
    weight: float = 1.0
    depends_on: tuple[int, ...] = ()
    mode: Literal["sequential", "parallel"] = "parallel"
    heading: str = ""


def linked(parts: Sequence[Part], *, chain: bool) -> tuple[Part, ...]:
    """Parts with their dependencies: each on the one before in a chain, else on none.

    An introduction depends on nothing. A conclusion, summary or comparison, and what refers back, on all before it.
    """
    found: list[Part] = []
    for i, part in enumerate(parts):
        title = part.title
        if i == 0 or (OPENING.match(title) and not chain):
            depends_on: tuple[int, ...] = ()
        elif ENDING.match(title) or BACK_REFERENCE.search(part.goal or title):
            depends_on = tuple(range(i))
        else:
            depends_on = (i - 1,) if chain else ()
        found.append(replace(part, depends_on=depends_on, mode="sequential" if chain or depends_on else "parallel"))
    return tuple(found)


def is_chain(text: str) -> bool:
    """Whether parts of what `text` asks for need each other's text: narrative, code and mathematics."""
    return any(words.search(text) for words in (NARRATIVE, CODE, MATHS))


def with_ends(parts: Sequence[Part], before: str, after: str, *, chain: bool) -> Sequence[Part]:
    """Parts between the introduction that `before` and the conclusion that `after` asks for, all linked."""
    if len(parts) < 2:
        return ()
    opening = _OPENING_ASKED.search(before)
    both, ending = _BOTH_ASKED.search(after), _ENDING_ASKED.search(after)
    found = list(parts)
    if opening or both:
        found.insert(0, Part(opening[1].lower() if opening else "introduction", weight=_BESIDE))
    if both or ending:
        word = (ending[1] or ending[2]).lower() if ending else "conclusion"
        found.append(Part("comparison" if word == "compare" else word, weight=_BESIDE))
    return linked(found, chain=chain)
