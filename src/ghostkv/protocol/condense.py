"""Shortens a message that is too long for a prompt, at a client's wish: its beginning and its end stay as written.

What stands between is not summarised. It is left to ledger and recall, which have read the whole message.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ghostkv.text.sentences import sentence_starts

LIMIT = 256  # tokens that are kept
_OPENING = 4  # one part in four is the beginning: the question is mostly at the end
_WIDEST = 16  # characters of a token, at most: what is cut away further off need not be tokenised
_MARK = "\n[...]\n"


@dataclass(frozen=True, slots=True)
class Condensed:
    """A message's content with its middle left out."""

    content: str
    start: int  # characters of the original before what is left out
    stop: int  # where in the original it goes on


def condense(content: str, count: Callable[[str], int], limit: int = LIMIT) -> Condensed:
    """At most about `limit` tokens of `content`, cut between sentences, else between words; `count` counts tokens."""
    opening = limit // _OPENING
    ending = limit - opening
    front = content[: _WIDEST * opening]
    start = _cut(front, lambda at: count(front[:at]) <= opening, last=True)
    begin = max(start, len(content) - _WIDEST * ending)
    back = content[begin:]
    stop = begin + _cut(back, lambda at: count(back[at:]) <= ending, last=False)
    return Condensed(f"{content[:start].rstrip()}{_MARK}{content[stop:].lstrip()}".strip(), start, stop)


def _cut(text: str, fits: Callable[[int], bool], *, last: bool) -> int:
    """The last place to cut that fits, or the first: at a sentence, else at a word, else anywhere."""
    edge = 0 if last else len(text)
    words = [i + 1 for i, character in enumerate(text) if character.isspace()]
    for places in (sentence_starts(text), words, range(len(text))):
        found = _last(places, fits) if last else _first(places, fits)
        if found is not None and found != edge:
            return found
    return edge


def _last(places: Sequence[int], fits: Callable[[int], bool]) -> int | None:
    """The last of ascending places that fits; all before it fit."""
    index = bisect_left(places, 1, key=lambda at: not fits(at))
    return places[index - 1] if index else None


def _first(places: Sequence[int], fits: Callable[[int], bool]) -> int | None:
    """The first of ascending places that fits; all after it fit."""
    index = bisect_left(places, 1, key=fits)
    return places[index] if index < len(places) else None
