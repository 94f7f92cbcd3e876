"""The ledger: every assertion of the session, and what of it holds.

A grow-only set of assertions. `merge` is set union, so it is associative, commutative and idempotent; standings are a
function of the set. It never forgets: what a budget leaves out is the payload's decision.

For a renderer, which has sentences: `current` rewrites one so that it shows only what holds, and `announced` names the
older sentences that, so rewritten, say what a newer one announces; one of the two is enough.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import itemgetter

from ghostkv.protocol.facts import Fact, Sentence
from ghostkv.protocol.fold import Fold, Standing

__all__ = ["Ledger", "Standing"]

_EMPTY = Fold()


def _order(fact: Fact) -> tuple[object, ...]:
    """Total, and as the conversation reads; in one sentence a new value comes after what it replaces."""
    sentence, position = fact.sentence, fact.sentence.position
    return (
        position.message, position.node, position.offset, fact.changes and not fact.hypothetical,
        sentence.text.find(fact.value), fact.kind.value, fact.value, fact.subject, fact.attribute, fact.normal,
        fact.changes, fact.hypothetical, sentence.segment, sentence.role, sentence.text, sentence.topic,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ledger:
    """Assertions by position, without repetition; equal ledgers have equal facts."""

    facts: tuple[Fact, ...] = ()
    _fold: Fold = field(default=_EMPTY, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.facts:
            facts = _sorted(self.facts)
            object.__setattr__(self, "facts", facts)
            object.__setattr__(self, "_fold", _EMPTY.extended(facts))

    def merge(self, facts: Iterable[Fact]) -> Ledger:
        """The ledger of both. Facts that all come later than these cost only their own number."""
        added = _sorted(facts)
        if not added:
            return self
        if self.facts and _order(added[0]) <= _order(self.facts[-1]):
            return Ledger((*self.facts, *added))
        ledger = Ledger()
        object.__setattr__(ledger, "facts", (*self.facts, *added))
        object.__setattr__(ledger, "_fold", self._fold.extended(added))
        return ledger

    def standings(self) -> tuple[Standing, ...]:
        """Of every value that was stated, by first mention, superseded and hypothetical ones included."""
        return tuple(self._fold.standings)

    def standing(self, fact: Fact) -> Standing | None:
        """Of a fact of this ledger."""
        for said, index in self._fold.said.get(fact.sentence.position, ()):
            if said == fact:
                return self._fold.standings[index]
        return None

    def successor(self, standing: Standing) -> Standing | None:
        """What holds now in the place of a superseded standing; itself if it holds; None if nothing does."""
        seen: list[Fact] = []
        while standing.superseded_by is not None:
            by = standing.superseded_by
            following = None if by.hypothetical or by in seen else self.standing(by)
            if following is None:
                return None
            seen.append(by)
            standing = following
        return standing

    def history(self, standing: Standing) -> tuple[Standing, ...]:
        """All that stood in this one's place and stands there now, oldest first: the answer to "what was it?"."""
        chain = [standing]
        earlier = {s.superseded_by: s for s in self._fold.standings if s.superseded_by is not None}
        while chain[0].fact in earlier and earlier[chain[0].fact] not in chain:
            chain.insert(0, earlier[chain[0].fact])
        while (by := chain[-1].superseded_by) is not None and not by.hypothetical:
            following = self.standing(by)
            if following is None or following in chain:
                break
            chain.append(following)
        return tuple(chain)

    def is_stale(self, sentence: Sentence) -> bool:
        """Whether it states, as it was written, a value that no longer holds."""
        return any(True for _ in self._superseded(sentence))

    def announced(self, sentence: Sentence) -> tuple[Sentence, ...]:
        """Earlier sentences that `current` rewrites to say what this one announces as a change, oldest first."""
        own = [fact for fact, _ in self._fold.said.get(sentence.position, ()) if fact.changes]
        if not own:
            return ()
        found = [s.fact.sentence for s in self._fold.standings if s.superseded_by in own]
        return tuple(old for old in dict.fromkeys(found) if old.position != sentence.position and self.current(old))

    def current(self, sentence: Sentence, *, was: bool = False) -> str | None:
        """The resolved text with each superseded value replaced by the one that holds now.

        None where that cannot be written: a value holds no longer and nothing took its place, the sentence tells of
        a change that is itself outdated, or the value stands in it more than once. `was` adds the old value in
        parentheses.
        """
        text = sentence.resolved
        for fact, standing in self._superseded(sentence):
            now = self.successor(standing)
            if now is None or self._tells(sentence):
                return None
            places = _places(text, fact.value)
            if len(places) != 1:
                return None
            start, end = places[0]
            text = f"{text[:start]}{now.fact.value}{f' (was {fact.value})' if was else ''}{text[end:]}"
        return text

    def _superseded(self, sentence: Sentence) -> Iterable[tuple[Fact, Standing]]:
        """Values of a sentence that another sentence superseded, each once."""
        said = self._fold.said.get(sentence.position, ())
        values: list[str] = []
        for fact, index in sorted(said, key=itemgetter(1)):
            standing = self._fold.standings[index]
            by = standing.superseded_by
            if by is None or fact.hypothetical or fact.value in values:
                continue
            if by.sentence.position == sentence.position or self._moved_on(fact, said):
                continue
            values.append(fact.value)
            yield fact, standing

    def _moved_on(self, fact: Fact, said: tuple[tuple[Fact, int], ...]) -> bool:
        """Whether the sentence itself says what replaced a value: "from A to B" may show A as long as B holds."""
        if fact.changes:
            return False
        for other, index in said:
            if other.changes and (other.key == fact.key) and self._fold.standings[index].superseded_by is None:
                return True
        return False

    def _tells(self, sentence: Sentence) -> bool:
        """Whether the sentence is about a change from one value to another."""
        said = self._fold.said.get(sentence.position, ())
        moved = [fact.key for fact, _ in said if fact.changes]
        return any(not fact.changes and not fact.hypothetical and fact.key in moved for fact, _ in said)


def _sorted(facts: Iterable[Fact]) -> tuple[Fact, ...]:
    return tuple(sorted(dict.fromkeys(facts), key=_order))


def _places(text: str, value: str) -> list[tuple[int, int]]:
    """Where a value stands as a whole: not inside a longer number or word."""
    pattern = re.compile(rf"(?<!\w)(?<!\d[.,:]){re.escape(value)}(?!\w)(?![.,:]\d)")
    return [match.span() for match in pattern.finditer(text)]
