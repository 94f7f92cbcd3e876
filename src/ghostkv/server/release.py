"""Letting go of a server's sessions, each at its next boundary, so that others on the same store go on with them.

Whoever reads an answer here is told that the server is draining; asked again, another gives the rest. Nothing is handed
over but what the store has: see `moving` for servers that share none.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from ghostkv.errors import Draining, GhostError, StoreError
from ghostkv.server.running import Feed
from ghostkv.server.serving import Serving
from ghostkv.session.capsule import Capsule
from ghostkv.session.store import SharedStore
from ghostkv.session.table import Key
from ghostkv.session.turn import Event

_log = logging.getLogger(__name__)


async def release_all(serving: Serving, store: SharedStore, seconds: float) -> None:
    """Let no answer in any more, and every session go; done once all are gone that go within so many seconds.

    Answers without a session, and those whose next boundary is their end, have that time too.
    """
    serving.gate.close(seconds)
    table = serving.desk.table
    keys = [(owner, record.id) for owner in table.tenants() for record in table.of(owner)]
    _log.info("letting go", extra={"fields": {"sessions": len(keys)}})
    going = [asyncio.create_task(_released(serving, store, key), name=f"session {key[1]} goes") for key in keys]
    if going:
        await asyncio.wait(going, timeout=seconds)


async def _released(serving: Serving, store: SharedStore, key: Key) -> None:
    desk = serving.desk

    async def handed(capsule: Capsule) -> Feed | None:
        try:
            await asyncio.wrap_future(store.keep(key, capsule))
            await asyncio.wrap_future(store.release(key))
        except GhostError as error:
            _log.error("session %s stays: %s", key[1], error.message)
            return None
        return _Elsewhere()

    desk.leave(key, handed)
    await desk.over(key)
    if desk.broken_off(key) is not None:
        with suppress(StoreError):  # then its lease has to run out
            await asyncio.wrap_future(store.release(key))


class _Elsewhere:
    """`running.Feed` of an answer that others go on with."""

    async def __anext__(self) -> tuple[int, Event]:
        """Raises Draining."""
        raise Draining("the answer goes on at another server: ask again", retry_after=1)

    def close(self) -> None:
        """Nothing is open."""
