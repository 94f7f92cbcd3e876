"""What "it", "he" and "she" stand for, where that is safe to say.

Only the subject of the sentence right before is considered, and only if nothing else in it competes: a wrong
name in a sentence that is shown without its neighbours is worse than a pronoun.
"""

from __future__ import annotations

from ghostkv.protocol.clauses import leading_phrase
from ghostkv.protocol.facts import Kind, Sentence
from ghostkv.protocol.phrases import Token
from ghostkv.protocol.vocabulary import COPULAS, DETERMINERS, MOVES, PREPOSITIONS, THINGS, TITLES

_THING, _PERSON = "it", "person"
_PRONOUNS = {"It": _THING, "He": _PERSON, "She": _PERSON}
_DEFINITE = frozenset(("the", "its", "his", "her", "their", "our", "your", "my"))
_LONGEST = 7  # tokens of a subject that is repeated in a pronoun's place


def resolved_topic(line: str, topic: str) -> str:
    """`topic` if the line begins with a pronoun that can stand for it, else ""."""
    sort, _, name = topic.partition(":")
    first = line.partition(" ")[0]
    return name if name and _PRONOUNS.get(first) == sort else ""


def following_topic(sentence: Sentence, tokens: list[Token]) -> str:
    """What a pronoun at the start of the next sentence would stand for, as "sort:name"; "" if that is not safe."""
    text = sentence.text
    if text.endswith("?") or '"' in text or "“" in text:
        return ""
    end, stative = leading_phrase(tokens)
    if not stative or not 0 < end <= _LONGEST or _competes(tokens, end):
        return ""
    if sentence.topic:
        person = text.partition(" ")[0] != "It"
        return f"{_PERSON if person else _THING}:{sentence.topic}" if end == 1 else ""
    first = tokens[0]
    name = " ".join(text[first.start : tokens[end].start].split())
    if tokens[end - 1].word in ("has", "have", "had", "will"):
        return ""
    if first.item is not None and first.item.kind in (Kind.NAME, Kind.PLACE, Kind.IDENTIFIER) and end == 1:
        return f"{_sort(name)}:{name}" if _sort(name) else ""
    if first.word in _DEFINITE and all(token.word not in PREPOSITIONS or token.word == "of" for token in tokens[:end]):
        return f"{_THING}:{name}" if not _mentions_person(tokens[:end]) else ""
    return ""


def _sort(name: str) -> str:
    words = name.split(" ")
    if words[0].rstrip(".") in TITLES:
        return _PERSON
    if any(word in THINGS for word in words) or any(map(str.isdigit, name)):
        return _THING
    return _PERSON if len(words) == 2 and name.replace(" ", "").isalpha() and not name.isupper() else ""


def _mentions_person(tokens: list[Token]) -> bool:
    """Whether the head of a subject may be somebody: people are not "it"."""
    return tokens[-1].item is not None or tokens[-1].text.casefold().endswith(
        ("er", "or", "ain", "ist", "man", "woman")
    )


def _competes(tokens: list[Token], end: int) -> bool:
    """Whether anything after the verb could be meant by the next pronoun as well."""
    before = ""
    for token in tokens[end:]:
        named = token.item is not None and token.item.kind is Kind.NAME
        if (named or token.word in DETERMINERS) and before not in PREPOSITIONS and before not in COPULAS:
            return True
        if named and before in PREPOSITIONS and before not in ("in", "at", "on", "inside", "aboard", "from", "to"):
            return True
        if token.word in MOVES and before in ("which", "that", "and"):
            return True
        before = token.word
    return False
