"""Keeps a client's text from forming control strings inside a rendered prompt. It knows nothing of templates.

A character of content that could take part in a control string is swapped for a rare character that occurs nowhere in
the content, and swapped back after rendering. Two strengths:

* `light` swaps only a character at which a whole control string starts. Content without control strings is left alone,
  so a template's own logic (`in`, `startswith`, `trim`) sees it as it is.
* `strict` also swaps every punctuation character that occurs in any control string, so that no join or deletion that a
  template performs ("<|im_" next to "end|>") can complete one. What remains is a template that itself writes a word of
  the client between delimiters (`<|{{ role }}|>`): that is the template's meaning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import chain, islice
from typing import Any

from ghostkv.errors import InvalidRequest

# Egyptian hieroglyphs, Tangut, CJK extension B: letters without case or decomposition, which `repr` leaves as they
# are. It escapes private-use characters, so those would be lost where a template prints a list or a mapping.
_RARE = (range(0x13000, 0x1342F), range(0x17000, 0x187F8), range(0x20000, 0x2A6DE))

Swap = Callable[[str], str]


class Guard:
    """The swaps for one set of control strings and one request's content."""

    def __init__(self, control: Iterable[str], content: Iterable[str]) -> None:
        """Choose a rare character for each character to swap. Raises InvalidRequest if the content uses them all."""
        strings = sorted(control, key=lambda text: (-len(text), text))
        alphabet = sorted({c for text in strings for c in text if not c.isspace()})
        used: set[str] = set().union(*content)
        self._free = (c for c in map(chr, chain(*_RARE)) if c not in used)
        self._away: dict[int, str] = {ord(c): place for c, place in zip(alphabet, self._free, strict=False)}
        if len(self._away) < len(alphabet):
            raise InvalidRequest(
                "the messages use every rare character that could mark a control string", param="messages"
            )
        self._back = {ord(place): chr(c) for c, place in self._away.items()}
        self._punctuation = {c: place for c, place in self._away.items() if not (chr(c).isalnum() or chr(c) == "_")}
        self._start = re.compile(f"(?=(?:{'|'.join(map(re.escape, strings))})).", re.DOTALL) if strings else None

    def light(self, text: str) -> str:
        """Swap the first character of every control string, overlapping ones included."""
        if self._start is None:
            return text
        return self._start.sub(lambda match: match[0].translate(self._away), text)

    def strict(self, text: str) -> str:
        """Swap as `light` does, and every punctuation character of the control strings."""
        return self.light(text).translate(self._punctuation)

    def restore(self, text: str) -> str:
        """Undo either swap. Length and offsets stay."""
        return text.translate(self._back)

    def marks(self, count: int) -> list[str]:
        """Up to `count` rare characters that stand for nothing yet: to find again where something was put."""
        return list(islice(self._free, count))

    def guards(self, text: str) -> bool:
        """Whether `text` holds swapped characters."""
        return not self._back.keys().isdisjoint(map(ord, set(text)))


def swap_strings(value: Any, swap: Swap) -> Any:
    """`value`, JSON-like, with every string in it, keys included, swapped."""
    if isinstance(value, str):
        return swap(value)
    if isinstance(value, Mapping):
        return {swap_strings(key, swap): swap_strings(item, swap) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [swap_strings(item, swap) for item in value]
    return value


def strings_of(value: Any) -> Iterable[str]:
    """Every string in a JSON-like value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from strings_of(key)
            yield from strings_of(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from strings_of(item)
