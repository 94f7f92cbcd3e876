"""The values that continuity is made of: where something was said, a sentence, and an exact item in it.

Nothing here computes. `reader` makes them from text, `ledger` orders them, `archive` keeps the sentences.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Where in a session something stands. Positions sort as the conversation reads."""

    message: int  # index in the conversation
    node: int  # index of the plan's node in that message; 0 without a plan
    offset: int  # characters into that node's text


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence, list item or line as it was written. It is what state block and recall are made of."""

    position: Position
    segment: int  # index of the segment, within its message, in which it ends
    role: str  # of its message
    text: str  # one line, white space collapsed, as written
    topic: str = ""  # who or what a pronoun at its start stands for; "" where nothing needs resolving

    @property
    def resolved(self) -> str:
        """The text, understandable on its own: the topic in the place of a pronoun that begins it."""
        first, _, rest = self.text.partition(" ")
        return f"{self.topic} {rest}" if self.topic and first and rest else self.text


class Kind(StrEnum):
    """What sort of exact item a fact holds."""

    NAME = "name"
    PLACE = "place"
    QUANTITY = "quantity"  # a number, with its unit if it has one
    DATE = "date"
    TIME = "time"
    IDENTIFIER = "identifier"  # serial numbers, codes, versions, hashes
    URL = "url"
    CODE = "code"  # symbols and paths
    QUOTE = "quote"
    ENTRY = "entry"  # the value of a "key: value" line


@dataclass(frozen=True, slots=True)
class Fact:
    """One exact item, as one sentence asserted it. A repetition elsewhere is another Fact."""

    sentence: Sentence
    kind: Kind
    subject: str  # canonical name of what it is about; "" unknown
    attribute: str  # lower case: "temperature", "captain", ...; the kind's name if nothing better is known
    value: str  # exactly as written: it occurs in sentence.text
    normal: str  # for comparison: canonical unit, ISO date, case folded
    changes: bool = False  # a change cue governs it ("rose to", "is now", "from A to B"), so it may supersede
    hypothetical: bool = False  # negated, asked, planned or conditional: it never supersedes

    @property
    def key(self) -> tuple[str, str]:
        """What it is the value of."""
        return self.subject, self.attribute
