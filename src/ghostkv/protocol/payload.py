"""The payload: what a session carries over a boundary, as canonical bytes within a byte budget.

It holds exact facts (with the sentences that state them), the place in the plan, a style sentence and the opening lines
of open structures. It does not hold the archive, the tail or the client's messages. Free text in it is copied, never
rewritten.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from ghostkv.errors import PayloadError
from ghostkv.protocol.facts import Fact, Kind, Position, Sentence
from ghostkv.protocol.ledger import Ledger

VERSION = 1
DEFAULT_BUDGET = 16 * 1024  # bytes
LEAST_BUDGET = 1024
MOST_BUDGET = 1024 * 1024

# What is let go first when bytes run short; among equals the oldest. Exact things that nobody can guess go last.
_WORTH = {
    Kind.NAME: 0,
    Kind.PLACE: 0,
    Kind.QUOTE: 1,
    Kind.CODE: 1,
    Kind.DATE: 2,
    Kind.TIME: 2,
    Kind.QUANTITY: 2,
    Kind.ENTRY: 3,
    Kind.URL: 3,
    Kind.IDENTIFIER: 3,
}
_dump = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_GIVEN = ("system", "developer", "user")  # roles whose facts outlive generated ones


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """How far a session has come. Cursors sort as the conversation goes on."""

    message: int = 0  # index of the message that is being written
    node: int = 0  # the plan's node in it
    segment: int = 0  # closed segments of that node


@dataclass(frozen=True, slots=True)
class Payload:
    """The compact continuity state after a boundary."""

    ledger: Ledger = field(default_factory=Ledger)
    cursor: Cursor = Cursor()
    style: str = ""
    openings: tuple[str, ...] = ()  # opening lines of what is still open, outermost first
    previous: str = ""  # digest of the payload that this one continues; "" for the first
    dropped: int = 0  # facts let go for the byte budget since the session began

    def encode(self) -> bytes:
        """Canonical bytes: equal payloads have equal bytes on every machine."""
        groups = [_group(sentence, facts) for sentence, facts in _by_sentence(self.ledger)]
        return _dump(self._head() | {"sentences": groups}).encode("utf-8", errors="surrogatepass")

    @classmethod
    def decode(cls, data: bytes) -> Payload:
        """The payload that `encode` wrote. Raises PayloadError for other versions and for anything damaged."""
        try:
            record = json.loads(data.decode("utf-8", errors="surrogatepass"))
            version = record["version"]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise PayloadError(f"not a payload: {error}") from error
        if version != VERSION:
            raise PayloadError(f"this is a payload of version {version}; this build reads version {VERSION}")
        try:
            payload = _payload(record)
        except (ValueError, TypeError, KeyError) as error:
            raise PayloadError(f"a damaged payload: {error}") from error
        if payload.encode() != data:
            raise PayloadError("a damaged payload: its bytes are not in canonical form")
        return payload

    def within(self, budget: int) -> Sealed:
        """The payload with as few facts dropped as `budget` bytes allow.

        Dropped first: hypotheticals; repetitions of what stands elsewhere; superseded values, oldest first; then
        standing values, generated before given, the kinds that can be guessed before those that cannot, oldest first.
        The style sentence and then the opening lines go last. Raises PayloadError if `budget` is below 1,024.
        """
        if budget < LEAST_BUDGET:
            raise PayloadError(f"a payload budget must be at least {LEAST_BUDGET} bytes, not {budget}")
        data = self.encode()
        if len(data) <= budget:
            return Sealed(self, data)
        return _shrunk(self, len(data), budget)

    def _head(self) -> dict[str, Any]:
        cursor = self.cursor
        return {
            "version": VERSION,
            "previous": self.previous,
            "cursor": [cursor.message, cursor.node, cursor.segment],
            "style": self.style,
            "openings": list(self.openings),
            "dropped": self.dropped,
        }


@dataclass(frozen=True, slots=True)
class Sealed:
    """A payload with its canonical bytes."""

    payload: Payload
    data: bytes

    @classmethod
    def first(cls) -> Sealed:
        """The empty payload that a session starts from."""
        payload = Payload()
        return cls(payload, payload.encode())

    @property
    def digest(self) -> str:
        """SHA-256 of the bytes, hexadecimal."""
        return hashlib.sha256(self.data).hexdigest()


def merge(payloads: Iterable[Payload]) -> Payload:
    """One payload that knows what all know: the order in which they are given makes no difference.

    Facts are united. Cursor, style and openings are those of the payload that has come furthest; with equal cursors,
    of the one with the greater text. Merging a payload with itself changes nothing.
    """
    every = list(payloads)
    furthest = max(every, key=lambda payload: (payload.cursor, payload.style, payload.openings, payload.previous))
    first, *others = every
    ledger = first.ledger
    for payload in others:
        ledger = ledger.merge(payload.ledger.facts)
    return replace(furthest, ledger=ledger, dropped=max(payload.dropped for payload in every))


def advance(before: Sealed, delta: Payload, budget: int) -> Sealed:
    """The payload after a boundary that added `delta`, chained to the one before it."""
    merged = merge((before.payload, delta))
    return replace(merged, previous=before.digest).within(budget)


def _by_sentence(ledger: Ledger) -> list[tuple[Sentence, list[Fact]]]:
    """Facts under the sentence that states them, in the ledger's order."""
    return [(sentence, list(facts)) for sentence, facts in groupby(ledger.facts, key=lambda fact: fact.sentence)]


def _group(sentence: Sentence, facts: list[Fact]) -> list[object]:
    at = sentence.position
    where = [at.message, at.node, at.offset, sentence.segment, sentence.role, sentence.text, sentence.topic]
    return [*where, [_record(fact) for fact in facts]]


def _record(fact: Fact) -> list[object]:
    flags = fact.changes + 2 * fact.hypothetical
    return [fact.kind.value, fact.subject, fact.attribute, fact.value, fact.normal, flags]


def _payload(record: dict[str, Any]) -> Payload:
    facts: list[Fact] = []
    for message, node, offset, segment, role, text, topic, records in record["sentences"]:
        sentence = Sentence(Position(message, node, offset), segment, role, text, topic)
        for kind, subject, attribute, value, normal, flags in records:
            changes, hypothetical = bool(flags & 1), bool(flags & 2)
            facts.append(Fact(sentence, Kind(kind), subject, attribute, value, normal, changes, hypothetical))
    message, node, segment = record["cursor"]
    return Payload(
        ledger=Ledger().merge(facts),
        cursor=Cursor(message, node, segment),
        style=record["style"],
        openings=tuple(record["openings"]),
        previous=record["previous"],
        dropped=record["dropped"],
    )


def _shrunk(payload: Payload, size: int, budget: int) -> Sealed:
    """Drop in the documented order until it fits."""
    kept = {sentence: dict.fromkeys(facts) for sentence, facts in _by_sentence(payload.ledger)}
    dropped = payload.dropped
    for fact in _expendable(payload.ledger):
        if size <= budget - 8:  # the counter itself may grow by some digits
            break
        group = kept[fact.sentence]
        before = _bytes(_group(fact.sentence, list(group))) + 1
        del group[fact]
        size -= before - (_bytes(_group(fact.sentence, list(group))) + 1 if group else 0)
        dropped += 1
    remaining = [fact for group in kept.values() for fact in group]
    smaller = replace(payload, ledger=Ledger().merge(remaining), dropped=dropped)
    for last_resort in (smaller, replace(smaller, style=""), replace(smaller, style="", openings=())):
        data = last_resort.encode()
        if len(data) <= budget:
            return Sealed(last_resort, data)
    raise PayloadError(f"a payload without any fact still needs {len(data)} bytes, more than its budget of {budget}")


def _bytes(value: object) -> int:
    return len(_dump(value).encode("utf-8", errors="surrogatepass"))


def _expendable(ledger: Ledger) -> list[Fact]:
    """Every fact of the ledger, what may be dropped first at the front."""
    standing = {standing.fact: standing for standing in ledger.standings()}

    def cost(fact: Fact) -> tuple[int, bool, int, Position]:
        found = standing.get(fact)
        if fact.hypothetical:
            stage = 0
        elif found is None:
            stage = 1
        else:
            stage = 3 if found.superseded_by is None else 2
        given = fact.sentence.role in _GIVEN
        return stage, given, _WORTH[fact.kind] if stage == 3 else 0, fact.sentence.position

    return sorted(ledger.facts, key=cost)
