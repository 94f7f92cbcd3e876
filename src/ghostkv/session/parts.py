"""A capsule in named parts, so that a store writes what is new: a boundary does not write the session's history again.

    session      what was said when it was made              talk      its conversation
    turn.N       answer N without what it generated           piece.N   what came to an answer and to its archive
    open         the answer that is under way, as it was asked
    tries        how often it was gone on with in vain; absent: never
    state        what the last flushed boundary left, but for payload and archive      payload   the payload's bytes
    root         manifest, and checksums: of every other part, of the pieces one over all in order, so that it does not
                 grow; a part that is missing, older or another's is seen

It does no I/O. Each part is sealed with the name of its session, see `capsule`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ghostkv.errors import PayloadError, RecordRefused
from ghostkv.protocol.archive import Archive
from ghostkv.protocol.log import Log
from ghostkv.session.capsule import (
    Answering,
    Capsule,
    answering_parts,
    archive_of,
    archive_parts,
    carried_of,
    carried_parts,
    check_manifest,
    seal,
    unseal,
)
from ghostkv.session.manifest import Manifest
from ghostkv.session.plain import decode, encode
from ghostkv.session.record import SessionRecord, TurnRecord
from ghostkv.session.table import Key
from ghostkv.session.turn import Event

ROOT = "root"


@dataclass(frozen=True, slots=True)
class Written:
    """A capsule as it stands in a store."""

    capsule: Capsule
    digests: Mapping[str, str]  # of its parts but pieces and root
    pieces: int
    chain: str  # digest of all pieces, each with those before it

    @property
    def names(self) -> Iterable[str]:
        """Of all its parts but the root."""
        return (*self.digests, *map(_piece, range(self.pieces)))


@dataclass(frozen=True, slots=True)
class Change:
    """What makes a store hold a capsule."""

    written: Written  # afterwards
    put: Mapping[str, bytes]  # parts with their new content
    drop: tuple[str, ...] = ()  # parts that are no more


def change(key: Key, before: Written | None, capsule: Capsule) -> Change:
    """From what is written to `capsule`. Where something was taken back, everything is written again."""
    since = before if before is not None and _goes_on(before.capsule, capsule) else None
    old = None if since is None else since.capsule
    put = {name: seal(body, _place(key, name)) for name, body in _parts(old, capsule)}
    digests = (dict(since.digests) if since else {}) | {name: _digest(data) for name, data in put.items()}
    pieces, chain = (since.pieces, since.chain) if since else (0, "")
    for piece in _pieces(old, capsule):
        name = _piece(pieces)
        put[name] = seal(encode(piece), _place(key, name))
        pieces, chain = pieces + 1, _linked(chain, put[name])
    written = Written(capsule, digests, pieces, chain)
    root = encode((capsule.manifest.parts, tuple(sorted(digests.items())), pieces, chain))
    put[ROOT] = seal(root, _place(key, ROOT))
    stays = set(written.names)
    return Change(written, put, tuple(name for name in (before.names if before else ()) if name not in stays))


def joined(key: Key, parts: Mapping[str, bytes], here: Manifest | None) -> Written:
    """What `change` wrote on the manifest `here`; None: on any.

    Raises RecordRefused, naming the part that is damaged or missing, or what differs.
    """
    try:
        named, *content = _opened(key, parts, ROOT)
        manifest = Manifest(named)
        check_manifest(manifest, here)
        digests, pieces, chain = content
        expected = dict(digests)
    except (ValueError, TypeError, AttributeError) as error:
        raise RecordRefused(f"part {ROOT!r} is damaged: {error}") from error
    names = {*expected, *map(_piece, range(pieces))}
    for name in sorted(names | parts.keys() - {ROOT}):
        if name not in parts or name not in names or expected.get(name, _digest(parts[name])) != _digest(parts[name]):
            raise RecordRefused(f"part {name[:40]!r} is missing, or not the one that belongs here")
    found = ""
    for name in map(_piece, range(pieces)):
        found = _linked(found, parts[name])
    if found != chain:
        raise RecordRefused("its pieces are not those that belong here")
    try:
        capsule = _capsule({name: _opened(key, parts, name) for name in names}, manifest)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, PayloadError) as error:
        raise RecordRefused(f"a damaged record: {error!r}") from error
    return Written(capsule, expected, pieces, chain)


def _goes_on(old: Capsule, new: Capsule) -> bool:
    """Whether `new` only adds to `old`."""
    before, after = old.record.turns, new.record.turns
    if len(after) < len(before):
        return False
    if len(after) == len(before) and old.carried is not None and new.record.running:
        grown = new.carried is not None and new.carried.memory.archive.total >= old.carried.memory.archive.total
        if not grown:
            return False
    pairs = zip(before, after, strict=False)
    return all(one is two or (one.id == two.id and len(one.events) <= len(two.events)) for one, two in pairs)


def _parts(old: Capsule | None, new: Capsule) -> Iterable[tuple[str, bytes]]:
    """Names and bodies of the parts that are not as they were, but for pieces and root."""
    record, before = new.record, None if old is None else old.record
    if before is None or _head(record) != _head(before):
        yield "session", encode(_head(record))
    if before is None or record.messages != before.messages:
        yield "talk", encode(record.messages)
    if before is None or record.payload != before.payload:
        yield "payload", encode(record.payload)
    for index, turn in enumerate(record.turns):
        known = before.turns[index] if before is not None and index < len(before.turns) else None
        if known is None or _blank(turn) != _blank(known):
            yield f"turn.{index}", encode(_blank(turn))
    if old is None or new.answering != old.answering:
        yield "open", encode(answering_parts(new.answering))
    if new.tries != (0 if old is None else old.tries):
        yield "tries", encode(new.tries)
    if old is None or new.carried is not old.carried:
        yield "state", encode(carried_parts(new.carried))


def _pieces(old: Capsule | None, new: Capsule) -> Iterable[tuple[Any, ...]]:
    """(answer, its new events, new ids, new ends, new sentences) for each answer to which something came."""
    last = len(new.record.turns) - 1
    for index, turn in enumerate(new.record.turns):
        known = old.record.turns[index] if old is not None and index < len(old.record.turns) else None
        events = turn.events[0 if known is None else len(known.events) :] if turn is not known else ()
        archive: tuple[Any, ...] = ((), (), ())
        if index == last and new.carried is not None:
            same = old is not None and old.carried is not None and len(old.record.turns) == len(new.record.turns)
            held = old.carried.memory.archive if same and old is not None and old.carried is not None else Archive()
            archive = archive_parts(new.carried.memory.archive, held.total, len(held.ends), len(held.sentences))
        if events or any(archive):
            yield index, events, *archive


def _capsule(parts: Mapping[str, Any], manifest: Manifest) -> Capsule:
    record: SessionRecord = parts["session"]
    blanks = [parts[f"turn.{index}"] for index in range(sum(1 for name in parts if name.startswith("turn.")))]
    gathered = [_Gathered() for _ in blanks]
    for number in range(sum(1 for name in parts if name.startswith("piece."))):
        index, *content = parts[_piece(number)]
        gathered[index].add(*content)
    turns = tuple(blank.refilled(each.events) for blank, each in zip(blanks, gathered, strict=True))
    record = replace(record, messages=parts["talk"], payload=parts["payload"], turns=turns)
    answering = None if parts["open"] is None else Answering(*parts["open"])
    carried = None
    if parts["state"] is not None:
        last = gathered[-1]
        archive = archive_of(tuple(last.ids), tuple(last.ends), tuple(last.sentences))
        carried = carried_of(parts["state"], archive, record.payload)
    return Capsule(manifest, record, answering, carried, int(parts.get("tries", 0)))


@dataclass(slots=True)
class _Gathered:
    """What the pieces of one answer add up to."""

    events: list[Event] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    sentences: list[Any] = field(default_factory=list)

    def add(
        self, events: tuple[Event, ...], ids: tuple[int, ...], ends: tuple[int, ...], sentences: tuple[Any, ...]
    ) -> None:
        self.events += events
        self.ids += ids
        self.ends += ends
        self.sentences += sentences


def _head(record: SessionRecord) -> SessionRecord:
    return replace(record, messages=(), turns=(), payload=b"")


def _blank(turn: TurnRecord) -> TurnRecord:
    return replace(turn, events=Log(), tokens=0, size=0)


def _piece(number: int) -> str:
    return f"piece.{number}"


def _linked(chain: str, data: bytes) -> str:
    return hashlib.sha256(f"{chain}{_digest(data)}".encode()).hexdigest()


def _place(key: Key, name: str) -> bytes:
    return encode((*key, name))


def _opened(key: Key, parts: Mapping[str, bytes], name: str) -> Any:
    if name not in parts:
        raise RecordRefused(f"part {name!r} is missing")
    return decode(unseal(parts[name], _place(key, name)))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
