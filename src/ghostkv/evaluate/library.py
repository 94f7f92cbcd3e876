"""Real documents for the recall test: joined to one long text, and asked about by sentences to be completed.

A conversation takes documents in an order drawn from its seed (`arrangement`), as many as reach the farthest distance.
A sentence is asked about if its value stands nowhere else in that text, and if no other sentence of any document begins
like it.
"""

from __future__ import annotations

import gzip
import json
import random
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path

from ghostkv.errors import ConfigError
from ghostkv.evaluate.answers import folded, occurrences
from ghostkv.evaluate.arms import CONTINUED, DIRECT
from ghostkv.evaluate.arrangement import Entry, arranged, zone
from ghostkv.evaluate.clozes import Cloze, as_fact, find_clozes
from ghostkv.evaluate.documents import Document, Probe, Shape
from ghostkv.text.sentences import sentence_starts

_SPARE = 1  # segments before the farthest distance
_DISTRACTORS = 3
_JOINT = "\n\n"

Alike = Mapping[object, Sequence[str]]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A sentence that is asked about."""

    cloze: Cloze  # with offsets in the whole text
    distance: int
    tokens: int  # from its end to the end of the text
    wrong: tuple[str, ...]  # other values


@dataclass(frozen=True, slots=True)
class _Conversation:
    """A joined text."""

    text: str
    tokens: int
    asked: tuple[_Asked, ...]
    entries: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Library:
    """A collection of real documents: a Source of the recall test."""

    name: str
    entries: tuple[Entry, ...]
    alike: Alike  # form or kind of a value -> values
    forms: Sequence[str] = (DIRECT, CONTINUED)
    answer_tokens: int = 48

    @classmethod
    def of(cls, name: str, texts: Iterable[str]) -> Library:
        """Find what can be asked."""
        found = [(text, list(find_clozes(text))) for text in texts if text]
        stems = Counter(cloze.stem for _, clozes in found for cloze in clozes)
        values = list(dict.fromkeys(cloze.folded for _, clozes in found for cloze in clozes))
        entries = []
        for text, clozes in found:
            plain = folded(text)
            times = {value: occurrences(plain, value) for value in values if value in plain}
            kept = tuple(c for c in clozes if stems[c.stem] == 1 and times[c.folded] == 1)
            entries.append(Entry(text, kept, frozenset(value for value, there in times.items() if there)))
        return cls(name, tuple(entries), _alike(cloze for _, clozes in found for cloze in clozes))

    def show(self, seed: int, shape: Shape, count: Callable[[str], int], shows: str) -> Document:
        """See recall.Source. "other" has none of the documents of "own"; "wrong" has other values in what is asked.

        Raises ConfigError where the documents do not reach the farthest distance.
        """
        order = list(range(len(self.entries)))
        random.Random(f"order {seed}").shuffle(order)
        made = self._conversation(order, shape, count, seed)
        if shows == "other":
            taken = set(made.entries)
            made = self._conversation([index for index in order if index not in taken], shape, count, seed)
        if shows != "wrong":
            return _document(seed, made, [(each.cloze.value, *each.wrong) for each in made.asked])
        text = made.text
        for each in sorted(made.asked, key=lambda each: -each.cloze.at):
            at = each.cloze.at
            text = f"{text[:at]}{each.wrong[0]}{text[at + len(each.cloze.value) :]}"
        exchanged = [(each.wrong[0], each.cloze.value, *each.wrong[1:]) for each in made.asked]
        return _document(seed, replace(made, text=text), exchanged)

    def _conversation(
        self, order: Sequence[int], shape: Shape, count: Callable[[str], int], seed: int
    ) -> _Conversation:
        aim = (max(shape.distances) + _SPARE) * shape.segment
        size = cache(lambda index: count(self.entries[index].text))
        taken = arranged(self.entries, order, shape, size, aim)
        if taken is None:
            raise ConfigError(f"{self.name}: too few documents for a text of {aim} tokens")
        chosen = list(reversed(taken))
        joined = _JOINT.join(self.entries[index].text for index in chosen)
        starts = accumulate((len(self.entries[index].text) + len(_JOINT) for index in chosen), initial=0)
        places, behind = _measured(joined, count)
        first = next((i for i, tokens in enumerate(behind) if tokens <= aim), len(behind) - 1)
        begin = places[first]
        held = Counter(value for index in chosen for value in self.entries[index].holds)
        found = []
        for index, start in zip(chosen, starts, strict=False):
            for cloze in self.entries[index].clozes:
                if start + cloze.start >= begin and held[cloze.folded] == 1:
                    tokens = behind[bisect_left(places, start + cloze.end)]
                    moved = replace(cloze, start=start + cloze.start - begin, end=start + cloze.end - begin)
                    found.append((moved, tokens))
        asked = self._asked(found, shape, held, random.Random(f"wrong {seed}"))
        return _Conversation(joined[begin:], behind[first], tuple(asked), tuple(chosen))

    def _asked(
        self, found: Sequence[tuple[Cloze, int]], shape: Shape, held: Mapping[str, int], draw: random.Random
    ) -> Iterator[_Asked]:
        """For each distance the questions that stand nearest to it; near distances first, and far questions first."""
        zones: defaultdict[int, list[_Asked]] = defaultdict(list)
        for cloze, tokens in found:
            distance = zone(tokens, shape)
            wrong = tuple(self._wrong(cloze, held, draw))
            if distance is not None and len(wrong) == _DISTRACTORS:
                zones[distance].append(_Asked(cloze, distance, tokens, wrong))
        for distance in shape.distances:
            middle = distance * shape.segment
            nearest = sorted(zones[distance], key=lambda each: abs(each.tokens - middle))[: shape.probes]
            yield from sorted(nearest, key=lambda each: -each.tokens)

    def _wrong(self, cloze: Cloze, held: Mapping[str, int], draw: random.Random) -> Iterator[str]:
        """Values of other documents that stand nowhere in the text: such that look alike first, else of its kind."""
        seen = {cloze.folded}
        for values in (self.alike[cloze.form], self.alike[cloze.kind]):
            for value in draw.sample(values, len(values)):
                if len(seen) > _DISTRACTORS:
                    return
                if folded(value) not in seen and not held[folded(value)]:
                    seen.add(folded(value))
                    yield value


def read_library(path: Path) -> Library:
    """A file of one JSON object a line, plain or gzip: `content`, and a `title` if there is one. Raises ConfigError."""
    try:
        data = path.read_bytes()
        lines = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8").split("\n")
        entries = [(number, json.loads(line)) for number, line in enumerate(lines, 1) if line.strip()]
    except (OSError, EOFError, ValueError) as error:
        raise ConfigError(f"{path}: is no file of one JSON object a line: {error}") from error
    return Library.of(path.name, [_text(entry, f"{path}, line {number}") for number, entry in entries])


def _text(entry: object, where: str) -> str:
    content = entry.get("content") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(content, str):
        raise ConfigError(f"{where}: an object with a text `content` is wanted")
    title = entry.get("title")
    return f"# {title}\n\n{content.strip()}" if title else content.strip()


def _document(seed: int, made: _Conversation, candidates: Sequence[tuple[str, ...]]) -> Document:
    """`candidates` of each question: the value that the text gives, and wrong ones."""
    probes = tuple(
        Probe(as_fact(each.cloze, values[0]), each.distance, each.tokens, values)
        for each, values in zip(made.asked, candidates, strict=True)
    )
    facts = tuple(probe.fact for probe in sorted(probes, key=lambda probe: -probe.tokens))
    return Document(seed, made.text, made.tokens, facts, probes)


def _measured(text: str, count: Callable[[str], int]) -> tuple[list[int], list[int]]:
    """Where the sentences start, and the text's end; and the tokens from there to the end."""
    places = [*sentence_starts(text), len(text)]
    sizes = [count(text[start:stop]) for start, stop in pairwise(places)]
    return places, [*reversed(list(accumulate(reversed(sizes), initial=0)))]


def _alike(clozes: Iterable[Cloze]) -> Alike:
    """Values by their form and by their kind, each once."""
    found: defaultdict[object, dict[str, None]] = defaultdict(dict)
    for cloze in clozes:
        found[cloze.form][cloze.value] = found[cloze.kind][cloze.value] = None
    return {key: list(values) for key, values in found.items()}
