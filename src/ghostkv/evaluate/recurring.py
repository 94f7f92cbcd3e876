"""Text whose facts recur: a generated document in which what was said some segments ago is now and then said again.

The facts are invented, and what stands between them is given, best as real prose: invented filler would recur itself.
Prose at large tests whether the thread is kept; here the next words are often known from far back, so it shows what
facts that were carried are worth. Only values that still hold are repeated. A pure function of the seed, the length,
the filler and the tokenizer that measures it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ghostkv.evaluate.documents import Fact, Shape, document, paragraphs

APART = 3  # segments at least between two statements of a fact
_REPETITIONS = 2.0  # for each segment of other text, on average, once there is something to repeat
_BACKGROUND = 1.0  # new facts for each segment of the document before anything is repeated
_PLAIN = "{plain}"
_AGAIN = (_PLAIN, _PLAIN, "Once more: {plain}", "To say it again: {plain}", "{stem} {value}.")


@dataclass(frozen=True, slots=True)
class Repetition:
    """A fact that is said again."""

    fact: Fact
    index: int  # of the sentence that says it
    apart: int  # tokens since the end of its statement before


@dataclass(frozen=True, slots=True)
class Recurring:
    """A text and what recurs in it, in its order."""

    sentences: tuple[str, ...]
    repetitions: tuple[Repetition, ...]

    @property
    def text(self) -> str:
        """The sentences in paragraphs."""
        return paragraphs(self.sentences)


def recurring(
    seed: int, tokens: int, count: Callable[[str], int], filler: Iterator[str], *, segment: int = 150
) -> Recurring:
    """At least `tokens` tokens. Each fact that was last said at least APART segments before is as likely as another.

    `filler` gives the sentences between the facts.
    """
    # A little longer than asked for: joined text may have fewer tokens than its sentences.
    shape = Shape(distances=(tokens // segment + 2,), background=_BACKGROUND, segment=segment)
    source = document(seed, shape, count, filler=filler)
    draw = random.Random(f"recurring {seed}")
    stated = {fact.sentence: fact for fact in source.facts}
    last: dict[tuple[str, str], tuple[Fact, int]] = {}  # subject and attribute -> the value that holds, and where
    sentences: list[str] = []
    repetitions: list[Repetition] = []
    written = 0
    for sentence in source.sentences:
        sentences.append(sentence)
        size = count(f" {sentence}")
        written += size
        if (fact := stated.get(sentence)) is not None:
            last[_key(fact)] = fact, written
        due = [(fact, at) for fact, at in last.values() if written - at >= APART * segment]
        if due and draw.random() < _REPETITIONS * size / segment:
            fact, at = draw.choice(due)
            again = _again(fact, draw.choice(_AGAIN))
            repetitions.append(Repetition(fact, len(sentences), written - at))
            sentences.append(again)
            written += count(f" {again}")
            last[_key(fact)] = fact, written
    return Recurring(tuple(sentences), tuple(repetitions))


def _again(fact: Fact, form: str) -> str:
    stem = fact.attribute.stem.format(s=fact.subject)
    return form.format(plain=fact.plainly, stem=stem, value=fact.value)


def _key(fact: Fact) -> tuple[str, str]:
    return fact.subject, fact.attribute.name
