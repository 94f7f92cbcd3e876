"""The capsule: all that a session needs to go on, at a committed token, as canonical bytes. It does no I/O.

    capsule = b"GKC" version:u8 sha256(body):32 body        body = JSON, see `plain`

Another process on the same manifest that restores one goes on with the same bits. A damaged, a foreign and a newer
capsule are refused before anything of them is used. How a store writes one down piece by piece is `parts`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

from ghostkv.errors import PayloadError, RecordRefused
from ghostkv.protocol.archive import Archive
from ghostkv.protocol.log import Log
from ghostkv.protocol.payload import Payload, Sealed
from ghostkv.protocol.sentence_index import SentenceIndex
from ghostkv.protocol.token_log import TokenLog
from ghostkv.protocol.transition import Memory
from ghostkv.session.chain import Carried, Chain
from ghostkv.session.manifest import Manifest
from ghostkv.session.plain import decode, encode
from ghostkv.session.record import SessionRecord
from ghostkv.session.turn import Turn
from ghostkv.session.worker import Worker

VERSION = 2
"""Grows with every change of form."""
_MAGIC = b"GKC"
_HEADER = len(_MAGIC) + 1 + hashlib.sha256().digest_size


@dataclass(frozen=True, slots=True)
class Answering:
    """The request of the last answer, which is under way or has ended."""

    turn: Turn  # as it was asked, seed and plan included, but for its grammar
    prompt: tuple[int, ...]  # ids of the client's whole prompt
    whole: bool  # whether its first segment read all of that although the policy flushes: the pool decides
    grammar: str  # digest of its grammar, which is compiled from the recorded request; "" without one

    @classmethod
    def of(cls, turn: Turn, worker: Worker) -> Answering:
        """`turn` as it begins now. Raises what `Chain.of` does."""
        chain = Chain.of(replace(turn, plan=None), worker.context, worker.backend.capabilities())
        return cls(turn, chain.prompt, chain.begins_whole, turn.grammar.digest if turn.grammar else "")


@dataclass(frozen=True, slots=True)
class Capsule:
    """A session at a committed token. What is committed of its answers is in `record`, their decisions included."""

    manifest: Manifest
    record: SessionRecord  # while a boundary's state is `carried`, its payload is that one's
    answering: Answering | None = None
    carried: Carried | None = None  # what the last flushed boundary left; None before the first
    tries: int = 0  # to go on from here of which none got further; of a store, it does not travel

    @classmethod
    def at(
        cls,
        manifest: Manifest,
        record: SessionRecord,
        answering: Answering | None,
        carried: Carried | None,
        tries: int = 0,
    ) -> Capsule:
        """With the payload that belongs to `carried`: the record's own may be a later segment's."""
        if carried is not None:
            record = replace(record, payload=carried.memory.payload.data)
        return cls(manifest, record, answering, carried, tries)

    def encode(self) -> bytes:
        """Canonical bytes."""
        parts = (self.manifest.parts, self.record, answering_parts(self.answering), carried_parts(self.carried))
        archive = None if self.carried is None else archive_parts(self.carried.memory.archive)
        return seal(encode((*parts, archive)))

    @classmethod
    def decode(cls, data: bytes, here: Manifest | None) -> Capsule:
        """What `encode` was given on the manifest `here`; None: on any, to look at it or to pass it on.

        Raises RecordRefused, naming what is wrong or differs.
        """
        found = decode(unseal(data))
        try:
            parts, record, answering, carried, archive = found
            manifest = Manifest(parts)
            check_manifest(manifest, here)
            asked = None if answering is None else Answering(*answering)
            state = None if carried is None else carried_of(carried, archive_of(*archive), record.payload)
        except (ValueError, TypeError, AttributeError, PayloadError) as error:
            raise RecordRefused(f"a damaged capsule: {error}") from error
        return cls(manifest, record, asked, state)


def seal(body: bytes, context: bytes = b"") -> bytes:
    """`body` with its version and checksum; `context` is where it belongs, which the checksum covers."""
    return _MAGIC + bytes((VERSION,)) + _checksum(VERSION, context, body) + body


def unseal(data: bytes, context: bytes = b"") -> bytes:
    """What was sealed. Raises RecordRefused for what is damaged, belongs elsewhere or is of another version."""
    if data[: len(_MAGIC)] != _MAGIC or len(data) < _HEADER:
        raise RecordRefused("a damaged record: it does not begin as one")
    version = data[len(_MAGIC)]
    if version != VERSION:
        raise RecordRefused(f"a record of version {version}, but this build reads version {VERSION}")
    if data[len(_MAGIC) + 1 : _HEADER] != _checksum(version, context, data[_HEADER:]):
        raise RecordRefused("a damaged record: its checksum differs")
    return data[_HEADER:]


def check_manifest(found: Manifest, here: Manifest | None) -> None:
    """Raises RecordRefused, naming what differs; None takes any."""
    if here is not None and (differs := here.differences(found)):
        raise RecordRefused(f"it was made elsewhere, where the answer would have other bits: {differs}")


def answering_parts(answering: Answering | None) -> tuple[Any, ...] | None:
    """Its parts, for `plain`."""
    if answering is None:
        return None
    return replace(answering.turn, grammar=None), answering.prompt, answering.whole, answering.grammar


def carried_parts(carried: Carried | None) -> tuple[Any, ...] | None:
    """All of it but payload and archive, for `plain`."""
    if carried is None:
        return None
    return carried.state, carried.open_text, carried.cursor, carried.block, carried.density


def archive_parts(archive: Archive, ids: int = 0, ends: int = 0, sentences: int = 0) -> tuple[Any, ...]:
    """What came to it after its first so many ids, segments and sentences, for `plain`."""
    return archive.ids[ids:], archive.ends[ends:], archive.sentences[sentences:]


def archive_of(ids: tuple[int, ...], ends: tuple[int, ...], sentences: tuple[Any, ...]) -> Archive:
    """The archive of such parts. Raises ValueError where they do not add up."""
    if (ends[-1] if ends else 0) != len(ids) or list(ends) != sorted(ends):
        raise ValueError("the archive does not add up")
    return Archive(TokenLog().extended(ids), Log(ends), Log(sentences))


def carried_of(parts: tuple[Any, ...], archive: Archive, payload: bytes) -> Carried:
    """What such parts, the archive and the payload's bytes were taken from. Raises PayloadError, ValueError."""
    state, open_text, cursor, block, density = parts
    sealed = Sealed(Payload.decode(payload), payload)
    if sealed.payload.cursor != cursor or len(archive.ends) < cursor.segment:
        raise ValueError("payload, archive and cursor are not of one boundary")
    memory = Memory(sealed, archive, SentenceIndex().append(archive.sentences[:]))
    return Carried(state, memory, open_text, cursor, block, density)


def _checksum(version: int, context: bytes, body: bytes) -> bytes:
    return hashlib.sha256(b"%d:%d:" % (version, len(context)) + context + body).digest()
