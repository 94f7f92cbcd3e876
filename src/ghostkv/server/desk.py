"""Sessions of a server, and which of them are answering. Routes ask it; it knows nothing of HTTP or JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile

from ghostkv.errors import GhostError, SessionBusy, SessionNotFound, StoreError
from ghostkv.server.keeping import Keeping
from ghostkv.server.running import Feed, Reading, Running, Send
from ghostkv.session.calls import CallRecord
from ghostkv.session.capsule import Capsule
from ghostkv.session.chain import Carried, Closed
from ghostkv.session.record import NewTurn, SessionRecord, Status, TurnRecord
from ghostkv.session.resumption import Resumed
from ghostkv.session.table import Key, SessionTable
from ghostkv.session.turn import Turn

_NEXT = "the session's next request came while nobody read it"


class Desk:
    """Of the event loop's thread alone, but for the records that it gives out."""

    def __init__(self, table: SessionTable, keeping: Keeping | None = None) -> None:
        """`keeping`: what outlives the process; None: nothing."""
        self.table = table
        self._keeping = keeping or Keeping()
        self._running: dict[Key, Running] = {}
        self._unfinished: dict[Key, Capsule] = {}
        self.rejoin: Callable[[Key], Awaitable[None]] = _nothing
        """Has an answer that broke off go on, where there is somebody who can."""

    @property
    def unfinished(self) -> tuple[Key, ...]:
        """Sessions whose answer broke off and may go on."""
        return tuple(self._unfinished)

    async def make(self, record: SessionRecord) -> SessionRecord:
        """A new session. Raises SessionExists, RateLimited, StoreError."""
        record = self.table.create(record)
        try:
            await self._keeping.made(record)
        except BaseException:
            self.table.delete((record.tenant, record.id))
            raise
        return record

    async def claim(self, key: Key) -> None:
        """Have a session here as it stands in the store, if this server shares that with others.

        Raises SessionElsewhere while another answers in it, StoreError. Of one that is nowhere nothing is here then.
        """
        if key in self._running:
            return
        try:
            found = await self._keeping.claim(key)
        except SessionNotFound:
            if key not in self._running:
                self._drop(key)
            return
        if found is None or key in self._running:
            return
        self._drop(key)
        if isinstance(found.found, Capsule):
            self.take_in(found.found, 0.0)
        else:
            self.table.refuse(key, found.found)

    def _drop(self, key: Key) -> None:
        self._unfinished.pop(key, None)
        with suppress(SessionNotFound):
            self.table.delete(key)

    async def held(self, key: Key) -> Capsule:
        """What a session can go on from. Raises SessionNotFound, Unsupported, RecordRefused."""
        await self.claim(key)
        self.table.get(key)
        return await self._keeping.held(key)

    async def adopt(self, capsule: Capsule) -> SessionRecord:
        """A session with its answers, an id of "" drawn; one that is under way goes on when somebody reads it.

        Raises SessionExists, RateLimited, StoreError.
        """
        record = self.table.adopt(capsule.record)
        key, capsule = (record.tenant, record.id), replace(capsule, record=record)
        try:
            await self._keeping.adopted(capsule)
        except BaseException:
            self.table.delete(key)
            raise
        if record.running:
            self._unfinished[key] = capsule
        return record

    def leave(self, key: Key, send: Send) -> None:
        """Have the answer that is going on, if there is one, go on elsewhere from its next boundary on."""
        running = self._running.get(key)
        if running is not None:
            running.leave_by(send)

    async def over(self, key: Key) -> None:
        """Wait until the session answers nothing."""
        while (running := self._running.get(key)) is not None:
            await running.ended()

    async def forgotten(self, key: Key) -> None:
        """The session is kept elsewhere; here it can be read as long as the process lives."""
        await self._keeping.forget(key)

    async def gone(self, key: Key, error: GhostError) -> None:
        """The session is elsewhere: nothing of it stays, and whoever asks for it gets `error`."""
        await self._keeping.forget(key)
        self._unfinished.pop(key, None)
        self.table.delete(key)
        self.table.refuse(key, error)

    def take_in(self, capsule: Capsule, age_s: float) -> None:
        """A session that a store has kept."""
        self.table.restore(capsule.record, age_s)
        if capsule.record.running:
            self._unfinished[capsule.record.tenant, capsule.record.id] = capsule

    def take_over(self, capsule: Capsule, age_s: float) -> None:
        """A session of another server that is gone; what was here of it is older."""
        key = capsule.record.tenant, capsule.record.id
        if key not in self._running:
            self._drop(key)
            self.take_in(capsule, age_s)

    def broken_off(self, key: Key) -> Capsule | None:
        """What is kept of an answer that may go on."""
        return self._unfinished.get(key)

    def resume(self, key: Key, found: Resumed, feed: Callable[[Closed], Feed]) -> None:
        """Go on with an answer that broke off. Raises what `feed` does; then it may be tried again."""
        capsule = self._unfinished.pop(key)
        self.table.put_back(key, found.record)
        try:
            self._start(key, found.turn, feed, found.start.carried, capsule.tries)
        except BaseException:
            self._unfinished[key] = capsule
            raise

    async def tried(self, key: Key) -> Capsule | None:
        """`broken_off`, which is about to be gone on with; that is committed before anything else happens."""
        capsule = self._unfinished.get(key)
        if capsule is None:
            return None
        capsule = replace(capsule, tries=capsule.tries + 1)
        with suppress(StoreError):  # then the answer itself cannot be kept either, and says so
            await self._keeping.adopted(capsule)
        if key in self._unfinished:
            self._unfinished[key] = capsule
        return self._unfinished.get(key)

    async def further(self, key: Key) -> None:
        """Wait until a session's answer has got further than it was, or has ended."""
        while (running := self._running.get(key)) is not None and running.in_vain:
            await running.moved()

    def give_up(self, key: Key, error: GhostError) -> None:
        """An answer that broke off cannot go on in this process: its readers are told why. The store keeps it."""
        if self._unfinished.pop(key, None) is not None:
            self.table.end(key, Status.FAILED, f"the answer broke off and cannot go on: {error.message}")

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
            await running.stop(_NEXT)
        if self._unfinished.pop(key, None) is not None:
            self.table.end(key, Status.CANCELLED, f"the answer was ended before it was complete: {_NEXT}")
        self.table.begin(key, asked)
        try:
            running = self._start(key, turn, feed)
        except BaseException as error:
            self.table.end(key, Status.FAILED, str(error))
            raise
        return Reading(running.record, running)

    def read(self, key: Key, record: TurnRecord) -> Reading:
        """Read an answer of the session from its beginning, and on to its end if it is running."""
        self.table.touch(key)
        running = self._running.get(key)
        live = running is not None and running.record.id == record.id
        return Reading(record, running if live else None)

    def unsettled(self, key: Key, answer: str) -> tuple[CallRecord, ...]:
        """What whoever reads an answer is told before it: unsettled calls that were given out before it began.

        Of one that went on after a restart also its own, of which nobody knows whether their client has them.
        """
        record, running = self.table.get(key), self._running.get(key)
        earlier = {turn.id for turn in takewhile(lambda turn: turn.id != answer, record.turns)}
        given = running.given if running is not None and running.record.id == answer else frozenset[str]()
        return tuple(call for call in record.unsettled if call.answer in earlier or call.id in given)

    async def reread(self, key: Key, answer: str) -> Reading:
        """Read an answer of the session that was asked for before; one that broke off goes on."""
        await self.rejoin(key)
        turn = next(turn for turn in self.table.get(key).turns if turn.id == answer)
        return self.read(key, turn)

    async def stop(self, key: Key, why: str) -> None:
        """End the session's answer, if there is one that is going on; its readers are told why."""
        running = self._running.get(key)
        if running is not None:
            await running.stop(why)

    async def delete(self, key: Key) -> None:
        """End the session's answer and forget it. Raises SessionNotFound, and StoreError where it is not erased."""
        await self.claim(key)
        self.table.check(key)
        forgotten = False
        while not forgotten or key in self._running:  # one may begin while this waits
            if (running := self._running.get(key)) is not None:
                await running.stop("its session was deleted")
            await self._keeping.forget(key)
            forgotten = True
        self._unfinished.pop(key, None)
        self.table.delete(key)

    def _start(
        self,
        key: Key,
        turn: Turn,
        feed: Callable[[Closed], Feed],
        carried: Carried | None = None,
        tries: int = 0,
    ) -> Running:
        keeper = self._keeping.answer(key, turn, carried, tries)

        def over(kept: Capsule | None) -> None:
            del self._running[key]
            if kept is not None:
                self.table.put_back(key, kept.record)
                self._unfinished[key] = kept

        running = self._running[key] = Running(self.table, key, turn, feed, over, keeper)
        return running


async def _nothing(key: Key) -> None:
    return
