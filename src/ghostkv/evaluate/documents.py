"""Documents with invented facts at known distances from their end, and the questions about them.

A document is plain prose, a pure function of its seed, its shape, the filler and the tokenizer that measures it. Around
each asked distance stands a zone of facts, whose centre is that many segments before the end; between the zones there
are filler sentences and now and then a fact that nobody asks about. Some facts change: the new value stands in the
zone, the old one before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise

from ghostkv.errors import ConfigError
from ghostkv.evaluate.invention import Inventor
from ghostkv.evaluate.subjects import SUBJECT_TYPES, Attribute

_PARAGRAPH = 6  # sentences
_ROOM = 30  # tokens of a fact's sentence, with what little stands between two
_CHOICES = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """How documents are built. `distances` in segments, `segment` in tokens."""

    distances: tuple[int, ...] = (1, 5, 20, 50)
    probes: int = 10  # questions for each distance
    changed: int = 3  # of these, about facts that changed
    background: float = 0.4  # facts for each segment that nobody asks about
    segment: int = 150

    def __post_init__(self) -> None:
        if not self.distances or any(near >= far for near, far in pairwise((0, *self.distances))):
            raise ConfigError(f"distances must be whole, positive and ascending, not {self.distances}")
        if not 0 <= self.changed <= self.probes:
            raise ConfigError(f"{self.changed} of {self.probes} questions cannot be about changed facts")


@dataclass(frozen=True, slots=True)
class Fact:
    """One statement of a document."""

    subject: str
    attribute: Attribute
    value: str
    replaced: str = ""  # the value before, where this statement changes it

    @property
    def sentence(self) -> str:
        """As the document says it."""
        form = self.attribute.update if self.replaced else self.attribute.statement
        return form.format(s=self.subject, v=self.value)

    @property
    def plainly(self) -> str:
        """The value that holds, in the words of a first statement."""
        return self.attribute.statement.format(s=self.subject, v=self.value)


@dataclass(frozen=True, slots=True)
class Probe:
    """A question with one right answer."""

    fact: Fact
    distance: int  # segments, nominal
    tokens: int  # from the fact's sentence to the document's end
    candidates: tuple[str, ...]  # the right value, then wrong ones of its kind; the replaced one is among them

    @property
    def value(self) -> str:
        """The right answer."""
        return self.fact.value

    @property
    def stem(self) -> str:
        """The start of an answer, which the value follows."""
        return self.fact.attribute.stem.format(s=self.fact.subject)

    def question(self, *, paraphrased: bool = False) -> str:
        """As a user asks."""
        attribute = self.fact.attribute
        return (attribute.paraphrase if paraphrased else attribute.question).format(s=self.fact.subject)


@dataclass(frozen=True, slots=True)
class Document:
    """Prose and what can be asked about it."""

    seed: int
    text: str
    tokens: int
    facts: tuple[Fact, ...]  # in the order of the text
    probes: tuple[Probe, ...]  # by distance, near ones first
    sentences: tuple[str, ...] = ()  # of the text, where it was generated


@dataclass(slots=True)
class _Place:
    """Where a fact shall stand: at least this many tokens before the end, if what comes before leaves room."""

    before_end: float
    fact: Fact
    distance: int | None = None  # set where it is asked about
    tokens: int = field(default=0)  # from the end of its sentence to the document's end, once that is written


def document(
    seed: int,
    shape: Shape,
    count: Callable[[str], int],
    *,
    variant: str = "",
    filler: Iterator[str] | None = None,
) -> Document:
    """The document of a seed. Another `variant` has the same subjects in the same places, but other values.

    `count` measures text in tokens; `filler` gives the sentences between the facts, else they are invented.
    """
    layout = Inventor(f"layout {seed}")
    values = Inventor(f"values {seed} {variant}")
    places = _places(shape, layout, values)
    between = filler or iter(layout.filler, "")
    sentences, tokens = _write(places, count, between)
    asked = [place for place in places if place.distance is not None]
    asked.sort(key=lambda place: (place.distance or 0, -place.tokens))
    facts = tuple(place.fact for place in places)
    probes = tuple(
        Probe(place.fact, place.distance or 0, place.tokens, _candidates(place.fact, facts, values)) for place in asked
    )
    return Document(seed, paragraphs(sentences), tokens, facts, probes, tuple(sentences))


def paragraphs(sentences: Sequence[str]) -> str:
    """The sentences as text."""
    remaining = iter(sentences)
    return "\n\n".join(iter(lambda: " ".join(islice(remaining, _PARAGRAPH)), ""))


def _places(shape: Shape, layout: Inventor, values: Inventor) -> list[_Place]:
    """All facts, the farthest from the end first."""
    start = max(shape.distances) * shape.segment + _ROOM * (shape.probes // 2 + shape.changed + 1)
    background = round(shape.background * start / shape.segment)
    pairs = _pairs(len(shape.distances) * shape.probes + background, layout)
    places: list[_Place] = []
    for distance in shape.distances:
        changing = [pair for pair in pairs if pair[1].update][: shape.changed]
        chosen = changing + [pair for pair in pairs if pair not in changing][: shape.probes - len(changing)]
        pairs = [pair for pair in pairs if pair not in chosen]
        order = layout.random.sample(chosen, len(chosen))
        for rank, (subject, attribute) in enumerate(order):
            middle = distance * shape.segment + _ROOM * (shape.probes / 2 - rank)
            if (subject, attribute) not in changing:
                places.append(_Place(middle, Fact(subject, attribute, values.value(attribute.kind)), distance))
                continue
            old, new = values.change(attribute.kind, attribute.update)
            zone = distance * shape.segment + _ROOM * (shape.probes / 2 + 1)
            places.append(_Place(layout.random.uniform(zone, start), Fact(subject, attribute, old)))
            places.append(_Place(middle, Fact(subject, attribute, new, replaced=old), distance))
    for subject, attribute in pairs[:background]:
        fact = Fact(subject, attribute, values.value(attribute.kind))
        places.append(_Place(layout.random.uniform(0, start), fact))
    return sorted(places, key=lambda place: -place.before_end)


def _pairs(needed: int, layout: Inventor) -> list[tuple[str, Attribute]]:
    """Subjects with an attribute each, no pair twice; a subject has up to three, and there are others of its type."""
    pairs: list[tuple[str, Attribute]] = []
    while len(pairs) < 2 * needed:
        for kind in SUBJECT_TYPES:
            subject = layout.subject(kind.pattern)
            pairs += [(subject, attribute) for attribute in kind.attributes]
    return layout.random.sample(pairs, len(pairs))


def _write(places: Sequence[_Place], count: Callable[[str], int], filler: Iterator[str]) -> tuple[list[str], int]:
    """The sentences and their tokens; notes in each place where its fact has come to stand."""
    left = places[0].before_end + _ROOM
    sentences: list[str] = []
    written = 0
    after: list[tuple[_Place, int]] = []

    def put(sentence: str) -> int:
        nonlocal written
        size = count(f" {sentence}" if len(sentences) % _PARAGRAPH else f"\n\n{sentence}")
        sentences.append(sentence)
        written += size
        return size

    for place in places:
        while left - _ROOM > place.before_end:
            left -= put(next(filler))
        left -= put(place.fact.sentence)
        after.append((place, written))
    while left > _ROOM / 2:
        left -= put(next(filler))
    for place, stood in after:
        place.tokens = written - stood
    return sentences, written


def _candidates(fact: Fact, facts: Sequence[Fact], values: Inventor) -> tuple[str, ...]:
    """The right value, the replaced one, others of the document of the same kind, and invented ones."""
    kind = fact.attribute.kind
    same = [other.value for other in facts if other.attribute.kind == kind]
    values.random.shuffle(same)
    found = list(dict.fromkeys(filter(None, (fact.value, fact.replaced, *same[: _CHOICES - 2]))))
    while len(found) < _CHOICES:
        found = list(dict.fromkeys((*found, values.value(kind))))
    return tuple(found[:_CHOICES])
