"""Which documents are joined, and in what order, so that much can be asked at the distances that are asked for.

A text is built from its end towards its beginning. Each step takes, of the next documents of a given order, the one
that brings the most questions at the asked distances and spoils the fewest that are there: a value that stands twice in
the whole text can no longer be asked for. Pure; it looks for no best arrangement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ghostkv.evaluate.clozes import Cloze
from ghostkv.evaluate.documents import Shape

_NEXT = 150  # documents among which each step chooses
_NEAR = 0.25  # a question may stand this part of its distance, but at least half a segment, beside it


@dataclass(frozen=True, slots=True)
class Entry:
    """One real document."""

    text: str
    clozes: tuple[Cloze, ...]  # by position; the value of each stands once in the text
    holds: frozenset[str]  # of all values that clozes of any document have, folded, those that stand in the text


def zone(tokens: int, shape: Shape) -> int | None:
    """The distance, in segments, that a question so many tokens before the end belongs to; None: it is at none."""
    distance = min(shape.distances, key=lambda each: abs(tokens - each * shape.segment))
    off = abs(tokens - distance * shape.segment)
    return distance if off <= shape.segment * max(0.5, _NEAR * distance) else None


def arranged(
    entries: Sequence[Entry], order: Sequence[int], shape: Shape, size: Callable[[int], int], aim: int
) -> list[int] | None:
    """Indices of entries that together have `aim` tokens, the last one first; None where there are too few.

    `size` gives an entry's tokens.
    """
    left, taken, growing = list(order), list[int](), _Growing(shape)
    while growing.tokens < aim:
        if not left:
            return None
        best = max(left[:_NEXT], key=lambda index: growing.gain(entries[index], size(index)))
        growing.take(entries[best], size(best))
        taken.append(best)
        left.remove(best)
    return taken


@dataclass(slots=True)
class _Growing:
    """The end of a text, as far as it is built."""

    shape: Shape
    tokens: int = 0
    asked: dict[str, int] = field(default_factory=dict)  # value -> distance
    held: set[str] = field(default_factory=set)  # all values in it

    def brought(self, entry: Entry, size: int) -> Iterator[tuple[str, int]]:
        """Values that can be asked for if the entry comes before it, and their distances."""
        for cloze in entry.clozes:
            behind = self.tokens + size * (len(entry.text) - cloze.end) // len(entry.text)
            distance = zone(behind, self.shape)
            if distance is not None and cloze.folded not in self.held:
                yield cloze.folded, distance

    def gain(self, entry: Entry, size: int) -> int:
        """Questions that the entry adds, up to as many as are wanted, less those that it spoils."""
        there = Counter(self.asked.values())
        more = Counter(distance for _, distance in self.brought(entry, size))
        added = sum(min(new, max(0, self.shape.probes - there[distance])) for distance, new in more.items())
        return added - sum(value in entry.holds for value in self.asked)

    def take(self, entry: Entry, size: int) -> None:
        """Put the entry before it."""
        brought = dict(self.brought(entry, size))
        self.asked = {value: at for value, at in self.asked.items() if value not in entry.holds} | brought
        self.held |= entry.holds
        self.tokens += size
