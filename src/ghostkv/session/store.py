"""Where sessions outlive their process: the protocol of a store. It keeps capsules by session and looks into none."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from ghostkv.errors import GhostError
from ghostkv.session.capsule import Capsule
from ghostkv.session.manifest import Manifest
from ghostkv.session.table import Key

LEASE_S = 15.0
"""For so long a server of a shared store is not heard of until its sessions may be taken."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One session as a store has it."""

    key: Key
    age_s: float  # since it was last written, by the clock on the wall, at least 0
    found: Capsule | GhostError  # or why it cannot be used


class Store(Protocol):
    """Written by a thread of its own, so no call but `load` and `close` waits for a disk.

    Where several servers have one store, each session is one server's at a time: whoever loads or claims it, or makes
    it. A server that is answering in one has it until it says that it has ended, or has not been heard of for the time
    of its lease; then another may take it, and what the first writes after that is refused.
    """

    @property
    def shared_s(self) -> float | None:
        """Seconds between two looks for sessions whose server is gone; None: no other server can be there."""
        ...

    def load(self, here: Manifest | None) -> Iterator[Stored]:
        """Every session of the manifest `here` that is nobody else's, the others of those refused.

        They are this server's from then on. None: all there are, of any manifest, to look at. At first before anything
        is kept; again only of a shared store. Raises StoreError where nothing can be read.
        """
        ...

    def claim(self, key: Key, here: Manifest) -> Future[Stored | None]:
        """Have a session as this server's; what is committed, or None where that is what this server wrote itself.

        It fails with SessionElsewhere while another server answers in it, SessionNotFound, StoreError.
        """
        ...

    def keep(self, key: Key, capsule: Capsule) -> Future[None]:
        """Done once `capsule` would survive the loss of power; of two for one session the later one counts.

        It fails with StoreError where it cannot be written, SessionElsewhere among them; SessionExists for a new one
        whose id another server has given away. Then the session stands as it did.
        """
        ...

    def forget(self, key: Key, *, expired: bool = False) -> Future[None]:
        """Done once nothing of the session is left in the store's files. Fails with StoreError.

        `expired`: nobody asked for that, so only what no other server has used since.
        """
        ...

    def held(self, key: Key) -> Future[Capsule | None]:
        """What is committed of a session, everything included that was given before; None for one that is not here."""
        ...

    def others(self, tenant: str | None, here: Collection[Key]) -> Iterator[Stored]:
        """Sessions of one tenant or all, to look at, but for those `here` that are this server's; latest write first.

        Raises StoreError where nothing can be read.
        """
        ...

    def close(self) -> None:
        """Write what is waiting, and let go of the files and of all sessions."""
        ...


class SharedStore(Store, Protocol):
    """A store that several servers may have open."""

    @property
    def server(self) -> str:
        """The name that this server has there, drawn anew with each start."""
        ...

    def release(self, key: Key) -> Future[None]:
        """Done once a session is anybody's, also with its answer under way. Fails with StoreError."""
        ...

    def gone(self, servers: Iterable[str]) -> Future[None]:
        """Done once the sessions of servers that are known to be dead are anybody's. Fails with StoreError.

        Of one that lives all the same nothing breaks: what it writes to a session that was taken is refused.
        """
        ...
