"""Finds exact items in one sentence: what must be kept to the letter. It does not know what they are about.

`patterns` does the search. Names go by capitals: a single capitalised word at the start of a sentence is a name only
where something says so.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

from ghostkv.protocol import dates, units
from ghostkv.protocol.facts import Kind
from ghostkv.protocol.patterns import SEARCHES, START
from ghostkv.protocol.vocabulary import PLACED, PLACES, SHOUTED, SPOKE, STARTERS, TITLES

_QUOTE = re.compile(r"\"([^\"\n]{1,300})\"|“([^”\n]{1,300})”|«([^»\n]{1,300})»|„([^“”\n]{1,300})[“”]")
_INNER = {"span": ("code",), "cued": ("cued_value", "numbered")}  # the part of a match that is the value
_TRAILING = ".,;:!?'’*_"
_SECTIONS = frozenset(("Section", "Clause", "Article", "Version", "Release"))
_ACTED = SPOKE - {"is", "was", "has", "had", "held", "took"}
_SHORT = 6  # words of a quotation that is taken whole


@dataclass(frozen=True, slots=True)
class Item:
    """text[start:end] is the value as written."""

    start: int
    end: int
    kind: Kind
    normal: str  # for comparison
    quoted: bool = False  # inside a longer quotation


_GROUP_KINDS = {
    "url": Kind.URL, "doi": Kind.IDENTIFIER, "path": Kind.CODE, "address": Kind.IDENTIFIER, "hash": Kind.IDENTIFIER,
    "version": Kind.IDENTIFIER, "date": Kind.DATE, "time": Kind.TIME, "phone": Kind.IDENTIFIER, "cued": Kind.IDENTIFIER,
    "standard": Kind.IDENTIFIER, "key": Kind.IDENTIFIER, "flag": Kind.CODE, "symbol": Kind.CODE, "tag": Kind.IDENTIFIER,
    "span": Kind.CODE,
}  # fmt: skip


def find_items(text: str, known: frozenset[str] = frozenset()) -> list[Item]:
    """Exact items, by position. `known` are words seen as parts of names: they are names at a sentence start too."""
    quotes = [(match.start(match.lastindex or 0), match.end(match.lastindex or 0)) for match in _QUOTE.finditer(text)]
    items: list[Item] = []
    position = 0
    while start := START.search(text, position):
        match = SEARCHES[start.lastgroup or "other"].match(text, start.start())
        item = _item(text, match, known) if match else None
        if item is not None:
            items.append(item)
        # What is no item may still hold one in its next word.
        position = max(item.end, match.end() if match and start.lastgroup == "other" else 0) if item else start.end()
    if not quotes:
        return items
    return _with_quotes(text, items, quotes)


def _with_quotes(text: str, items: list[Item], quotes: list[tuple[int, int]]) -> list[Item]:
    kept = [Item(start, end, Kind.QUOTE, text[start:end].casefold()) for start, end in quotes]
    short = [quote for quote in quotes if text.count(" ", *quote) < _SHORT]
    position = 0
    for item in items:
        while position < len(quotes) and quotes[position][1] <= item.start:
            position += 1
        inside = position < len(quotes) and item.end > quotes[position][0]
        if inside and (quotes[position] in short and not _speech(text, quotes[position])):
            continue
        kept.append(Item(item.start, item.end, item.kind, item.normal, quoted=True) if inside else item)
    return sorted(kept, key=lambda item: (item.start, -item.end))


def _speech(text: str, quote: tuple[int, int]) -> bool:
    """Whether a quotation is a sentence rather than a title or a code word."""
    return text[quote[1] - 1] in ".,!?" or text.count(" ", *quote) >= _SHORT - 2


def _item(text: str, match: re.Match[str], known: frozenset[str]) -> Item | None:
    group = match.lastgroup or ""
    start, end = match.span()
    if group == "name":
        return _name(text, match, known)
    if group in ("money", "quantity"):
        return Item(start, _quantity_end(match), Kind.QUANTITY, _quantity(match))
    for inner in _INNER.get(group, ()):
        if match.start(inner) >= 0:
            start, end = match.span(inner)
    if group == "url" or group == "path":
        end = start + len(_trimmed(text[start:end]))
    value = text[start:end]
    kind = _GROUP_KINDS[group]
    if kind is Kind.DATE:
        normal = dates.date(value)
    elif kind is Kind.TIME:
        normal = dates.time(value)
    elif kind is Kind.CODE or kind is Kind.URL:
        normal = value
    else:
        normal = value.lstrip("#").casefold()
    return Item(start, end, kind, normal)


def _quantity_end(match: re.Match[str]) -> int:
    """A word for a number ends before the noun that it counts, which is looked at and not taken."""
    return match.start() + len(match[0].rstrip())


def _quantity(match: re.Match[str]) -> str:
    found = match.groupdict("")
    if found.get("money_number"):
        return units.normal(found["money_number"], found["money_mag"], found["currency"].strip())
    if found.get("word"):
        return units.normal(found["word"], found["word_mag"], found["word_unit"])
    normal = units.normal(found["number"] or found["bare"], found["magnitude"] or found["bare_mag"], found["unit"])
    if found["more"]:
        return f"{units.normal(found['number'], '', '')}{''.join(found['more'].split())} {normal.rpartition(' ')[2]}"
    return normal


def _trimmed(value: str) -> str:
    """Without the punctuation of the sentence around it."""
    while value and (
        value[-1] in _TRAILING
        or (value[-1] in ")]" and value.count("(") + value.count("[") < value.count(")") + value.count("]"))
    ):
        value = value[:-1]
    return value


def _name(text: str, match: re.Match[str], known: frozenset[str]) -> Item | None:
    start, end = match.span()
    ordinal = match.start("ordinal") >= 0
    initial = not any(map(str.isalnum, text[max(0, start - 60) : start])) if start < 60 else False
    if ordinal and initial and text[end : end + 1] == " " and text[end + 1 : end + 2].isalpha():
        follows = text[end + 1 : end + 20].split(" ")[0]
        if follows not in ("is", "was", "has", "had", "and"):
            end, ordinal = match.start("ordinal"), False
    words = text[start:end].split(" ")
    if (initial and words[0].casefold() in STARTERS) or (len(words) > 1 and words[0] in SHOUTED):
        return None
    if len(words) == 2 and words[0] in _SECTIONS and words[1][0].isdigit():
        return None
    if len(words) == 1 and not _single(text, words[0], start, end, known, initial=initial):
        return None
    value = text[start:end]
    return Item(start, end, _place(text, start, words), sys.intern(value.casefold()))


def _single(text: str, word: str, start: int, end: int, known: frozenset[str], *, initial: bool) -> bool:
    """Whether one capitalised word is a name."""
    if word in SHOUTED or len(word) < 2 or word in TITLES or word.casefold() in STARTERS:
        return False
    if not initial or word in known or any(map(str.isdigit, word)):
        return True
    following = text[end : end + 40]
    if following[:2] in ("'s", "’s"):
        return True
    return following[:1] == " " and following[1:].split(" ")[0].rstrip(",.;") in _ACTED


def _place(text: str, start: int, words: list[str]) -> Kind:
    if any(word in PLACES for word in words) and words[0] not in TITLES:
        return Kind.PLACE
    before = text[max(0, start - 12) : start].split()
    if before and before[-1] == "the":
        before.pop()
    return Kind.PLACE if before and before[-1] in PLACED and words[0] not in TITLES else Kind.NAME
