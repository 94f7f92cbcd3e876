"""The inverted index of recall: which sentence holds which term, and what it is worth there. No queries, no ranking.

A value: appending costs what is new, and an index may fork. The longest value of a storage grows it in place and a
shorter one copies it first, as in `log`; what a storage holds beyond a value's own length, that value does not see.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Lock

from ghostkv.protocol.facts import Sentence
from ghostkv.protocol.log import Log
from ghostkv.protocol.terms import terms

UNIT = 64  # impact of a term that occurs once in a sentence of usual length
SHIFT = 8  # a posting is (sentence << SHIFT) + impact
IMPACT = (1 << SHIFT) - 1  # mask; an impact is below 142
_SATURATION = 12  # tenths: k1 of BM25 (Robertson and Zaragoza, 2009)
_LENGTH = 4  # tenths: b of BM25; sentences differ less in length than documents do
_USUAL = 14  # terms in a usual sentence. Fixed, so that an impact never changes; BM25 takes the collection's mean
_PREFIX = 3  # characters by which words are found that begin alike
_PRONOUNS = frozenset(("he", "she", "it", "they", "his", "her", "its", "their", "this", "that", "these", "those"))

_MARKDOWN = re.compile(r"(#{1,6}) ")
_BOLD = re.compile(r"\*\*[^*]+\*\*:?|__[^_]+__:?")
_LONGEST_HEADING = 100  # characters
_LINE, _PLAIN = 7, 8

_GROWING = Lock()  # held while a storage grows or is copied; see `log`


@dataclass(slots=True)
class _Storage:
    length: int = 0
    postings: dict[str, array[int]] = field(default_factory=dict)  # ascending
    prefixes: dict[str, list[str]] = field(default_factory=dict)  # words in the order in which they first occurred

    def copy(self, length: int) -> _Storage:
        """A storage of the first `length` sentences, as if the others had never been added."""
        copy = _Storage(length)
        for term, postings in self.postings.items():
            if kept := postings[: bisect_left(postings, length << SHIFT)]:
                copy.begin(term, kept)
        return copy

    def add(self, impacts: Iterable[tuple[str, int]]) -> None:
        """One more sentence."""
        first = self.length << SHIFT
        for term, impact in impacts:
            postings = self.postings.get(term)
            if postings is None:
                self.begin(term, array("I", (first + impact,)))
            else:
                postings.append(first + impact)
        self.length += 1

    def begin(self, term: str, postings: array[int]) -> None:
        """A term that had no postings."""
        self.postings[term] = postings
        if _is_word(term):
            self.prefixes.setdefault(term[:_PREFIX], []).append(term)


@dataclass(frozen=True, slots=True)
class SentenceIndex:
    """The sentences of a session in the order in which they were read, searchable by `recall.search`.

    A sentence is also found, for half the worth, by words of what it stands under or goes on from: the headings above
    it in its message, and the sentence before it if it starts with a pronoun that nothing resolves.
    """

    sentences: Log[Sentence] = field(default_factory=Log)
    _above: Log[int] = field(default_factory=Log)  # for each sentence the number of the innermost heading, or -1
    _storage: _Storage = field(default_factory=_Storage, compare=False)

    def append(self, sentences: Sequence[Sentence]) -> SentenceIndex:
        """The index with more sentences: O(new), or O(all) for the second continuation of one value."""
        known = len(self.sentences)
        texts = self.sentences.extended(sentences)
        above: list[int] = []
        for number in range(known, len(texts)):
            above.append(self._innermost(texts, number, above))
        grown = SentenceIndex(texts, self._above.extended(above), self._storage)
        impacts = [grown._impacts(number) for number in range(known, len(texts))]
        with _GROWING:
            storage = self._storage if self._storage.length == known else self._storage.copy(known)
            for sentence in impacts:
                storage.add(sentence)
        return SentenceIndex(texts, grown._above, storage)

    def __len__(self) -> int:
        return len(self.sentences)

    def postings(self, term: str) -> Sequence[int]:
        """For each sentence that holds `term`, ascending: (its number << SHIFT) + impact in 1/UNIT."""
        postings = self._storage.postings.get(term)
        if postings is None:
            return ()
        # A copy: somebody else may be appending.
        return postings[: bisect_left(postings, len(self.sentences) << SHIFT)]

    def beginning_alike(self, word: str) -> Sequence[str]:
        """Other indexed words that share the first characters of `word`; some may not occur in this value."""
        if not _is_word(word):
            return ()
        return [other for other in self._storage.prefixes.get(word[:_PREFIX], ()) if other != word]

    def before(self, number: int) -> Sentence | None:
        """The sentence before one that cannot be understood without it: it starts with an unresolved pronoun."""
        sentence = self.sentences[number]
        if number == 0 or sentence.topic or sentence.text.partition(" ")[0].casefold() not in _PRONOUNS:
            return None
        return self.sentences[number - 1] if _together(self.sentences[number - 1], sentence) else None

    def headings(self, number: int) -> tuple[Sentence, ...]:
        """The headings that a sentence stands under, outermost first."""
        found: list[Sentence] = []
        while (number := self._above[number]) >= 0:
            found.append(self.sentences[number])
        return tuple(reversed(found))

    def _innermost(self, texts: Log[Sentence], number: int, new: Sequence[int]) -> int:
        """What the sentence stands under; `new` continues `_above`."""
        if number == 0 or not _together(texts[number - 1], texts[number]):
            return -1
        level = _level(texts, number)
        above = number - 1
        known = len(self._above)
        while above >= 0 and _level(texts, above) >= level:
            above = self._above[above] if above < known else new[above - known]
        return above

    def _impacts(self, number: int) -> list[tuple[str, int]]:
        """(term, impact), each term once. A question states nothing: half."""
        sentence = self.sentences[number]
        counts = Counter(terms(sentence.resolved))
        half = sentence.text.rstrip().endswith(("?", "？"))
        impacts = {term: _impact(count, counts.total()) >> half for term, count in counts.items()}
        before = self.before(number)
        for context in (*self.headings(number), *(() if before is None else (before,))):
            for term in _context_terms(context.resolved):
                impacts.setdefault(term, UNIT // 2)
        return list(impacts.items())


@lru_cache(maxsize=256)  # a heading is asked for by each sentence under it
def _context_terms(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(terms(text)))


def _together(one: Sentence, other: Sentence) -> bool:
    """Whether they stand in the same text."""
    first, second = one.position, other.position
    return (first.message, first.node) == (second.message, second.node)


def _level(texts: Sequence[Sentence], number: int) -> int:
    """0 a title, 1..6 a Markdown heading, _LINE a line that announces what follows, _PLAIN no heading."""
    text = texts[number].text
    if match := _MARKDOWN.match(text):
        return len(match[1])
    if len(text) > _LONGEST_HEADING or text.endswith((".", "!", "?", ",", ";")):
        return _PLAIN
    if number == 0 or not _together(texts[number - 1], texts[number]):
        return 0
    return _LINE if text.endswith((":", "：")) or _BOLD.fullmatch(text) else _PLAIN


def _is_word(term: str) -> bool:
    return len(term) > _PREFIX and term.isalpha()


def _impact(count: int, length: int) -> int:
    """BM25's saturation of a term's count, in 1/UNIT, rounded down; the constants are tenths."""
    norm = _SATURATION * ((10 - _LENGTH) * _USUAL + _LENGTH * length)  # k1 (1 - b + b length / usual), times 100 usual
    return UNIT * count * (10 + _SATURATION) * 10 * _USUAL // (count * 100 * _USUAL + norm)
