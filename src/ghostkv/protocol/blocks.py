"""Cuts growing text into sentences and lines, left to right, so that how the text came does not show in what it finds.

A unit is given out once nothing that may follow can change it. Prose and list items are cut at sentences and may go on
over a line break; rows, headings, code and log lines are units as they stand. It knows no tokens; `structure` does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ghostkv.text.sentences import sentence_starts

LIMIT = 800  # characters of a unit; what is longer is cut, at white space where there is some
_NEAR = 200  # characters that hold the end of most sentences
_HEAD = 64  # characters that tell what a line is
_WRAPPED = 60  # a line at least this long is taken to go on in the next

_OPENERS = "\"'“‘([{«『「（【〈《*_"
_FENCE = re.compile(r"[ \t>]*(`{3,}|~{3,})")
_ITEM = re.compile(r"[ \t]*(?:[-*+•]|\d{1,4}[.)])[ \t]+(?:\[[ xX]\][ \t]+)?")
_QUOTE = re.compile(r"[ \t]*(?:>[ \t]?)+")
_HEADING = re.compile(r"[ \t]*#{1,6}[ \t]+|(?=\[[\w .-]{1,40}\][ \t]*(?:\n|$))")
_LOG = re.compile(r"[ \t]*\[?(?:\d{4}-\d\d-\d\d[T ]\d\d:\d\d|\d\d:\d\d:\d\d)")
_ENTRY = re.compile(r"[ \t]*[*_`\"']{0,3}[^\W\d_][\w .()/-]{0,40}[*_`\"']{0,3}[ \t]*[:=][*_]{0,2}[ \t]")
# "22 C. The": the shared rules take the letter for an initial.
_UNIT_STOP = re.compile(r"(?:\d[ °]{0,2}[CFKVAWNJ]|/[LA-Z])\.\s+(?=[A-Z])")
_SPLIT = frozenset(("prose", "item", "entry", "quote"))
_JOINING = frozenset(("prose", "item"))


@dataclass(frozen=True, slots=True)
class Unit:
    """text[start:end], white space around it included."""

    start: int
    end: int
    kind: str  # "prose", "item", "entry", "quote", "row", "heading", "log" or "code"


@dataclass(frozen=True, slots=True)
class Place:
    """Where reading stands: at a line's start, or inside a block."""

    fence: str = ""  # the marker that closes the open code fence
    block: str = ""  # kind of the open block; "" at a line's start
    column: int = 0  # characters of the current line that are read


def cut(text: str, start: int, place: Place, *, final: bool) -> tuple[Unit | None, int, Place]:
    """The next unit of text[start:], where reading goes on, and the place there. No progress: more text is needed."""
    while start < len(text) and not place.block:
        entered = _enter(text, start, place, final=final)
        if entered is None:
            return None, start, place
        start, place = entered
    if start >= len(text) and not (place.block and final):
        return None, start, place
    stop, closed = _extent(text, start, place, final=final)
    end = _end(text[start:stop], closed=closed, splits=place.block in _SPLIT)
    if end is None:
        return None, start, place
    unit = Unit(start, start + end, place.block)
    if closed and start + end == stop:
        return unit, min(stop + 1, len(text)), replace(place, block="", column=0)
    newline = text.rfind("\n", start, start + end)
    column = place.column + end if newline < 0 else start + end - newline - 1
    return unit, start + end, replace(place, column=column)


def _enter(text: str, start: int, place: Place, *, final: bool) -> tuple[int, Place] | None:
    """Take what opens a line: a marker, or all of a line that says nothing itself. None: too little is known."""
    newline = text.find("\n", start, start + LIMIT + 1)
    stop = newline if newline >= 0 else min(len(text), start + LIMIT)
    complete = newline >= 0 or (final and stop == len(text))
    if not complete and stop - start < _HEAD:
        return None
    line = text[start:stop]
    if not line.strip():
        if not complete and stop - start < LIMIT:
            return None
        return (stop + 1 if newline >= 0 else stop), place
    fence = _FENCE.match(line)
    if place.fence:
        body = line.strip("> \t\r")
        if fence and len(body) >= len(place.fence) and not body.strip(place.fence[0]):
            return (stop + 1 if newline >= 0 else stop), replace(place, fence="")
        return start, replace(place, block="code", column=0)
    if fence:
        if not complete and stop - start < LIMIT:
            return None
        return (stop + 1 if newline >= 0 else stop), replace(place, fence=fence[1])
    kind, marker = _classify(line[:_HEAD])
    return start + marker, replace(place, block=kind, column=marker)


def _classify(head: str) -> tuple[str, int]:
    """Kind of a line, and the length of the marker at its start."""
    if head.lstrip().startswith("|"):
        return "row", 0
    if _LOG.match(head):
        return "log", 0
    for kind, pattern in (("heading", _HEADING), ("quote", _QUOTE)):
        match = pattern.match(head)
        if match:
            return kind, match.end()
    item = _ITEM.match(head)
    marker = item.end() if item else 0
    if _ENTRY.match(head, marker):
        return "entry", marker
    return ("item" if item else "prose"), marker


def _extent(text: str, start: int, place: Place, *, final: bool) -> tuple[int, bool]:
    """Where the open block ends as far as it is known, and whether it does end there."""
    line = start - place.column
    while True:
        newline = text.find("\n", max(line, start), start + LIMIT + 1)
        if newline < 0:
            stop = min(len(text), start + LIMIT + 1)
            return stop, final and stop == len(text)
        if place.block not in _JOINING:
            return newline, True
        following = text[newline + 1 : newline + 1 + _HEAD]
        complete = "\n" in following or len(following) == _HEAD or final
        if not complete:
            return newline, False
        if not _joins(following.partition("\n")[0], newline - line):
            return newline, True
        line = newline + 1


def _joins(head: str, length: int) -> bool:
    """Whether a line that begins with `head` goes on with the one before it, of `length` characters."""
    if not head.strip() or _FENCE.match(head) or _classify(head)[0] != "prose":
        return False
    return length >= _WRAPPED or head.lstrip()[0].islower()


def _end(text: str, *, closed: bool, splits: bool) -> int | None:
    """Length of the first sentence of a block; None while it may go on."""
    window = text[:LIMIT]
    if splits:
        # Most sentences are short, and an end that is certain in a part of the text is so in all of it.
        first = _next_start(window[:_NEAR], whole=False)
        first = first or _next_start(window, whole=closed or len(text) > LIMIT)
        if first:
            return first
    if closed and len(text) <= LIMIT:
        return len(text)
    if len(text) <= LIMIT:
        return None
    space = window.rfind(" ", LIMIT // 2)
    return space + 1 if space >= 0 else LIMIT


def _next_start(text: str, *, whole: bool) -> int:
    """Where the second sentence of a text starts; 0 if it has none, or if what follows `text` may change that."""
    starts = sentence_starts(text)[1:2]
    units = _UNIT_STOP.search(text)
    first = min([*starts, *([units.end()] if units and units.end() < len(text) else [])], default=0)
    return first if whole or text[first:].lstrip(_OPENERS) else 0
