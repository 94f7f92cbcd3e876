"""Finds the archived sentences that a question, or the answer in progress, needs. Lexical: no model and no floats.

score = sum over query terms of weight x idf x impact (BM25 in fixed point), plus a bonus if the sentence holds a fact
of a kind that the question asks for. Paraphrases are reached by concepts (`concepts`), by words that begin alike and by
that bonus, each weaker than a word itself. Scores are integers; of equal ones the later sentence, which is the more
likely to be current, comes first. The result is a function of the sentences and the query alone.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from ghostkv.protocol.concepts import wanted
from ghostkv.protocol.facts import Kind, Sentence
from ghostkv.protocol.sentence_index import IMPACT, SHIFT, UNIT, SentenceIndex
from ghostkv.protocol.terms import is_exact, terms

QUESTION_WEIGHT = 16
TAIL_WEIGHT = 3
_MOST_TERMS = 48  # of a query. Of a long message the last ones count: there the question is
_LONGEST = 4000  # characters of a question or a tail that are looked at, from its end
_IDF_BITS = 4  # an idf is log2 in 1/16
_NEGLIGIBLE = 16  # common words of a long tail: they cost most of a search and decide nothing
_ALIKE = 50  # percent of trigrams that two words must share
_KIND_BONUS = QUESTION_WEIGHT * UNIT * (2 << _IDF_BITS)  # as a word that every fourth sentence holds

Kinds = Callable[[Sentence], Collection[Kind]]
"""Sentence -> kinds of the facts in it."""


@dataclass(frozen=True, slots=True)
class Query:
    """Weighted terms and the kinds of fact that would answer."""

    terms: tuple[tuple[str, int], ...]  # each term once
    kinds: tuple[Kind, ...] = ()

    @classmethod
    def of(cls, question: str, tail: str = "") -> Query:
        """What `question` (the user's) asks and, weighing less, what `tail` (the open answer's end) is about."""
        question = question[-_LONGEST:]
        kinds, hints = wanted(question)
        weights: dict[str, int] = {}
        for text, weight in ((question, QUESTION_WEIGHT), (tail[-_LONGEST:], TAIL_WEIGHT)):
            for term in reversed(terms(text)):
                if len(weights) < _MOST_TERMS:
                    weights.setdefault(term, _weight(term, weight))
        for hint in hints:
            weights.setdefault(f"~{hint}", QUESTION_WEIGHT // 4)
        return cls(tuple(weights.items()), kinds)


@dataclass(frozen=True, slots=True)
class Hit:
    """A sentence found."""

    sentence: Sentence
    score: int
    before: Sentence | None = None  # the one before, where `sentence` starts with a pronoun that nothing resolves
    headings: tuple[Sentence, ...] = ()  # what it stands under, outermost first; they are not part of `text`

    @property
    def text(self) -> str:
        """The sentence so that it can be understood on its own, as far as that is known."""
        return f"{self.before.resolved} {self.sentence.resolved}" if self.before else self.sentence.resolved


def search(
    index: SentenceIndex,
    query: Query,
    limit: int,
    *,
    skip: Callable[[Sentence], bool] = lambda sentence: False,
    kinds: Kinds | None = None,
) -> tuple[Hit, ...]:
    """The `limit` best sentences, best first; none that shares no term with the query, or for which `skip` is true.

    Of sentences with one text only the best is returned. `kinds` is asked only about sentences that it could bring in.
    A sentence before, for which `skip` is true, is left out of its hit.
    """
    bonus = _KIND_BONUS if kinds is not None and query.kinds else 0
    best: list[tuple[int, int]] = []  # (-score, -number), ascending
    texts: dict[str, tuple[int, int]] = {}
    for score, number in _descending(_scores(index, query)):
        if limit <= 0 or (len(best) >= limit and score + bonus < -best[limit - 1][0]):
            break
        sentence = index.sentences[number]
        if skip(sentence):
            continue
        if bonus and kinds is not None and not set(query.kinds).isdisjoint(kinds(sentence)):
            score += bonus
        entry = (-score, -number)
        known = texts.get(sentence.resolved)
        if known is None or entry < known:
            if known is not None:
                best.remove(known)
            texts[sentence.resolved] = entry
            insort(best, entry)
    return tuple(_hit(index, -number, -score, skip) for score, number in best[:limit])


def _hit(index: SentenceIndex, number: int, score: int, skip: Callable[[Sentence], bool]) -> Hit:
    before = index.before(number)
    kept = None if before is None or skip(before) else before
    return Hit(index.sentences[number], score, kept, index.headings(number))


def _weight(term: str, weight: int) -> int:
    if term.startswith("~"):
        return weight // 2
    return weight * 2 if is_exact(term) else weight


def _scores(index: SentenceIndex, query: Query) -> list[int]:
    """The score of each sentence, kinds aside. A term that is worth less than 1/16 of the best one does not count."""
    total = len(index)
    found = [(weight, postings) for term, weight in _expanded(index, query) if (postings := index.postings(term))]
    gains = [weight * _idf(total, len(postings)) for weight, postings in found]
    least = max(gains, default=0) // _NEGLIGIBLE
    scores = [0] * total
    for gain, (_, postings) in zip(gains, found, strict=True):
        if gain >= least:
            for posting in postings:
                scores[posting >> SHIFT] += gain * (posting & IMPACT)
    return scores


def _descending(scores: list[int]) -> Iterator[tuple[int, int]]:
    """(score, number) of all positive scores, best first, of equal ones the later first. Lazily: few are wanted."""
    above = max(scores, default=0) + 1
    while above > 1:
        least = above // 2
        batch = [(score, number) for number, score in enumerate(scores) if least <= score < above]
        yield from sorted(batch, reverse=True)
        above = least


def _expanded(index: SentenceIndex, query: Query) -> Iterator[tuple[str, int]]:
    """The query's terms and, for a part of the weight, indexed words that begin alike.

    That part is half of what the words share, and half of that again where the term itself occurs.
    """
    own = dict(query.terms)
    for term, weight in query.terms:
        yield term, weight
        grams = _trigrams(term)
        part = 400 if index.postings(term) else 200
        for other in index.beginning_alike(term):
            others = _trigrams(other)
            shared = 200 * len(grams & others) // (len(grams) + len(others))  # Dice's coefficient, percent
            if shared >= _ALIKE and other not in own and weight * shared >= part:
                yield other, weight * shared // part


def _trigrams(word: str) -> frozenset[str]:
    marked = f"^{word}"
    return frozenset(marked[i : i + 3] for i in range(len(marked) - 2))


def _idf(total: int, holding: int) -> int:
    """log2((total + 1) / (holding + 1/2)) in 1/16, rounded down, at least 1: how rare a term is. Exact."""
    steps = 1 << _IDF_BITS
    ratio: int = (2 * total + 2) ** steps // (2 * holding + 1) ** steps
    return max(1, ratio.bit_length() - 1)
