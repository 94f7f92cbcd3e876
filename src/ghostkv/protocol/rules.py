"""The rules that end an answer or mark fixed boundaries. Semantic boundaries are in `segmenter`.

A rule's state is text and counts, never token positions of one engine request, so it goes through a boundary unchanged.
Each is fed once per token of every running sequence: a feed that changes nothing returns the rule itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from ghostkv.errors import InvalidRequest
from ghostkv.protocol.lines import Opening
from ghostkv.request import CONTINUE, Boundary, FinishReason, Rule, Stop, Verdict


@runtime_checkable
class BoundaryRule(Protocol):
    """A rule that gives boundaries. After giving one it has begun the next segment by itself."""

    @property
    def held(self) -> int:
        """As in `Rule`."""
        ...

    @property
    def openings(self) -> tuple[Opening, ...]:
        """Structures open in the text so far, outermost first, by token of the answer."""
        ...

    def feed(self, token_id: int, piece: str) -> tuple[Rule, Verdict]:
        """As in `Rule`."""
        ...

    def next_segment(self) -> BoundaryRule:
        """The rule for a segment that begins here: for boundaries that another gave, such as the cap."""
        ...


@dataclass(frozen=True, slots=True)
class EndOfSequence:
    """Stop at an id, whose text is no output. `min_tokens` is the sampler's part: before it, no such id is chosen."""

    ids: frozenset[int]

    @property
    def held(self) -> int:
        """None: it drops nothing that came before."""
        return 0

    def feed(self, token_id: int, piece: str) -> tuple[Rule, Verdict]:
        """Stop on one of the ids."""
        return self, Stop(FinishReason.STOP, drop=len(piece)) if token_id in self.ids else CONTINUE


@dataclass(frozen=True, slots=True)
class StopStrings:
    """Stop where the text contains one of several strings; the text ends before it.

    The match that is complete first wins, of those the longest, so the result does not depend on how the text falls
    into pieces. A match counts only if it is complete at output token `min_tokens` or later; it may begin before.
    """

    stops: tuple[str, ...]
    prefixes: frozenset[str]  # every proper prefix of a stop
    unready: int = 0  # output tokens still to come before a match may count
    tail: str = ""  # longest end of the text that is a proper prefix of a stop: all that a later match can need

    @classmethod
    def of(cls, stops: Iterable[str], min_tokens: int = 0) -> StopStrings:
        """Raises InvalidRequest for an empty string, which would match everywhere."""
        wanted = tuple(dict.fromkeys(stops))
        if "" in wanted:
            raise InvalidRequest("a stop string must not be empty", param="stop")
        return cls(wanted, frozenset(stop[:n] for stop in wanted for n in range(1, len(stop))), max(0, min_tokens - 1))

    @property
    def held(self) -> int:
        """The tail: a later token may complete it to a stop string."""
        return len(self.tail)

    def feed(self, token_id: int, piece: str) -> tuple[Rule, Verdict]:
        """Stop at the first match that this piece completes, dropping everything from its start."""
        text = self.tail + piece
        if not self.unready and piece and (match := self._match(text)) is not None:
            return self, Stop(FinishReason.STOP, drop=len(text) - match)
        tail = self._tail(text) if piece else self.tail
        if self.unready:
            return replace(self, unready=self.unready - 1, tail=tail), CONTINUE
        if tail == self.tail:
            return self, CONTINUE
        return StopStrings(self.stops, self.prefixes, 0, tail), CONTINUE

    def _match(self, text: str) -> int | None:
        """Where the first match that ends inside the new piece starts."""
        seen = len(self.tail)
        best: tuple[int, int] | None = None
        for stop in self.stops:
            # An earlier match inside the tail was ignored for min_tokens and must not come back.
            start = text.find(stop, max(0, seen - len(stop) + 1))
            if start >= 0 and (best is None or (start + len(stop), start) < best):
                best = start + len(stop), start
        return None if best is None else best[1]

    def _tail(self, text: str) -> str:
        return next((text[i:] for i in range(len(text)) if text[i:] in self.prefixes), "")


@dataclass(frozen=True, slots=True)
class FixedBoundary:
    """A boundary after every `every` tokens, wherever that falls: for tests and for measurements."""

    every: int
    generated: int = 0  # tokens of this segment

    @property
    def held(self) -> int:
        """None: it drops nothing that came before."""
        return 0

    @property
    def openings(self) -> tuple[Opening, ...]:
        """None: it does not look at the text."""
        return ()

    def feed(self, token_id: int, piece: str) -> tuple[Rule, Verdict]:
        """Count."""
        generated = self.generated + 1
        if generated == self.every:
            return FixedBoundary(self.every), Boundary("fixed")
        return FixedBoundary(self.every, generated), CONTINUE

    def next_segment(self) -> FixedBoundary:
        """Count from 0."""
        return FixedBoundary(self.every)


def next_segment(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """The rules for the next segment: boundary rules begin it, all others go on."""
    return tuple(rule.next_segment() if isinstance(rule, BoundaryRule) else rule for rule in rules)


def openings(rules: tuple[Rule, ...]) -> tuple[Opening, ...]:
    """What the boundary rules know to be open."""
    return tuple(opening for rule in rules if isinstance(rule, BoundaryRule) for opening in rule.openings)
