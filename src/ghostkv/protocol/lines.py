"""Markdown seen line by line: what a line is, and what is open after it.

A value that changes at line ends and tags only. It follows the plain cases of CommonMark as models write it, and where
a case is doubtful it says "inside", which costs a boundary a few tokens and never a broken structure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

_FENCE = re.compile(r"(`{3,})[^`]*|(~{3,}).*")
_ITEM = re.compile(r"\s*(?:[-*+•]|\d{1,4}[.)])\s")
_HEADING = re.compile(r"#{1,6}\s")
_TAG = re.compile(r"<(/?)(think|tool_call)>")


@dataclass(frozen=True, slots=True)
class Opening:
    """A structure that is still open, and the tokens of the answer that hold its opening line."""

    kind: str  # "fence", "list", "quote" or "think"
    first: int  # index in the answer of the line's first token
    last: int  # index of its last token, inclusive
    mark: str = ""  # of a fence: the marker that closes it


@dataclass(frozen=True, slots=True)
class Lines:
    """What the complete lines so far leave open."""

    openings: tuple[Opening, ...] = ()  # outermost first
    tool: bool = False  # inside a tool call
    ended: str = ""  # kind of the line that ended last; "" before the first
    text: str = ""  # last characters of that line
    length: int = 0  # tokens of that line

    def is_open(self, kind: str) -> bool:
        """Whether a structure of this kind is open."""
        return any(opening.kind == kind for opening in self.openings)

    def kind(self, head: str) -> str:
        """What a line is that begins with `head`, as far as that can be told yet."""
        body = head.lstrip()
        if self.is_open("fence"):
            return "code"
        if not body:
            return "blank"
        if _unquoted(body).startswith(("```", "~~~")):
            return "fence"
        if body[0] == ">":
            return "quote"
        if _ITEM.match(head):
            return "item"
        if "|" in body or self.ended == "row":
            return "row"
        if _HEADING.match(body):
            return "heading"
        # After a blank line only an indented line goes on with the list; directly after an item any line does.
        if self.is_open("list") and (self.ended != "blank" or head[:2].isspace()):
            return "item"
        return "prose"

    def tags(self, text: str, added: int, first: int, token: int) -> Lines:
        """Take the tags that end in the last `added` characters of the line `text`, whose first token is `first`."""
        lines = self
        for match in _TAG.finditer(text):
            if match.end() <= len(text) - added or lines.is_open("fence"):
                continue
            closes = bool(match[1])
            if match[2] == "tool_call":
                lines = replace(lines, tool=not closes)
            elif closes:
                lines = _closed(lines, "think")
            elif not lines.is_open("think"):
                lines = _opened(lines, Opening("think", first, token))
        return lines

    def close(self, head: str, text: str, first: int, token: int) -> Lines:
        """A line ends in `token`: `head` are its first characters, `text` its last ones."""
        kind = self.kind(head)
        lines = self
        if kind == "code":
            lines = self._close_fence(head)
        elif kind == "fence" and (match := _FENCE.fullmatch(_unquoted(head.strip()))):
            lines = _opened(self, Opening("fence", first, token, mark=match[1] or match[2]))
        elif kind == "quote":
            lines = self if self.is_open("quote") else _opened(self, Opening("quote", first, token))
        elif kind == "item":
            lines = self if self.is_open("list") else _opened(self, Opening("list", first, token))
        elif kind not in ("blank", "fence"):
            lines = _closed(self, "list")
        if kind not in ("quote", "fence", "code"):
            lines = _closed(lines, "quote")
        return replace(lines, ended=kind, text=text, length=token - first + 1)

    def _close_fence(self, head: str) -> Lines:
        fence = next(opening for opening in self.openings if opening.kind == "fence")
        body = _unquoted(head.strip())
        closes = len(body) >= len(fence.mark) and not body.strip(fence.mark[0])
        return _closed(self, "fence") if closes else self


def _opened(lines: Lines, opening: Opening) -> Lines:
    return replace(lines, openings=(*lines.openings, opening))


def _closed(lines: Lines, kind: str) -> Lines:
    if not lines.is_open(kind):
        return lines
    return replace(lines, openings=tuple(opening for opening in lines.openings if opening.kind != kind))


def _unquoted(line: str) -> str:
    return line.lstrip("> \t")
