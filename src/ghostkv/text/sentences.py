"""Sentence boundaries by rule, English first. Used to end a segment and to start a carried tail; not a parser.

Precision before recall: a missed end costs a few tokens, a false one cuts a sentence. So an abbreviation, an initial or
an ellipsis never ends a sentence here, although each sometimes does.
"""

from __future__ import annotations

import re

_WIDE = "。！？｡"  # written without a space after them
_STOPS = ".!?।॥؟۔" + _WIDE
_CLOSERS = "\"'”’)]}»」』）】〉》*_"
_OPENERS = "\"'“‘([{«「『（【〈《*_"
_WINDOW = 80  # characters before a full stop that can matter

_ABBREVIATIONS = frozenset(
    "Mr Mrs Ms Mx Dr Prof Rev Fr Sr Jr St Mt Ft Gen Col Maj Capt Cmdr Cdr Lt Sgt Cpl Pvt Adm Gov Sen Rep Pres Hon Supt "  # noqa: SIM905
    "Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec Inc Ltd Co Corp Bros Dept Univ Ave Blvd Rd "
    "Fig Figs fig figs Eq Eqs eq eqs Sec Ch Vol vol pp ed eds etc vs cf viz ca approx al resp Ph c p v".split()
)
_BEFORE_NUMBER = frozenset(("No", "Nos", "no", "nos", "Art", "art", "Nr", "nr"))  # "No. 5", but "No." is a sentence

_WORD = re.compile(r"[^\s\"'“‘(\[{«*_/—–-]*$")
_LETTERS = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]")  # e.g, U.S, a.m
_MARKER = re.compile(r"(?:^|\n)[ \t>]*(?:\d{1,3}|[A-Za-z]|[ivx]{1,5})$")  # "1." opens a list item
_STOP = re.compile(f"[{re.escape(_STOPS)}]+[{re.escape(_CLOSERS)}]*")
_BREAK = re.compile(r"\n\s*\n\s*|\n(?=[ \t]*(?:[-*+•]|\d{1,3}[.)]|#{1,6})[ \t])")


def ends_sentence(text: str) -> bool:
    """Whether `text`, if white space or nothing follows, ends with a whole sentence."""
    tail = text[-4 * _WINDOW :].rstrip().rstrip(_CLOSERS)
    return _is_stop(tail, len(tail))


def sentence_starts(text: str) -> list[int]:
    """Offsets, ascending, at which a sentence, paragraph or list item starts.

    The first is that of the first character that is not white space; white-space text has none. Unlike `ends_sentence`
    this sees what follows a full stop: a lower-case letter there means that the sentence goes on.
    """
    starts = {_skip_space(text, 0)}
    starts.update(_skip_space(text, match.end()) for match in _BREAK.finditer(text))
    for match in _STOP.finditer(text):
        start = _skip_space(text, match.end())
        stop = match.start() + len(match[0].rstrip(_CLOSERS))
        spaced = start > match.end() or text[stop - 1] in _WIDE
        if spaced and _is_stop(text, stop) and not _goes_on(text, stop, start):
            starts.add(start)
    return sorted(start for start in starts if start < len(text))


def _is_stop(text: str, stop: int) -> bool:
    """Whether the character before offset `stop` is a full stop that ends a sentence."""
    if stop == 0 or text[stop - 1] not in _STOPS:
        return False
    if text[stop - 1] != ".":
        return True
    before = text[max(0, stop - 1 - _WINDOW) : stop - 1]
    word = _word(before)
    if not word or word.endswith(".") or _MARKER.search(before):
        return False
    initial = len(word) == 1 and word.isupper()
    return not (initial or word in _ABBREVIATIONS or _LETTERS.fullmatch(word))


def _goes_on(text: str, stop: int, start: int) -> bool:
    following = text[start : start + _WINDOW].lstrip(_OPENERS)[:1]
    if following.isdigit():
        return _word(text[max(0, stop - 1 - _WINDOW) : stop - 1]) in _BEFORE_NUMBER
    return following.islower()


def _word(before: str) -> str:
    match = _WORD.search(before)
    return match[0] if match else ""


def _skip_space(text: str, start: int) -> int:
    while start < len(text) and text[start].isspace():
        start += 1
    return start
