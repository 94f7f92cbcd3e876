"""Finds contents again in a rendered prompt, so that the token ids they were generated as can stand there.

A content is found by rendering once more with a rare character in its place. Where the template does not write a
content as it is, and once (it trims it, or leaves part of it out), that content is not found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from ghostkv.errors import InvalidRequest

Marked = Callable[[Mapping[int, str]], str]
"""What the template renders with other contents, by index of the message."""

Places = dict[int, tuple[int, int]]
"""Index of a message -> characters of the rendered text that are its content."""


def find_contents(text: str, contents: Mapping[int, str], marks: Sequence[str], marked: Marked) -> Places:
    """Where in `text` each of `contents` stands. `marks` are as many characters, which occur nowhere in it."""
    by_mark = dict(zip(marks, contents, strict=False))
    return _found(text, contents, by_mark, marked)


def _found(text: str, contents: Mapping[int, str], by_mark: Mapping[str, int], marked: Marked) -> Places:
    """Halves what is not found together, since one content that was changed says nothing about the others."""
    if not by_mark:
        return {}
    try:
        rendered = marked({index: mark for mark, index in by_mark.items()})
    except InvalidRequest:  # a template may want more of a content than one character
        rendered = ""
    places = _aligned(text, rendered, contents, by_mark)
    if places is not None or len(by_mark) == 1:
        return places or {}
    pairs = list(by_mark.items())
    half = len(pairs) // 2
    return _found(text, contents, dict(pairs[:half]), marked) | _found(text, contents, dict(pairs[half:]), marked)


def _aligned(text: str, rendered: str, contents: Mapping[int, str], by_mark: Mapping[str, int]) -> Places | None:
    """Places of the contents if `rendered` becomes `text` when they stand where the marks are, each at most once."""
    places: Places = {}
    offset = 0
    for part in re.split(f"([{''.join(by_mark)}])", rendered):
        index = by_mark.get(part)
        if index in places:
            return None
        written = part if index is None else contents[index]
        if not text.startswith(written, offset):
            return None
        if index is not None:
            places[index] = offset, offset + len(written)
        offset += len(written)
    return places if offset == len(text) else None
