"""Sessions of a server, and which of them are answering. Routes ask it; it knows nothing of HTTP or JSON."""

from __future__ import annotations

from collections.abc import Callable

from ghostkv.errors import SessionBusy
from ghostkv.server.running import Feed, Reading, Running
from ghostkv.session.chain import Closed
from ghostkv.session.record import NewTurn, SessionRecord, Status, TurnRecord
from ghostkv.session.table import Key, SessionTable
from ghostkv.session.turn import Turn


class Desk:
    """Of the event loop's thread alone, but for the records that it gives out."""

    def __init__(self, table: SessionTable) -> None:
        self.table = table
        self._running: dict[Key, Running] = {}

    def free(self, key: Key) -> SessionRecord:
        """The session. Raises SessionNotFound, and SessionBusy while somebody reads an answer that is going on."""
        record = self.table.get(key)
        running = self._running.get(key)
        if running is not None and running.read:
            raise SessionBusy(f"session {key[1]!r} is answering another request", param="ghostkv.session")
        return record

    async def begin(self, key: Key, asked: NewTurn, turn: Turn, feed: Callable[[Closed], Feed]) -> Reading:
        """Start an answer, and read it from its beginning.

        An answer of the session that nobody reads any more is ended for it. Raises SessionBusy for one that somebody
        reads, SessionNotFound, RateLimited, and what `feed` raises; then the session is as it was before.
        """
        running = self._running.get(key)
        if running is not None and not running.read:
            await running.stop("the session's next request came while nobody read it")
        self.table.begin(key, asked)
        try:
            running = Running(self.table, key, turn, feed, lambda: self._running.pop(key, None))
        except BaseException as error:
            self.table.end(key, Status.FAILED, str(error))
            raise
        self._running[key] = running
        return Reading(running.record, running)

    def read(self, key: Key, record: TurnRecord) -> Reading:
        """Read an answer of the session from its beginning, and on to its end if it is running."""
        self.table.touch(key)
        running = self._running.get(key)
        live = running is not None and running.record.id == record.id
        return Reading(record, running if live else None)

    async def stop(self, key: Key, why: str) -> None:
        """End the session's answer, if there is one that is going on; its readers are told why."""
        running = self._running.get(key)
        if running is not None:
            await running.stop(why)

    async def delete(self, key: Key) -> SessionRecord:
        """End the session's answer and forget it. Raises SessionNotFound."""
        self.table.get(key)
        while (running := self._running.get(key)) is not None:
            await running.stop("its session was deleted")
        return self.table.delete(key)
