"""Questions that real text brings with it: a sentence with one exact item, up to that item.

Pure. Which of them are asked, and in what conversation, is `library`'s business.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from ghostkv.evaluate.answers import folded
from ghostkv.evaluate.documents import Fact
from ghostkv.evaluate.subjects import Attribute
from ghostkv.protocol.facts import Kind
from ghostkv.protocol.items import find_items
from ghostkv.text.sentences import sentence_starts

_KINDS = frozenset((Kind.IDENTIFIER, Kind.QUANTITY, Kind.DATE, Kind.URL))
_STEM = range(3, 17)  # words: enough to know the sentence by, few enough to be repeated before the value
_MARKER = re.compile(r"(?:[-*•|>]+|#{1,6}|\d{1,3}[.)])\s+")  # of a list item, a heading or a table's cell
_ASK = 'Complete this sentence from the documents: "{}"'


@dataclass(frozen=True, slots=True)
class Cloze:
    """A sentence of a text: text[start:end] is `stem` + " " + `value` + `rest`, all on one line."""

    start: int
    end: int
    stem: str
    value: str
    rest: str
    kind: Kind

    @property
    def at(self) -> int:
        """Offset of the value."""
        return self.start + len(self.stem) + 1

    @property
    def folded(self) -> str:
        """The value, for comparison."""
        return folded(self.value)

    @property
    def form(self) -> tuple[Kind, str]:
        """Equal for values that look alike."""
        return self.kind, re.sub(r"\d+", "0", self.value)


def find_clozes(text: str) -> Iterator[Cloze]:
    """Sentences that hold exactly one identifier, quantity, date or URL, by position. A number in words is none."""
    for start, stop in pairwise([*sentence_starts(text), len(text)]):
        while marker := _MARKER.match(text, start, stop):
            start = marker.end()
        sentence = text[start:stop].rstrip()
        items = [item for item in find_items(sentence) if item.kind in _KINDS]
        if len(items) != 1 or "\n" in sentence:
            continue
        item = items[0]
        stem, value, rest = sentence[: item.start], sentence[item.start : item.end], sentence[item.end :]
        digits = item.kind is not Kind.QUANTITY or any(map(str.isdigit, value))
        if digits and stem.endswith(" ") and not stem.endswith("  ") and len(stem.split()) in _STEM:
            yield Cloze(start, start + len(sentence), stem[:-1], value, rest, item.kind)


def as_fact(cloze: Cloze, value: str) -> Fact:
    """What the sentence says, with `value` in it, in the terms of a generated document."""
    stem, rest = (part.replace("{", "{{").replace("}", "}}") for part in (cloze.stem, cloze.rest))
    question = _ASK.format(stem)
    attribute = Attribute(cloze.stem, cloze.kind, f"{stem} {{v}}{rest}", "", question, question, stem)
    return Fact("", attribute, value)
