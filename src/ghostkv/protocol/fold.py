"""Standings: a fold over assertions in the order of their positions. What supersedes what is decided only here.

1 An equal value of the same subject and attribute is a repetition; of two precisions the finer one stands.
2 A changed value ("rose to", "is now") takes the place of the value it is said to replace ("from A to B"), else of the
  only current value of that subject and attribute, else, where the sentence does not name the subject, of the only
  current value of that attribute.
3 A later value of an attribute that has one value at a time takes the place of the earlier one of the same subject.
4 Nothing hypothetical takes any place; nothing from a role of lower trust takes the place of one of higher trust.
5 "no longer A" ends A without a successor.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ghostkv.protocol import units
from ghostkv.protocol.aliases import Aliases
from ghostkv.protocol.facts import Fact, Kind, Position
from ghostkv.protocol.vocabulary import ATTRIBUTES, STATES

Key = tuple[str, str, str]

_TRUST = {"system": 3, "developer": 3, "user": 2, "assistant": 1}  # any other role, tools among them: 0
_SPEAKERS = ("system", "developer", "user", "assistant")
_NAMES = (Kind.NAME, Kind.PLACE)


_NOWHERE = Position(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Standing:
    """A value, what became of it, and how often it was said."""

    fact: Fact  # its first or most precise assertion
    superseded_by: Fact | None = None  # the assertion that ended it; that one's own standing may be superseded too
    mentions: int = 1
    last: Position = _NOWHERE  # of the last assertion

    @property
    def current(self) -> bool:
        """Asserted and not superseded."""
        return self.superseded_by is None and not self.fact.hypothetical


class Fold:
    """Standings after some assertions, with the indexes that the next one needs. `extended` gives another."""

    def __init__(self) -> None:
        self.standings: list[Standing] = []
        self.said: dict[Position, tuple[tuple[Fact, int], ...]] = {}  # what a sentence asserted, and its standing
        self._keys: dict[Key, tuple[int, ...]] = {}  # current standings
        self._attributes: dict[tuple[str, str], tuple[int, ...]] = {}  # the same, of any subject
        self._supposed: dict[tuple[str, ...], int] = {}
        self._aliases = Aliases()

    def extended(self, facts: Iterable[Fact]) -> Fold:
        """The fold over `facts` too; each comes after all before it."""
        fold = Fold()
        fold.standings = self.standings.copy()
        fold.said, fold._keys, fold._attributes = self.said.copy(), self._keys.copy(), self._attributes.copy()
        fold._supposed, fold._aliases = self._supposed.copy(), self._aliases.copy()
        for fact in facts:
            fold._add(fact)
        return fold

    def subject(self, name: str) -> str:
        """The form under which a subject is known."""
        return self._aliases.get(name)

    def _add(self, fact: Fact) -> None:
        subject = self._aliases.add(fact.subject) if fact.subject else ""
        family = _family(fact)
        key = (subject, _named(fact), family)
        if fact.hypothetical:
            if fact.changes:
                self._end(fact, key)
            self._note(fact, self._suppose(fact, key))
            return
        normal = self._normal(fact)
        known = next((i for i in self._keys.get(key, ()) if self._same(self.standings[i].fact, fact, normal)), -1)
        if known < 0 and fact.changes:
            # "The price is now 9" after "Acme's price is 9" repeats it.
            others = self._candidates(key)
            known = others[0] if len(others) == 1 and self._same(self.standings[others[0]].fact, fact, normal) else -1
        if known >= 0:
            for old in self._sources(fact, key) if fact.changes else []:
                if old != known:
                    self._supersede(old, fact)
            self._repeat(known, fact)
            self._note(fact, known)
            return
        replaced = self._replaced(fact, key)
        index = len(self.standings)
        self.standings.append(Standing(fact, last=fact.sentence.position))
        for old in replaced:
            self._supersede(old, fact)
        self._keys[key] = (*self._keys.get(key, ()), index)
        named = (key[1], family)
        self._attributes[named] = (*self._attributes.get(named, ()), index)
        self._note(fact, index)

    def _replaced(self, fact: Fact, key: Key) -> list[int]:
        """Current standings of which `fact` takes the place."""
        current = self._keys.get(key, ())
        if fact.changes:
            current = tuple(i for i in current if not self._itself(i))
            found = self._sources(fact, key) or list(current if len(current) == 1 else ()) or self._candidates(key)
        elif _tabular(fact):
            # Within a message, and among documents that tools return, a repeated key belongs to another record.
            restates = fact.sentence.role in _SPEAKERS and not fact.sentence.text.startswith("|")
            found = [i for i in current if self.standings[i].last.message != fact.sentence.position.message]
            found = found if restates and len(current) == 1 else []
        elif key[0] and _single(fact):
            found = list(current)
        else:
            found = []
        return [i for i in found if self.standings[i].last != fact.sentence.position or fact.changes]

    def _sources(self, fact: Fact, key: Key) -> list[int]:
        """What the same sentence says was there before: A of "from A to B"."""
        current = self._keys.get(key, ())
        said = self.said.get(fact.sentence.position, ())
        return [i for old, i in said if not old.changes and i in current and not self._itself(i)][-1:]

    def _itself(self, index: int) -> bool:
        """Whether a standing only says that something was mentioned."""
        fact = self.standings[index].fact
        return fact.kind in _NAMES and fact.subject == fact.value

    def _candidates(self, key: Key) -> list[int]:
        """Where a change names only half of the key: the one current value that it can mean, if there is one."""
        subject, attribute, family = key
        found = self._attributes.get((attribute, family), ())
        generic = attribute not in ATTRIBUTES or attribute == Kind.QUANTITY.value
        if subject and not generic:
            whole = f"{subject} {attribute}"
            found = tuple(i for i in found if whole in self.standings[i].fact.sentence.resolved.casefold())
        elif subject:
            found = tuple(i for found in self._attributes.values() for i in found)
            found = tuple(i for i in found if self._aliases.get(self.standings[i].fact.subject) == subject)
            found = tuple(i for i in found if _family(self.standings[i].fact) == family and not self._itself(i))
        elif generic and family.partition(":")[2] == "":
            return []
        return list(found) if len(found) == 1 else []

    def _end(self, fact: Fact, key: Key) -> None:
        """After "no longer A": the standing of A, if it is clear which, holds no longer."""
        normal = self._normal(fact)
        found = [i for i in self._keys.get(key, ()) if self._same(self.standings[i].fact, fact, normal)]
        found = found or [
            i
            for i in self._attributes.get((key[1], key[2]), ())
            if self._same(self.standings[i].fact, fact, normal) and (not key[0] or not self.standings[i].fact.subject)
        ]
        if len(found) == 1 and fact.attribute != fact.kind.value:
            self._supersede(found[0], fact)

    def _supersede(self, index: int, by: Fact) -> None:
        old = self.standings[index]
        if _trust(by) < _trust(old.fact):
            return
        self.standings[index] = replace(old, superseded_by=by)
        family = _family(old.fact)
        key = (self._aliases.get(old.fact.subject) if old.fact.subject else "", _named(old.fact), family)
        self._keys[key] = tuple(i for i in self._keys.get(key, ()) if i != index)
        named = (key[1], family)
        self._attributes[named] = tuple(i for i in self._attributes.get(named, ()) if i != index)

    def _repeat(self, index: int, fact: Fact) -> None:
        old = self.standings[index]
        finer = fact.kind is Kind.QUANTITY and units.precision(fact.value) > units.precision(old.fact.value)
        stands = fact if finer and old.fact.normal != fact.normal and _trust(fact) >= _trust(old.fact) else old.fact
        self.standings[index] = replace(old, fact=stands, mentions=old.mentions + 1, last=fact.sentence.position)

    def _suppose(self, fact: Fact, key: Key) -> int:
        told = (*key, fact.normal)
        index = self._supposed.get(told, -1)
        if index < 0:
            index = self._supposed[told] = len(self.standings)
            self.standings.append(Standing(fact, last=fact.sentence.position))
        else:
            self._repeat(index, fact)
        return index

    def _note(self, fact: Fact, index: int) -> None:
        position = fact.sentence.position
        self.said[position] = (*self.said.get(position, ()), (fact, index))

    def _normal(self, fact: Fact) -> str:
        return self._aliases.add(fact.value) if fact.kind in _NAMES else fact.normal

    def _same(self, old: Fact, new: Fact, normal: str) -> bool:
        if old.kind in _NAMES:
            return self._aliases.get(old.value) == normal
        if old.normal == new.normal:
            return True
        quantities = old.kind is Kind.QUANTITY and new.kind is Kind.QUANTITY and not new.changes
        return quantities and units.compatible(old.value, old.normal, new.value, new.normal)


def _family(fact: Fact) -> str:
    """Values of one family can take each other's place."""
    if fact.kind is Kind.QUANTITY:
        return f"quantity:{units.dimension(fact.normal)}"
    return "name" if fact.kind in _NAMES else fact.kind.value


def _named(fact: Fact) -> str:
    """The attribute; a place said of something is only another name."""
    return Kind.NAME.value if fact.attribute == Kind.PLACE.value else fact.attribute


def _single(fact: Fact) -> bool:
    """Whether the attribute has one value at a time; a mere dimension ("3 m") need not, unless it is a state."""
    if fact.attribute in STATES:
        return True
    text = fact.sentence.resolved.casefold()
    # "the monthly fee": a subject that is only a modifier does not say whose fee it is.
    modifies = f"{fact.subject.casefold()} {fact.attribute}" in text
    return fact.attribute in ATTRIBUTES and fact.attribute in text and not modifies


def _tabular(fact: Fact) -> bool:
    """Whether a fact is of a table row or a `key: value` line."""
    text = fact.sentence.text
    if text.startswith("|") or fact.kind is Kind.ENTRY:
        return True
    key = text.lstrip("*_`\"'")[: len(fact.attribute)]
    return key.casefold() == fact.attribute and text.partition(fact.value)[0].rstrip("*_ \"'`")[-1:] in (":", "=")


def _trust(fact: Fact) -> int:
    return _TRUST.get(fact.sentence.role, 0)
