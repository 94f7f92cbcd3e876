"""Changes that take a session out of its engine: through a store, a capsule, a fork. What goes on does so elsewhere."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path

from ghostkv.errors import InvariantViolation
from ghostkv.session.capsule import Answering, Capsule
from ghostkv.session.chain import Carried
from ghostkv.session.folding import flushed
from ghostkv.session.fork import Names, forked
from ghostkv.session.record import NewTurn, SessionRecord
from ghostkv.session.resumption import resumed
from ghostkv.session.sqlite_store import SqliteStore
from ghostkv.session.turn import Event, SegmentRecord, Turn
from ghostkv.session.worker import Worker
from ghostkv.verify.reference import Reference
from ghostkv.verify.rig import BLOCKS, Open, Rig, gathered
from ghostkv.verify.seen import Logits, Seen

_KEY = ("subject", "verify")
Way = Callable[[Capsule, Worker], Capsule]
"""How a capsule gets to where it goes on."""


def restarted(rig: Rig, reference: Reference) -> tuple[Seen, str]:
    """Broken off, read from the store's file by a new engine, gone on with."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"

        def way(capsule: Capsule, worker: Worker) -> Capsule:
            store = SqliteStore(path, 2**28)
            store.keep(_KEY, capsule).result()
            store.close()
            store = SqliteStore(path, 2**28)
            try:
                [stored] = store.load(worker.named)
            finally:
                store.close()
            if not isinstance(stored.found, Capsule):
                raise stored.found
            return stored.found

        return _gone_on(rig, reference, way, "read from the store's file")


def moved(rig: Rig, reference: Reference) -> tuple[Seen, str]:
    """Broken off, carried as capsule bytes to an engine with another pool."""
    sizes: list[int] = []

    def way(capsule: Capsule, worker: Worker) -> Capsule:
        data = capsule.encode()
        sizes.append(len(data))
        return Capsule.decode(data, worker.named)

    seen, said = _gone_on(rig, reference, way, "as a capsule to another engine and pool", BLOCKS - 40)
    return seen, f"{said}, {sizes[0]:,} bytes"


def forked_off(rig: Rig, reference: Reference) -> tuple[Seen, str]:
    """A fork at the last boundary goes on beside its parent's blocks."""

    def way(capsule: Capsule, worker: Worker) -> Capsule:
        return forked(capsule, worker, None, Names("fork", f"{reference.turn.id}-fork", 0))

    return _gone_on(rig, reference, way, "forked")


def _gone_on(rig: Rig, reference: Reference, way: Way, how: str, blocks: int = BLOCKS) -> tuple[Seen, str]:
    """The answer up to shortly before its end, and from there on by way of a capsule."""
    turn, runs = reference.turn, list[Logits]()
    with rig.opened() as engine:
        capsule = _broken_off(engine, turn, max(1, turn.max_tokens - 8))  # past a boundary
        runs.append(engine.sight.taken(turn.id))
    with rig.opened(blocks=blocks) as engine:
        found = resumed(way(capsule, engine.worker), engine.worker, None)
        events = [*found.record.turns[-1].events, *asyncio.run(gathered(engine.worker, found.turn, found.start))]
        runs.append(engine.sight.taken(found.turn.id))
    at, done = found.record.turns[-1].tokens, capsule.record.tokens
    return Seen.of(events, runs), f"{how} after {done} tokens, went on at {at}"


def _broken_off(engine: Open, turn: Turn, tokens: int) -> Capsule:
    """The capsule after so many tokens."""
    left: list[Carried] = []
    events = engine.part(turn, tokens, left.append)
    answering = Answering.of(turn, engine.worker)
    asked = NewTurn(turn.id, "completions", "{}", 0, turn.sampling.seed, turn.max_tokens, len(answering.prompt))
    record = SessionRecord(_KEY[1], _KEY[0], 0, engine.worker.name, engine.worker.manifest).opened(asked)
    record = record.with_last(record.turns[-1].refilled(events))
    return Capsule.at(engine.worker.named, record, answering, _last_flush(events, left))


def _last_flush(events: list[Event], left: list[Carried]) -> Carried | None:
    records = [event for event in events if isinstance(event, SegmentRecord)]
    if len(left) < len(records):
        raise InvariantViolation("a segment was recorded before it was closed")
    ends = [carried for carried, record in zip(left, records, strict=False) if flushed(record)]
    return ends[-1] if ends else None
