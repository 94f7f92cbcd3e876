"""A store in one SQLite file, for one process: write-ahead log, synchronous=FULL, readable by its owner alone.

Deleted content is overwritten, and the log, which still has it, is emptied.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

from ghostkv.errors import ConfigError, GhostError, RecordRefused, StoreError
from ghostkv.session.capsule import Capsule
from ghostkv.session.manifest import Manifest
from ghostkv.session.parts import Change, joined
from ghostkv.session.store import Stored
from ghostkv.session.table import Key
from ghostkv.session.writing import Task, WritingStore

_FORM = 1  # of the tables, as user_version
_PAGE = 4096  # bytes
_LEAST = 64 * _PAGE
_SCHEMA = """
CREATE TABLE IF NOT EXISTS sessions (tenant TEXT, id TEXT, changed REAL, PRIMARY KEY (tenant, id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS parts (tenant TEXT, id TEXT, name TEXT, body BLOB, PRIMARY KEY (tenant, id, name));
"""


class SqliteStore(WritingStore):
    """`session.store.Store`."""

    shared_s = None
    """No other process gets in."""

    def __init__(self, path: Path, most_bytes: int) -> None:
        """Open or make the file. Raises ConfigError where that cannot be, or where another process has it open."""
        if most_bytes < _LEAST:
            raise ConfigError(f"a store needs at least {_LEAST} bytes, not {most_bytes}")
        super().__init__()
        self.path = path
        self._most_bytes = most_bytes
        try:
            _make(path)
            self._db = _connected(path, most_bytes)
        except (OSError, sqlite3.Error) as error:
            busy = "locked" in str(error)
            said = "another process has it open" if busy else str(error)
            raise ConfigError(f"the store {path} cannot be used: {said}") from error
        self._files = self._identities()
        self._thread.start()

    def load(self, here: Manifest | None) -> Iterator[Stored]:
        """See Store. What cannot be used is left as it is."""
        now = time.time()
        for tenant, session_id, changed in self._read("SELECT tenant, id, changed FROM sessions ORDER BY changed"):
            key = (tenant, session_id)
            found: Capsule | GhostError
            try:
                rows = self._read("SELECT name, CAST(body AS BLOB) FROM parts WHERE tenant = ? AND id = ?", key)
                self._written[key] = joined(key, dict(rows), here)
                found = self._written[key].capsule
            except StoreError as error:
                found = RecordRefused(f"session {session_id!r} cannot be read: {error.message}")
            except GhostError as error:
                found = RecordRefused(f"session {session_id!r} cannot be used: {error.message}")
            yield Stored(key, max(0.0, now - changed), found)

    def claim(self, key: Key, here: Manifest) -> Future[Stored | None]:
        """See Store. What is here is all there is."""
        return self._ask(lambda: None)

    def others(self, tenant: str | None, here: Collection[Key]) -> Iterator[Stored]:
        """See Store. All are this server's, from the start on."""
        return iter(())

    def _let_go(self) -> None:
        with suppress(sqlite3.Error):
            self._db.close()

    def _read(self, query: str, values: tuple[str, ...] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise StoreError(self._cannot(f"be read: {error}")) from error

    def _beat(self) -> None:
        return

    def _refused(self, batch: Mapping[Key, Task]) -> Mapping[Key, Exception]:
        self._check_files()
        return {}

    def _cannot(self, what: str) -> str:
        return f"the store {self.path} cannot {what}"

    def _erase(self, deleted: list[Key]) -> dict[Key, Exception]:
        """Empty the log, where what was deleted still stands."""
        if not deleted:
            return {}
        try:
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.Error as problem:
            said = self._cannot(f"erase what it has deleted: {problem}")
            return {key: StoreError(said) for key in deleted}
        return {}

    def _apply(self, changes: Mapping[Key, Change | None]) -> None:
        now, db = time.time(), self._db
        db.execute("BEGIN IMMEDIATE")
        try:
            for key, made in changes.items():
                self._apply_one(key, made, now)
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise

    def _apply_one(self, key: Key, made: Change | None, now: float) -> None:
        db = self._db
        if made is None or key not in self._written:
            db.execute("DELETE FROM parts WHERE tenant = ? AND id = ?", key)
            db.execute("DELETE FROM sessions WHERE tenant = ? AND id = ?", key)
        if made is None:
            return
        db.execute("INSERT OR REPLACE INTO sessions VALUES (?, ?, ?)", (*key, now))
        db.executemany(
            "DELETE FROM parts WHERE tenant = ? AND id = ? AND name = ?", [(*key, name) for name in made.drop]
        )
        rows = [(*key, name, body) for name, body in made.put.items()]
        db.executemany("INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?)", rows)

    def _check_files(self) -> None:
        """SQLite would go on writing into a file that has no name any more."""
        if self._identities() != self._files:
            raise StoreError(self._cannot("be written: its file was deleted or replaced"))

    def _identities(self) -> list[tuple[int, int] | None]:
        found: list[tuple[int, int] | None] = []
        for path in (self.path, self.path.with_name(f"{self.path.name}-wal")):
            try:
                stat = path.stat()
                found.append((stat.st_dev, stat.st_ino))
            except FileNotFoundError:
                found.append(None)
        return found


def _make(path: Path) -> None:
    """A file of that name for its owner alone, which a loss of power leaves in its folder."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    path.chmod(0o600)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _connected(path: Path, most_bytes: int) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=32)
    try:
        # Before the first access in this mode: then no shared memory is needed, and no other process gets in.
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA secure_delete = ON")
        db.execute(f"PRAGMA max_page_count = {most_bytes // _PAGE}")
        [(form,)] = db.execute("PRAGMA user_version")
        if form not in (0, _FORM):
            raise ConfigError(f"the store {path} has form {form}, but this build reads form {_FORM}")
        db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {_FORM}; COMMIT;")
    except BaseException:
        db.close()
        raise
    return db
