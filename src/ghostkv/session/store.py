"""Where sessions outlive their process: the protocol of a store. It keeps capsules by session and looks into none."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from ghostkv.errors import GhostError
from ghostkv.session.capsule import Capsule
from ghostkv.session.manifest import Manifest
from ghostkv.session.table import Key


@dataclass(frozen=True, slots=True)
class Stored:
    """One session as a store has it."""

    key: Key
    age_s: float  # since it was last written, by the clock on the wall, at least 0
    found: Capsule | GhostError  # or why it cannot be used


class Store(Protocol):
    """Written by a thread of its own, so no call but `load` and `close` waits for a disk."""

    def load(self, here: Manifest | None) -> Iterator[Stored]:
        """Every session of the manifest `here`, the others refused; None: of any.

        Only before anything is kept. Raises StoreError where nothing can be read.
        """
        ...

    def keep(self, key: Key, capsule: Capsule) -> Future[None]:
        """Done once `capsule` would survive the loss of power; of two for one session the later one counts.

        It fails with StoreError where it cannot be written; then the session stands as it did.
        """
        ...

    def forget(self, key: Key) -> Future[None]:
        """Done once nothing of the session is left in the store's files. Fails with StoreError."""
        ...

    def held(self, key: Key) -> Future[Capsule | None]:
        """What is committed of a session, everything included that was given before; None for one that is not here."""
        ...

    def close(self) -> None:
        """Write what is waiting, and let go of the files."""
        ...
