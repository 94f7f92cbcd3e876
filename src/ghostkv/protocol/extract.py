"""The facts of one sentence, row or line of code: each exact item with what it is about and how it was said."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ghostkv.errors import InvariantViolation
from ghostkv.protocol import units
from ghostkv.protocol.clauses import counted, relation
from ghostkv.protocol.facts import Fact, Kind, Sentence
from ghostkv.protocol.items import Item, find_items
from ghostkv.protocol.moods import Moods
from ghostkv.protocol.phrases import Relation, Token, tokenize, whole_subject
from ghostkv.protocol.vocabulary import ATTRIBUTES, ID_NOUNS, MEASURED, PLACES, STARTERS, TITLES

_ENTRY = re.compile(
    r"[*_`\"']{0,3}(?P<key>[^\W\d_][\w .()/-]{0,40}?)[*_`\"']{0,3}\s?[:=][*_]{0,2}\s(?P<value>\S.*)", re.DOTALL
)
_PAIR = re.compile(r"(?<![\w.=?&])([A-Za-z_][\w.-]{0,40})=([^\s,;=\"]{1,80})(?![=\w])")
_ASSIGNED = re.compile(
    r"(?:export\s|const\s|let\s|var\s|final\s)?\s*[\"']?(?P<key>[A-Za-z_][\w.-]{0,60})[\"']?(?::\s?\w{1,20}(?=\s=))?\s?(?:=(?!=)|:(?!:))\s?"
    r"(?P<value>\"[^\"]{1,200}\"|'[^']{1,200}'|-?\d[\w.]{0,30}|[\w./:-]{1,80})\s?[,;]?\s?(?:(?:#|//).*)?"
)
_DEFINED = re.compile(
    r"\b(?:def|class|function|func|fn|struct|enum|interface|trait|type|module|package)\s+([A-Za-z_]\w{0,80})"
)
_CALLED = re.compile(r"\b(?:from|import|require|use|include)\b[\s(\"'<]+([A-Za-z_][\w./:-]{0,80})")
_VALUE_WORDS = 12
_PEOPLE = (Kind.NAME, Kind.PLACE)


@dataclass(frozen=True, slots=True)
class Context:
    """What reading a sentence needs of what came before it in the message."""

    topic: str = ""  # see `topics`
    section: str = ""  # the heading over this line
    header: tuple[str, ...] = ()  # of the open table; () outside one
    known: frozenset[str] = frozenset()  # words seen in names; only membership is asked


def prose_facts(
    sentence: Sentence, context: Context, *, quoted: bool
) -> tuple[tuple[Fact, ...], frozenset[str], list[Token]]:
    """Facts of a sentence or a `key: value` line, the words known from names after it, and its tokens as written."""
    text = sentence.text
    items = find_items(text, context.known)
    entry = _ENTRY.fullmatch(text)
    if entry and _is_entry(entry):
        facts = _entry_facts(sentence, entry, items, context.section)
        return tuple(facts), _more_known(text, items, context.known), []
    tokens = tokenize(text, items)
    facts = _sentence_facts(sentence, items, tokens, quoted=quoted)
    return tuple(facts), _more_known(text, items, context.known), tokens


def row_facts(sentence: Sentence, context: Context) -> tuple[tuple[Fact, ...], tuple[str, ...]]:
    """Facts of a table row: the first cell is the subject, the column's title the attribute. Also gives the header."""
    cells = [cell.strip(" *_`") for cell in sentence.text.strip("| ").split("|")]
    if not context.header:
        return (), tuple(cell.casefold() for cell in cells)
    facts: list[Fact] = []
    subject = cells[0] if not cells[0][:1].isdigit() else ""
    for title, cell in zip(context.header[1:], cells[1:]):
        whole, found = _values(cell)
        facts.extend(Fact(sentence, kind, subject, title or kind.value, value, normal) for kind, value, normal in found)
        if not whole and cell and len(found) == 0:
            facts.append(Fact(sentence, Kind.ENTRY, subject, title or Kind.ENTRY.value, cell, cell.casefold()))
    return tuple(facts), context.header


def code_facts(sentence: Sentence) -> tuple[Fact, ...]:
    """Facts of a line inside a fence: what it assigns or sets, and the names that it defines."""
    text = sentence.text
    assigned = _ASSIGNED.fullmatch(text)
    if assigned:
        value = assigned["value"].strip("\"'")
        return (Fact(sentence, Kind.ENTRY, "", assigned["key"].casefold(), value, value),) if value else ()
    names = [match[1] for pattern in (_DEFINED, _CALLED) for match in pattern.finditer(text)]
    return tuple(Fact(sentence, Kind.CODE, "", Kind.CODE.value, name, name) for name in dict.fromkeys(names))


def _is_entry(match: re.Match[str]) -> bool:
    key, value = match["key"], match["value"]
    plain = value.rstrip("*_ \"'”’")
    ends = plain.endswith((".", "!", "?")) and " " in plain
    return key.count(" ") < 4 and value.count(" ") < _VALUE_WORDS and not ends


def _entry_facts(sentence: Sentence, match: re.Match[str], items: list[Item], section: str) -> list[Fact]:
    key = " ".join(match["key"].casefold().split())
    start = match.start("value")
    value = match["value"].strip("*_ ,;\"'`") or match["value"]
    whole, found = _values(value)
    if whole:
        kind, text, normal = found[0]
        if kind is Kind.QUANTITY and text.isdigit() and key.rpartition(" ")[2] in ID_NOUNS:
            kind = Kind.IDENTIFIER
        return [Fact(sentence, kind, section, key, text, normal)]
    facts = [Fact(sentence, Kind.ENTRY, section, key, value, value.casefold())]
    for item in items:
        if item.start >= start and item.kind in (
            Kind.URL,
            Kind.IDENTIFIER,
            Kind.DATE,
            Kind.TIME,
            Kind.NAME,
            Kind.PLACE,
        ):
            facts.append(
                Fact(sentence, item.kind, section, item.kind.value, sentence.text[item.start : item.end], item.normal)
            )
    return facts


def _values(text: str) -> tuple[bool, list[tuple[Kind, str, str]]]:
    """The items of a cell or of an entry's value, and whether one of them is all of it."""
    # A leading word keeps the first one from being read as the start of a sentence.
    items = find_items(f"is {text}")
    found = [(item.kind, text[item.start - 3 : item.end - 3], item.normal) for item in items if item.start >= 3]
    return len(found) == 1 and found[0][1] == text.strip(), found


def _sentence_facts(sentence: Sentence, items: list[Item], tokens: list[Token], *, quoted: bool) -> list[Fact]:
    text = sentence.text
    shift = 0
    if sentence.topic:
        # Read the clauses of the resolved text; positions go back to the written one.
        first = text.partition(" ")[0]
        shift = len(sentence.topic) - len(first)
        moved = [Item(i.start + shift, i.end + shift, i.kind, i.normal, i.quoted) for i in items]
        named = [i for i in find_items(sentence.topic) if i.end <= len(sentence.topic)]
        text, items = sentence.resolved, [*named, *moved]
        tokens = tokenize(text, items)
    if not items and "=" not in text:
        return []
    moods = Moods.of(text)
    pairs = {match.start(2): match for match in _PAIR.finditer(text)} if "=" in text else {}
    facts = _pair_entries(sentence, pairs, items)
    for index, token in enumerate(tokens):
        item = token.item
        if item is None or item.start < (len(sentence.topic) if sentence.topic else 0):
            continue
        hypothetical = quoted or item.quoted or moods.hypothetical(item.start, item.end)
        if item.start in pairs:
            facts.append(
                _fact(sentence, item, token.text, "", pairs[item.start][1].casefold(), hypothetical=hypothetical)
            )
            continue
        facts.append(_item_fact(sentence, tokens, index, moods, hypothetical=hypothetical))
    facts.extend(
        _fact(sentence, item, text[item.start : item.end], "", item.kind.value, hypothetical=True)
        for item in items
        if item.quoted
    )
    return facts


def _pair_entries(sentence: Sentence, pairs: dict[int, re.Match[str]], items: list[Item]) -> list[Fact]:
    starts = [item.start for item in items]
    return [
        Fact(sentence, Kind.ENTRY, "", match[1].casefold(), match[2], match[2].casefold())
        for start, match in pairs.items()
        if start not in starts
    ]


def _item_fact(sentence: Sentence, tokens: list[Token], index: int, moods: Moods, *, hypothetical: bool) -> Fact:
    token = tokens[index]
    item = token.item
    if item is None:
        raise InvariantViolation("a fact is made of an item")
    found = relation(tokens, index)
    ended = moods.ended(item.start)
    replaced = moods.replaced(item.start, item.end)
    subject, attribute, kind = _keyed(tokens, index, item, token.text, found)
    moved = (found.moved or replaced == "new") and (bool(subject) or bool(found.attribute) or replaced == "new")
    if replaced == "old":
        moved = False
    changes = ended or (moved and not hypothetical)
    return Fact(
        sentence, kind, subject, attribute, token.text, item.normal, changes=changes, hypothetical=hypothetical or ended
    )


def _keyed(tokens: list[Token], index: int, item: Item, value: str, found: Relation) -> tuple[str, str, Kind]:
    """Subject, attribute and, since a number may turn out to be a code, kind of an item."""
    kind = item.kind
    if kind is Kind.QUANTITY:
        dimension = units.dimension(item.normal)
        known = found.attribute in ATTRIBUTES
        if not dimension and not known:
            noun = counted(tokens, index)
            if noun:
                return (whole_subject(tokens, found) if found.stated else ""), noun, kind
        if not known and dimension:
            following = tokens[index + 1].word if index + 1 < len(tokens) else ""
            measured = MEASURED.get(following, dimension)
            return (whole_subject(tokens, found) if found.stated else ""), measured, kind
        if (
            found.attribute in ID_NOUNS
            and value.isdigit()
            and (found.attribute != "number" or not _plural(found.subject))
        ):
            kind = Kind.IDENTIFIER
        if found.attribute in ("version", "release"):
            kind = Kind.IDENTIFIER
        return found.subject, found.attribute or kind.value, kind
    if kind in _PEOPLE and not found.stated and not found.attribute:
        return value, kind.value, kind
    if found.attribute and found.attribute not in ATTRIBUTES and kind in (Kind.TIME, Kind.DATE, *_PEOPLE):
        return whole_subject(tokens, found), kind.value, kind
    return found.subject, found.attribute or kind.value, kind


def _plural(subject: str) -> bool:
    return subject.endswith("s")


def _fact(sentence: Sentence, item: Item, value: str, subject: str, attribute: str, *, hypothetical: bool) -> Fact:
    return Fact(sentence, item.kind, subject, attribute, value, item.normal, hypothetical=hypothetical)


def _more_known(text: str, items: list[Item], known: frozenset[str]) -> frozenset[str]:
    words = {
        word
        for item in items
        if item.kind in _PEOPLE
        for word in text[item.start : item.end].split(" ")
        if len(word) > 2 and word[0].isupper() and word not in PLACES | TITLES and word.casefold() not in STARTERS
    }
    return known if words <= known else known | words
