"""Whether a value stands in a text: the one rule by which answers are right and questions have one answer."""

from __future__ import annotations

import re


def contains(text: str, value: str) -> bool:
    """Whether `value` stands in `text` as a whole: not as a part of a longer word or number.

    Case and white space are folded.
    """
    return _pattern(value).search(folded(text)) is not None


def occurrences(text: str, value: str) -> int:
    """How often it does. `text` is folded already."""
    return sum(1 for _ in _pattern(value).finditer(text))


def folded(text: str) -> str:
    """Without difference of case, and with one space for any white space."""
    return " ".join(text.split()).casefold()


def _pattern(value: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w])(?<!\d[.,:-]){re.escape(folded(value))}(?![\w])(?![.,:-]\d)")
