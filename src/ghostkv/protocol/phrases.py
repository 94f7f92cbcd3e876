"""Words and noun phrases of one sentence: who owns what, by determiners, possessives and prepositions.

Not a parser: a phrase whose shape it does not know has no subject and no attribute.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ghostkv.protocol.items import Item
from ghostkv.protocol.vocabulary import ATTRIBUTES, DETERMINERS, MOVES, PREPOSITIONS, PRONOUNS, STATIVES

_TOKEN = re.compile(r"['’]s\b|[^\W\d_]+(?:[-'’](?!s\b)[^\W\d_]+)*+|[\w.]+|\S")
BREAKS = frozenset(",;:()—–?!")
AUX = frozenset("has have had been be being was were is are will not never also now already since then would".split())  # noqa: SIM905
LEADING = frozenset("and but so then or that while whereas when because if although after before since as yet".split())  # noqa: SIM905
CLAUSE_STARTS = frozenset("while whereas but because although which who".split())  # noqa: SIM905
_TIMED = PREPOSITIONS | {"after", "before", "during", "since", "as"}
_FRONTED = PREPOSITIONS | {"during", "through", "under", "with"}
_DETERMINING = DETERMINERS | {"only", "both", "all"}
_NOBODY = PRONOUNS | {"i", "you", "we", "this", "that", "there"}
REACH = 14  # tokens that a subject or an anchor may lie before what it governs


@dataclass(slots=True)
class Token:
    """A word, a mark or a whole item."""

    text: str
    start: int
    word: str  # folded; "" for an item
    item: Item | None = None


@dataclass(frozen=True, slots=True)
class Relation:
    """What the words before a value say of it."""

    subject: str = ""
    attribute: str = ""  # "" where only subject or dimension is known
    moved: bool = False  # a change cue governs the value
    stated: bool = False  # a verb ties the value to the subject


NOTHING = Relation()


def tokenize(text: str, items: list[Item]) -> list[Token]:
    """The words of a sentence, each item as one token. Items inside quotations count as words of their own."""
    tokens: list[Token] = []
    position = 0
    for item in items:
        if item.start < position:
            continue
        _add_words(tokens, text, position, item.start)
        tokens.append(Token(text[item.start : item.end], item.start, "", item))
        position = item.end
    _add_words(tokens, text, position, len(text))
    return tokens


def _add_words(tokens: list[Token], text: str, start: int, end: int) -> None:
    for match in _TOKEN.finditer(text, start, end):
        word = match[0]
        tokens.append(Token(word, match.start(), word.casefold()))


def subject_phrase(tokens: list[Token], anchor: int) -> Relation:
    """Subject and attribute in the noun phrase before a verb."""
    end = anchor
    while end and (tokens[end - 1].word in AUX or tokens[end - 1].word.endswith("ly")):
        end -= 1
    low = max(0, end - REACH)
    for i in range(end - 1, low - 1, -1):
        word = tokens[i].word
        if (
            word in BREAKS
            or word in CLAUSE_STARTS
            or word == "."
            or word in STATIVES
            or (word in MOVES and tokens[i - 1].word not in DETERMINERS)
        ):
            low = i + 1
            break
    start = _phrase_start(tokens, low, end)
    return noun_phrase(tokens, start, end) if start >= 0 else NOTHING


def _phrase_start(tokens: list[Token], low: int, end: int) -> int:
    while low < end and tokens[low].word in LEADING:
        low += 1
    for i in range(end - 1, low - 1, -1):
        before = tokens[i - 1].word if i > low else ""
        if tokens[i].word in DETERMINERS and before not in _TIMED:
            return i
    if low < end and tokens[low].word and tokens[low].word in _FRONTED:
        return end - 1 if tokens[end - 1].item and end - 1 > low + 1 else -1
    return low if 0 < end - low <= 8 else -1


def noun_phrase(tokens: list[Token], start: int, end: int) -> Relation:
    """Subject and attribute of the noun phrase tokens[start:end]."""
    while start < end and tokens[start].word in _DETERMINING:
        start += 1
    part = tokens[start:end]
    if not part or len(part) > 8:
        return NOTHING
    if part[0].word in _NOBODY:
        return NOTHING
    split = next((i for i, token in enumerate(part) if token.word in PREPOSITIONS and i), len(part))
    left, right = part[:split], part[split + 1 :]
    while right and right[0].word in DETERMINERS:
        right = right[1:]
    owner = next((i for i, token in enumerate(left) if token.text in ("'s", "’s")), -1)
    if owner > 0:
        possessor, left = left[:owner], left[owner + 1 :]
        subject = _join(possessor)
    else:
        subject = ""
    if not left:
        return Relation(subject)
    head = left[-1]
    if head.item is not None or any(token.word in BREAKS for token in left):
        return Relation(subject or _join(left))
    attribute = attribute_noun(head.word) or head.word
    if not subject:
        subject = _join(right) if right and part[split].word != "with" else _join(left[:-1])
    return Relation(subject, attribute)


def whole_subject(tokens: list[Token], relation_: Relation) -> str:
    """Subject where the head noun turned out to be the thing itself: "the habitat", "the old pump"."""
    return f"{relation_.subject} {relation_.attribute}".strip() if relation_.attribute else relation_.subject


def attribute_noun(word: str) -> str:
    """The attribute noun, singular; "" for any other word."""
    if word in ATTRIBUTES:
        return word
    return word[:-1] if word.endswith("s") and word[:-1] in ATTRIBUTES else ""


def _join(tokens: list[Token]) -> str:
    return " ".join(token.text for token in tokens)
