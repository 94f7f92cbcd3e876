"""A store in a PostgreSQL database, which several servers may share; see `store.Store` for whose a session is.

A server has a lease, one row for all its sessions, renewed by the thread that writes. A session is marked busy from the
commit that begins an answer to the one that ends it. It may be taken while it is not busy, or when the lease of its
server has run out; taking it raises its generation, and every write is held against that under the row's lock, so what
a server writes that was thought dead is refused.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

import psycopg

from ghostkv.errors import (
    ConfigError,
    GhostError,
    RecordRefused,
    SessionElsewhere,
    SessionExists,
    SessionNotFound,
    StoreError,
)
from ghostkv.session import postgres
from ghostkv.session.manifest import Manifest
from ghostkv.session.parts import Change, Written, joined
from ghostkv.session.postgres import Connection, Database
from ghostkv.session.store import LEASE_S, Stored
from ghostkv.session.table import Key
from ghostkv.session.writing import Task, WritingStore

_LEAST_LEASE_S = 0.1
_BEATS = 3  # in the time of a lease
_FIRST = 1  # generation


class PostgresStore(WritingStore):
    """`session.store.SharedStore`."""

    def __init__(self, url: str, lease_s: float = LEASE_S) -> None:
        """Connect, and make the tables if they are not there. Raises ConfigError where that cannot be."""
        if not lease_s >= _LEAST_LEASE_S:  # true for NaN as well
            raise ConfigError(f"the lease of a store must be at least {_LEAST_LEASE_S} s, not {lease_s}")
        super().__init__()
        self._lease_s = lease_s
        self._beat_s = lease_s / _BEATS
        self._next_beat = 0.0
        self._id = secrets.token_hex(16)  # of this server, as long as it lives
        self._generations: dict[Key, int] = {}  # of the sessions that are this server's
        self._unsure: set[Key] = set()  # written or not: something broke while they were committed
        self._foreign: set[Key] = set()  # found once and of no use here
        self._made: set[Key] = set()  # by the transaction that is going on
        self._database = Database(url)
        self._thread.start()

    @property
    def shared_s(self) -> float | None:
        """See Store."""
        return self._lease_s

    @property
    def server(self) -> str:
        """See SharedStore."""
        return self._id

    def load(self, here: Manifest | None) -> Iterator[Stored]:
        """See Store."""
        if here is None:
            yield from self._each_looked_at(reversed(self._owners(None)))
            return
        for key in self._ask(self._nobodys).result():
            if key not in self._foreign:
                with suppress(SessionElsewhere, SessionNotFound):  # another server was faster
                    if (stored := self.claim(key, here).result()) is not None:
                        yield stored

    def claim(self, key: Key, here: Manifest) -> Future[Stored | None]:
        """See Store. One that cannot be used here stays whose it is."""
        return self._ask(lambda: self._claimed(key, here))

    def others(self, tenant: str | None, here: Collection[Key]) -> Iterator[Stored]:
        """See Store."""
        owners = self._owners(tenant)
        return self._each_looked_at(key for key, owner in owners.items() if owner != self._id or key not in here)

    def release(self, key: Key) -> Future[None]:
        """See SharedStore."""
        return self._ask(lambda: self._released(key))

    def gone(self, servers: Iterable[str]) -> Future[None]:
        """See SharedStore."""
        return self._ask(lambda: self._ended(tuple(servers)))

    def _beat(self) -> None:
        if (now := time.monotonic()) < self._next_beat:
            return
        self._next_beat = now + self._lease_s / _BEATS
        with suppress(psycopg.Error), self._database.transaction() as db:  # whoever needs it is told when he writes
            postgres.renew(db, self._id, self._lease_s)

    def _nobodys(self) -> list[Key]:
        with self._database.reading() as db:
            return postgres.nobodys(db)

    def _owners(self, tenant: str | None) -> dict[Key, str]:
        def found() -> dict[Key, str]:
            with self._database.reading() as db:
                return postgres.owners(db, tenant)

        return self._ask(found).result()

    def _each_looked_at(self, keys: Iterable[Key]) -> Iterator[Stored]:
        """Each by itself: what is to be written meanwhile does not wait for all of them."""
        for key in keys:
            if (looked_at := self._ask(partial(self._looked_at, key)).result()) is not None:
                yield looked_at

    def _looked_at(self, key: Key) -> Stored | None:
        with self._database.reading() as db:
            stands = postgres.standing(db, self._id, key, lock=False)
            return None if stands is None else _stored(db, key, stands.age_s, None)[0]

    def _claimed(self, key: Key, here: Manifest) -> Stored | None:
        with self._database.reading() as db:
            stands = None if "\0" in key[1] else postgres.standing(db, self._id, key, lock=True)  # text has no NUL
            if stands is None:
                self._lost(key)
                raise SessionNotFound(f"there is no session {key[1]!r}", param="session")
            if stands.taken:
                self._lost(key)
                raise SessionElsewhere(f"another server is answering in session {key[1]!r}", param="session")
            if (stands.owner, stands.generation) == (self._id, self._generations.get(key)):
                return None
            stored, written = _stored(db, key, stands.age_s, here)
            if written is None:
                self._foreign.add(key)
                return stored
            postgres.take(db, self._id, key, stands.generation + 1)
        self._written[key], self._generations[key] = written, stands.generation + 1
        self._unsure.discard(key)
        return stored

    def _released(self, key: Key) -> None:
        generation = self._generations.get(key)
        if generation is not None:
            with self._database.reading() as db:
                postgres.give_up(db, self._id, key, generation)
            self._lost(key)

    def _ended(self, servers: tuple[str, ...]) -> None:
        with self._database.reading() as db:
            for server in servers:
                postgres.end(db, server)

    def _lost(self, key: Key) -> None:
        self._written.pop(key, None)
        self._generations.pop(key, None)
        self._unsure.discard(key)

    def _before(self, key: Key) -> Written | None:
        return None if key in self._unsure else self._written.get(key)

    def _refused(self, batch: Mapping[Key, Task]) -> Mapping[Key, Exception]:
        """Begins the transaction that `_apply` ends, and locks the rows in order, that no two wait for each other."""
        db = self._database.open()
        db.execute("BEGIN")
        found = {key: self._why_not(db, batch[key]) for key in sorted(batch)}
        refused: dict[Key, Exception] = {key: error for key, error in found.items() if error is not None}
        for key in refused:
            self._lost(key)
        return refused

    def _why_not(self, db: Connection, task: Task) -> GhostError | None:
        """Why a task may not be done; None: it may, and the session's row is this server's and locked."""
        key, known = task.key, task.key in self._generations
        stands = postgres.standing(db, self._id, key, lock=True)
        if stands is None:
            if task.capsule is None:
                return None
            if known:
                return SessionElsewhere(f"another server has deleted session {key[1]!r}", param="session")
            if not postgres.made(db, self._id, key, _FIRST):
                return _not_mine(task, known=False, taken=True)
            self._made.add(key)
            return None
        if stands.owner == self._id and key in self._unsure:  # nobody else writes under that name
            self._generations[key] = stands.generation
        if (stands.owner, stands.generation) == (self._id, self._generations.get(key)):
            return None
        return _not_mine(task, known=known, taken=stands.taken)

    def _apply(self, changes: Mapping[Key, Change | None]) -> None:
        db = self._database.open()
        try:
            for key, change in changes.items():
                if change is None or self._before(key) is None:
                    postgres.erase(db, key, row=change is None)
                if change is not None:
                    busy = change.written.capsule.record.running
                    postgres.write(db, key, change.put, change.drop, busy=busy)
            for key in self._made - changes.keys():  # it could not be written down
                postgres.erase(db, key, row=True)
            db.execute("COMMIT")
        except BaseException:
            self._unsure |= changes.keys()
            raise
        self._unsure -= changes.keys()
        self._made.clear()

    def _note(self, changes: Mapping[Key, Change | None]) -> None:
        super()._note(changes)
        for key, change in changes.items():
            if change is None:
                self._generations.pop(key, None)
                self._foreign.discard(key)
            else:
                self._generations.setdefault(key, _FIRST)

    def _failure(self, problem: Exception) -> str:
        self._made.clear()
        self._database.roll_back()
        return super()._failure(StoreError(self._cannot(f"be written: {postgres.said_of(problem)}")))

    def _cannot(self, what: str) -> str:
        return f"the store {self._database.name} cannot {what}"

    def _let_go(self) -> None:
        """Its sessions are anybody's at once."""
        with suppress(psycopg.Error), self._database.transaction() as db:
            postgres.end(db, self._id)
        self._database.close()


def _not_mine(task: Task, *, known: bool, taken: bool) -> GhostError | None:
    """Why a task on a session that is not this server's is refused; None for a deletion that somebody asked for."""
    name = task.key[1]
    if task.capsule is None:
        if taken or task.expired:
            return SessionElsewhere(f"another server has session {name!r}", param="session")
        return None
    if not known:
        return SessionExists(f"there is a session {name!r} already", param="id")
    return SessionElsewhere(f"another server has taken session {name!r} over", param="session")


def _stored(db: Connection, key: Key, age_s: float, here: Manifest | None) -> tuple[Stored, Written | None]:
    """The session, and how it stands if it can be used."""
    try:
        written = joined(key, postgres.parts_of(db, key), here)
    except GhostError as error:
        refused = RecordRefused(f"session {key[1]!r} cannot be used: {error.message}")
        return Stored(key, age_s, refused), None
    return Stored(key, age_s, written.capsule), written
