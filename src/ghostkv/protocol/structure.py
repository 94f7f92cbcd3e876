"""Where the text so far may be cut. Pure and incremental: fed one token's text at a time, it never looks back.

It knows lines (see `lines`), and inside a line the two things that must stay whole: numbers and URLs. It does not know
sentences, and it does not decide where a segment ends: `segmenter` does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ghostkv.protocol.lines import Lines, Opening

_HEAD = 160  # characters kept of a line's start; a fence's info string is far shorter
_WINDOW = 256  # characters kept of a line's end; a sentence end or a number needs far fewer

_URL_TEXT = r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%|]"
_URL_ONLY = re.compile(_URL_TEXT + "+")
_URL = re.compile(rf"(?:\w://|\bwww\.){_URL_TEXT}*$", re.ASCII)
# A word that may still become one: "h", "htt", "https:/", "ww". ASCII: other letters may stand right before a URL.
_URL_START = re.compile(r"\b(?:h|ht|htt|https?:?/?|f|ft|ftp:?/?|ww?w?)$", re.ASCII | re.IGNORECASE)
# A word with a digit in it, as far as it is written; a sign before a number; a number and the beginning of its unit.
_NUMBER = re.compile(r"(?:\d[!-~°′″‰]*|(?:^|[\s([])[-+±−$€£¥~]|\d\s+\S*)$")


@dataclass(frozen=True, slots=True)
class Structure:
    """The text of an answer up to here, as far as cutting it is concerned."""

    tokens: int = 0  # tokens fed
    first: int = 0  # index of the current line's first token
    head: str = ""  # first characters of the current line
    last: str = ""  # last characters of the current line
    url: bool = False  # the text ends inside a URL
    lines: Lines = field(default_factory=Lines)

    def feed(self, piece: str) -> Structure:
        """Take one token's text; it is empty where the token leaves a character incomplete."""
        if "\n" in piece or ">" in piece:
            return self._feed_lines(piece)
        head = self.head if len(self.head) >= _HEAD else self.head + piece
        last = (self.last + piece)[-_WINDOW:]
        return Structure(self.tokens + 1, self.first, head, last, self._url(piece, last), self.lines)

    @property
    def openings(self) -> tuple[Opening, ...]:
        """What is open, outermost first."""
        return self.lines.openings

    @property
    def at_line(self) -> bool:
        """Whether the text ends where a line begins."""
        return not self.head or self.head.isspace()

    @property
    def kind(self) -> str:
        """What the current line is."""
        return self.lines.kind(self.head)

    @property
    def cuttable(self) -> bool:
        """Whether the text may be cut here, inside a line or at its start."""
        if self.lines.tool:
            return False
        if self.at_line:
            return True
        if self.kind != "prose" or self.lines.is_open("think"):
            return False
        return not (self.url or _NUMBER.search(self.last) or _URL_START.search(self.last))

    def _feed_lines(self, piece: str) -> Structure:
        lines, first, head, last = self.lines, self.first, self.head, self.last
        *ended, rest = piece.split("\n")
        for part in ended:
            head, last = head + part, (last + part)[-_WINDOW:]
            lines = lines.tags(last, len(part), first, self.tokens).close(head, last, first, self.tokens)
            head, last, first = "", "", self.tokens
        head, last = head + rest, (last + rest)[-_WINDOW:]
        if ended and not rest:
            first = self.tokens + 1
        lines = lines.tags(last, len(rest), first, self.tokens)
        url = _URL.search(last) is not None if ended else self._url(rest, last)
        return Structure(self.tokens + 1, first, head, last, url, lines)

    def _url(self, piece: str, last: str) -> bool:
        if self.url and (not piece or _URL_ONLY.fullmatch(piece)):
            return True
        if "/" in piece or "." in piece or self.url:
            return _URL.search(last) is not None
        return False
