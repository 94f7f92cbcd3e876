"""Reads calls out of an answer while it is written: text in, content and pieces of calls out.

How the text is divided makes no difference to what is read in all, so that a stream and a whole reply say the same. A
call counts from the moment its name is known; white space between text and calls is no content.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass

from ghostkv.text.tool_markup import CALL_CLOSES, CALL_OPENS

_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\{)', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegins:
    """A call, as far as it is known when its arguments begin."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """The next piece of a call's arguments."""

    index: int
    text: str


Piece = Content | CallBegins | Arguments


@dataclass(slots=True)
class Call:
    """A call so far."""

    name: str
    arguments: str = ""  # JSON text
    ended: bool = False


class ToolReader:
    """Reads one answer."""

    def __init__(self, names: Collection[str], *, required: bool, apart: bool = False) -> None:
        """`names` can be called; `required`: the answer begins with a call; `apart`: it is either content or calls."""
        self.calls: list[Call] = []
        self._names = names
        self._required = required
        self._apart = apart
        self._said = False
        self._read = self._content
        self._rest = ""  # text that more is needed to understand
        self._depth = 0  # brackets that are open in the arguments
        self._quoted = False  # inside a string of them
        self._escaped = False  # right after a backslash in one

    @property
    def complete(self) -> bool:
        """Whether there are calls, and each has arguments that are whole JSON."""
        return bool(self.calls) and all(call.ended and _is_object(call.arguments) for call in self.calls)

    def feed(self, text: str) -> list[Piece]:
        """Take the next text."""
        self._rest += text
        pieces: list[Piece] = []
        while self._read(pieces):
            pass
        return pieces

    def close(self) -> list[Piece]:
        """The answer ends here. Of a call that is cut off before its arguments begin, nothing is said."""
        between = self._read == self._content
        rest, self._rest = self._rest, ""
        if not between or not rest or self._required or (self.calls and rest.isspace()):
            return []
        return [Content(rest)]

    def _content(self, pieces: list[Piece]) -> bool:
        text, opens, rest = self._rest.partition(CALL_OPENS)
        if opens and self._apart and (self._said or text.strip()):
            text, opens = self._rest, ""  # a tag in what is said opens no call
        said = text.rstrip() if opens else text[: _certain(text)]
        self._rest = rest if opens else text[len(said) :]
        if said:
            self._said = True
            pieces.append(Content(said))
        if opens:
            self._read = self._head
        return bool(opens)

    def _head(self, pieces: list[Piece]) -> bool:
        match = _HEAD.match(self._rest)
        name = _string(match[1]) if match else ""
        if match and name in self._names:
            pieces.append(CallBegins(len(self.calls), name))
            self.calls.append(Call(name))
            self._rest, self._read = self._rest[match.end() :], self._arguments
            return True
        text, closes, rest = self._rest.partition(CALL_CLOSES)
        if closes:  # not a call; only a backend that ignores grammars writes such a thing
            pieces.append(Content(f"{CALL_OPENS}{text}{closes}"))
            self._rest, self._read = rest, self._content
        return bool(closes)

    def _arguments(self, pieces: list[Piece]) -> bool:
        end = self._ending(self._rest)
        text = self._rest if end is None else self._rest[:end]
        self._rest = self._rest[len(text) :]
        if text:
            pieces.append(Arguments(len(self.calls) - 1, text))
            self.calls[-1].arguments += text
        if end is not None:
            self.calls[-1].ended = True
            self._read = self._tail
        return end is not None

    def _tail(self, pieces: list[Piece]) -> bool:
        _, closes, rest = self._rest.partition(CALL_CLOSES)
        if closes:
            self._rest, self._read = rest, self._content
        return bool(closes)

    def _ending(self, text: str) -> int | None:
        """Where in `text` the object of the arguments is complete."""
        for index, character in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif self._quoted:
                self._escaped, self._quoted = character == "\\", character != '"'
            elif character == '"':
                self._quoted = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if not self._depth:
                    return index + 1
        return None


def _certain(text: str) -> int:
    """Length of what in `text` is content whatever follows: all but white space and half a tag at its end."""
    half = next((n for n in range(len(CALL_OPENS) - 1, 0, -1) if text.endswith(CALL_OPENS[:n])), 0)
    return len(text[: len(text) - half].rstrip())


def _string(text: str) -> str:
    try:
        return str(json.loads(text))
    except ValueError:
        return ""


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
