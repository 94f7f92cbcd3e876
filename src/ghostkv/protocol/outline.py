"""A model's outline of its answer: how it is asked for, and how it is read. Asking is done elsewhere."""

from __future__ import annotations

import re

from ghostkv.protocol.parts import Part, is_chain, linked
from ghostkv.protocol.plan import Plan, of_parts

OUTLINE_ASK = (
    "Do not answer yet. First list the parts that your answer will have, in order: at most 12 numbered lines, "
    "each with a title of a few words and nothing else."
)
"""Stands at the end of the question."""
OUTLINE_TOKENS = 256
"""The longest outline."""
_MOST_PARTS = 12
_MOST_TITLE = 100  # characters
_LINE = re.compile(
    r"^[ \t]*(?:\*\*)?(?:\(?\d{1,2}[.):]|(?:part|chapter|section)[ \t]+\d{1,2}[.:])(?:\*\*)?[ \t]*(\S.*)$",
    re.IGNORECASE,
)


def read_outline(question: str, text: str) -> Plan:
    """The plan that the numbered lines of `text` give, 12 at most; `OPEN` if fewer than two are found.

    Parts need each other's text unless the question plainly asks for things that stand side by side.
    """
    titles = [title for line in text.splitlines() if (match := _LINE.match(line)) and (title := _title(match[1]))]
    return of_parts(linked([Part(title) for title in titles[:_MOST_PARTS]], chain=not _beside(question)))


def _beside(question: str) -> bool:
    """Whether the parts are items of a list, as tips or reasons are, and no story, code or mathematics."""
    return _ITEMS.search(question) is not None and not is_chain(question)


_ITEMS = re.compile(
    r"\b(?:tips|ways|reasons|ideas|advice|examples|suggestions|recommendations|benefits|advantages|disadvantages|types|"
    r"kinds|list|pros\s+and\s+cons)\b",
    re.IGNORECASE,
)


def _title(text: str) -> str:
    line = "".join(c for c in " ".join(text.split()) if c.isprintable()).replace("**", "").strip("*_# ").rstrip(".:;,")
    return line[:_MOST_TITLE].strip()
