"""The style sentence: how a text is written, in a few counted words. It says nothing of what the text says.

Only traits that the counts show clearly are named; a text too short to tell has none.
"""

from __future__ import annotations

import re
from collections import Counter

_LEAST_WORDS = 60
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
_SENTENCE = re.compile(r"[^.!?]+[.!?]")
_QUOTED = re.compile(r"[\"“][^\"“”\n]{2,200}[\"”]")
_LINE = re.compile(r"^\s*(?:[-*+•]|\d{1,3}[.)])\s", re.MULTILINE)


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_FIRST = _set("i me my mine myself we us our ours ourselves i'm i've i'd i'll we're we've we'll")
_SECOND = _set("you your yours yourself yourselves you're you've you'll")
_THIRD = _set("he she him her his hers himself herself they them their theirs")
_PAST = _set("was were had did said went came saw felt knew took made thought began stood")
_PRESENT = _set("is are has does says goes comes sees feels knows takes makes thinks begins stands")


def style_sentence(text: str) -> str:
    """One line such as "Style: third person, past tense, long sentences, dialogue."; "" where nothing is clear."""
    words = _WORD.findall(text.casefold().replace("’", "'"))
    if len(words) < _LEAST_WORDS:
        return ""
    counts = Counter(words)
    traits = filter(None, (_person(counts), _tense(counts), _length(text, words), *_manner(text, words)))
    named = ", ".join(traits)
    return f"Style: {named}." if named else ""


def _person(words: Counter[str]) -> str:
    counts = {
        "first person": sum(words[word] for word in _FIRST),
        "second person": sum(words[word] for word in _SECOND),
        "third person": sum(words[word] for word in _THIRD),
    }
    best = max(counts, key=lambda name: counts[name])
    # Dialogue mixes persons, so the most frequent one counts only if it clearly leads.
    return best if counts[best] * 50 >= words.total() and 2 * counts[best] >= sum(counts.values()) else ""


def _tense(words: Counter[str]) -> str:
    past = sum(count for word, count in words.items() if word in _PAST or (word.endswith("ed") and len(word) > 4))
    present = sum(words[word] for word in _PRESENT)
    if past + present < words.total() // 40:
        return ""
    if past >= 2 * present:
        return "past tense"
    return "present tense" if present >= 2 * past else ""


def _length(text: str, words: list[str]) -> str:
    sentences = len(_SENTENCE.findall(text))
    if sentences < 3:
        return ""
    mean = len(words) / sentences
    return "short sentences" if mean < 11 else "long sentences" if mean > 22 else ""


def _manner(text: str, words: list[str]) -> list[str]:
    found = []
    if sum(len(quote) for quote in _QUOTED.findall(text)) * 8 > len(text):
        found.append("dialogue")
    if len(_LINE.findall(text)) * 40 > len(words):
        found.append("lists")
    if sum("'" in word for word in words) * 40 > len(words):
        found.append("informal")
    if text == text.lower():
        found.append("lower case")
    return found
