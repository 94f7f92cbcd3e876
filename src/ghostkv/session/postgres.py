"""The tables of a PostgreSQL store and the connection to them. Who may write what is `postgres_store`'s.

All times are the database's own, so that servers whose clocks differ agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg.conninfo import conninfo_to_dict

from ghostkv.errors import ConfigError, StoreError
from ghostkv.session.table import Key

Connection = psycopg.Connection[tuple[Any, ...]]

_FORM = 1  # of the tables
_LOCK = 0x67686F73  # so that of servers that start together one makes the tables
_PATIENCE_S = 30  # for one statement, and for a server that does not answer
_SCHEMA: LiteralString = """
CREATE TABLE IF NOT EXISTS ghostkv_form (form integer PRIMARY KEY);
INSERT INTO ghostkv_form SELECT 1 WHERE NOT EXISTS (SELECT FROM ghostkv_form);
CREATE TABLE IF NOT EXISTS ghostkv_servers (id text PRIMARY KEY, until timestamptz NOT NULL);
CREATE TABLE IF NOT EXISTS ghostkv_sessions (tenant text, id text, changed timestamptz NOT NULL, busy boolean NOT NULL,
    owner text NOT NULL, generation bigint NOT NULL, PRIMARY KEY (tenant, id));
CREATE TABLE IF NOT EXISTS ghostkv_parts (tenant text, id text, name text, body bytea NOT NULL,
    PRIMARY KEY (tenant, id, name));
"""
_STANDS: LiteralString = """
SELECT s.owner, s.generation, s.busy AND s.owner <> %s AND coalesce(v.until > clock_timestamp(), false),
    greatest(0, extract(epoch FROM clock_timestamp() - s.changed))::float8
FROM ghostkv_sessions s LEFT JOIN ghostkv_servers v ON v.id = s.owner WHERE s.tenant = %s AND s.id = %s
"""
_NOBODYS: LiteralString = """
SELECT s.tenant, s.id FROM ghostkv_sessions s LEFT JOIN ghostkv_servers v ON v.id = s.owner
WHERE v.until IS NULL OR v.until <= clock_timestamp() ORDER BY s.changed
"""
_OF: LiteralString = (
    "SELECT tenant, id, owner FROM ghostkv_sessions WHERE %s::text IS NULL OR tenant = %s ORDER BY changed DESC"
)


@dataclass(frozen=True, slots=True)
class Standing:
    """Whose a session is."""

    owner: str  # the server that had it last
    generation: int  # how often it has changed hands, from 1 on
    taken: bool  # by another server, which lives and is answering in it
    age_s: float  # since it was last written


class Database:
    """One connection, made again where it broke. For one thread at a time."""

    def __init__(self, url: str) -> None:
        """Make the tables if they are not there. `url` as libpq has it. Raises ConfigError."""
        self._url = url
        self._connection: Connection | None = None
        try:
            given = conninfo_to_dict(url)
            self.name = f"postgresql://{given.get('host') or ''}/{given.get('dbname') or given.get('user') or ''}"
            with self.transaction() as db:
                db.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
                db.execute(_SCHEMA)
                [(form,)] = db.execute("SELECT form FROM ghostkv_form").fetchall()
        except psycopg.Error as error:
            said = said_of(error).replace(url, "the address")  # which may have a password
            raise ConfigError(f"the store in PostgreSQL cannot be used: {said}") from error
        if form != _FORM:
            self.close()
            raise ConfigError(f"the store {self.name} has form {form}, but this build reads form {_FORM}")

    def open(self) -> Connection:
        """The connection, outside of any transaction or in the one that is open. Raises psycopg.Error."""
        if self._connection is None:
            self._connection = psycopg.connect(
                self._url,
                autocommit=True,
                connect_timeout=_PATIENCE_S,
                tcp_user_timeout=_PATIENCE_S * 1000,
                application_name="ghostkv",
                options=f"-c statement_timeout={_PATIENCE_S}s -c synchronous_commit=on",
            )
        return self._connection

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """One transaction. Raises psycopg.Error."""
        try:
            db = self.open()
            with db.transaction():
                yield db
        finally:
            self._hang_up_if_broken()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """One transaction whose errors are StoreErrors."""
        try:
            with self.transaction() as db:
                yield db
        except psycopg.Error as error:
            raise StoreError(f"the store {self.name} cannot be read: {said_of(error)}") from error

    def roll_back(self) -> None:
        """Whatever is open is undone, as far as the connection still stands. Does not raise."""
        if self._connection is None:
            return
        try:
            self._connection.execute("ROLLBACK")
        except psycopg.Error:
            self._hang_up_if_broken()

    def close(self) -> None:
        """Hang up."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _hang_up_if_broken(self) -> None:
        if self._connection is not None and self._connection.broken:
            self.close()


def standing(db: Connection, server: str, key: Key, *, lock: bool) -> Standing | None:
    """How a session stands as `server` sees it; `lock`: nobody changes that before the transaction ends."""
    row = db.execute(f"{_STANDS} FOR UPDATE OF s" if lock else _STANDS, (server, *key)).fetchone()
    return None if row is None else Standing(*row)


def owners(db: Connection, tenant: str | None) -> dict[Key, str]:
    """Which server had each session last, of one tenant or all; the one that was written last first."""
    return {(whose, session): owner for whose, session, owner in db.execute(_OF, (tenant, tenant)).fetchall()}


def nobodys(db: Connection) -> list[Key]:
    """Sessions whose server has no lease, the one that was written first first."""
    return [(tenant, session) for tenant, session in db.execute(_NOBODYS).fetchall()]


def made(db: Connection, server: str, key: Key, generation: int) -> bool:
    """Make the row of a session; False where there is one. Waits for whoever else is making it."""
    row = (*key, server, generation)
    query = "INSERT INTO ghostkv_sessions VALUES (%s, %s, clock_timestamp(), false, %s, %s) ON CONFLICT DO NOTHING"
    return bool(db.execute(query, row).rowcount)


def take(db: Connection, server: str, key: Key, generation: int) -> None:
    """Make a session `server`'s, whose row is locked."""
    where = "WHERE tenant = %s AND id = %s"
    db.execute(f"UPDATE ghostkv_sessions SET owner = %s, generation = %s {where}", (server, generation, *key))


def give_up(db: Connection, server: str, key: Key, generation: int) -> None:
    """Make a session nobody's, if it is `server`'s of that generation."""
    db.execute(
        "UPDATE ghostkv_sessions SET owner = '' WHERE tenant = %s AND id = %s AND owner = %s AND generation = %s",
        (*key, server, generation),
    )


def renew(db: Connection, server: str, lease_s: float) -> None:
    """The lease of `server` begins anew."""
    db.execute(
        "INSERT INTO ghostkv_servers VALUES (%s, clock_timestamp() + make_interval(secs => %s)) "
        "ON CONFLICT (id) DO UPDATE SET until = excluded.until",
        (server, lease_s),
    )


def end(db: Connection, server: str) -> None:
    """`server` has no lease any more; nor have those whose time is over."""
    db.execute("DELETE FROM ghostkv_servers WHERE id = %s OR until < clock_timestamp()", (server,))


def parts_of(db: Connection, key: Key) -> dict[str, bytes]:
    """What is written of a session."""
    rows = db.execute("SELECT name, body FROM ghostkv_parts WHERE tenant = %s AND id = %s", key).fetchall()
    return {name: bytes(body) for name, body in rows}


def write(db: Connection, key: Key, put: Mapping[str, bytes], drop: tuple[str, ...], *, busy: bool) -> None:
    """Parts of a session whose row is there and locked."""
    db.execute(
        "UPDATE ghostkv_sessions SET changed = clock_timestamp(), busy = %s WHERE tenant = %s AND id = %s", (busy, *key)
    )
    with db.cursor() as cursor:
        cursor.executemany(
            "DELETE FROM ghostkv_parts WHERE tenant = %s AND id = %s AND name = %s", [(*key, name) for name in drop]
        )
        cursor.executemany(
            "INSERT INTO ghostkv_parts VALUES (%s, %s, %s, %s) "
            "ON CONFLICT (tenant, id, name) DO UPDATE SET body = excluded.body",
            [(*key, name, body) for name, body in put.items()],
        )


def erase(db: Connection, key: Key, *, row: bool) -> None:
    """The parts of a session, and its row where that is asked for."""
    db.execute("DELETE FROM ghostkv_parts WHERE tenant = %s AND id = %s", key)
    if row:
        db.execute("DELETE FROM ghostkv_sessions WHERE tenant = %s AND id = %s", key)


def said_of(problem: Exception) -> str:
    """The first line; libpq's have more."""
    return (str(problem) or repr(problem)).strip().partition("\n")[0]
