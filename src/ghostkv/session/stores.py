"""Which store is meant: a PostgreSQL database by its address, else an SQLite file by its path."""

from __future__ import annotations

from pathlib import Path

from ghostkv.config import parse_bytes
from ghostkv.errors import ConfigError
from ghostkv.session.sqlite_store import SqliteStore
from ghostkv.session.store import LEASE_S, SharedStore, Store

_ADDRESSES = ("postgresql://", "postgres://")
_MOST = "4GiB"


def is_address(where: str) -> bool:
    """Whether it is a database and no file."""
    return where.startswith(_ADDRESSES)


def open_store(where: str, *, most: str | None = None, lease_s: float | None = None) -> Store:
    """The store; made if it is not there. `most`: size of a file; `lease_s`: of a server in a database.

    Raises ConfigError where it cannot be used, and for what does not go with it.
    """
    if not is_address(where):
        if lease_s is not None:
            raise ConfigError("a lease is for a store that servers share: a file is one server's alone")
        return SqliteStore(Path(where), parse_bytes(most or _MOST))
    if most is not None:
        raise ConfigError("the size of a PostgreSQL store is the database's own business: leave --store-size out")
    return open_shared(where, lease_s)


def open_shared(url: str, lease_s: float | None = None) -> SharedStore:
    """The store in a database. Raises ConfigError where it cannot be used."""
    try:
        from ghostkv.session.postgres_store import PostgresStore
    except ImportError as error:
        raise ConfigError(f"a PostgreSQL store needs an extra: pip install 'ghostkv[postgres]' ({error})") from error
    return PostgresStore(url, LEASE_S if lease_s is None else lease_s)
