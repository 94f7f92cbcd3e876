"""A session's answer while it is generated, and those who read it.

It is read from the session's record, so many may read it, from any token on, each as fast as it can. It goes on while
somebody reads it, and for a while after the last one has left. Which requests may start one is `desk`'s business.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from ghostkv.errors import Draining, EngineFault, GhostError, Interrupted, InvariantViolation, StoreError
from ghostkv.protocol.payload import Payload, merge
from ghostkv.server.intents import Intents
from ghostkv.server.keeping import Keeper
from ghostkv.session.capsule import Capsule
from ghostkv.session.chain import Carried, Closed
from ghostkv.session.record import Status, TurnRecord
from ghostkv.session.table import Key, SessionTable
from ghostkv.session.turn import Event, Finished, Output, Turn

_log = logging.getLogger(__name__)
_PASSING = (Draining, EngineFault, StoreError)  # not the answer's own failures: what is kept of it can go on


class Feed(Protocol):
    """Where a new answer's events come from."""

    def __anext__(self) -> Awaitable[tuple[int, Event]]:
        """The next one."""
        ...

    def close(self) -> None:
        """End it. Needs no await."""
        ...


Send = Callable[[Capsule], Awaitable[Feed | None]]
"""Takes an answer elsewhere; gives its events from there on, or None where it stays."""


class Running:
    """One answer. It writes down what it is told until that ends, or until it is stopped."""

    def __init__(
        self,
        table: SessionTable,
        key: Key,
        turn: Turn,
        feed: Callable[[Closed], Feed],
        over: Callable[[Capsule | None], object],
        keeper: Keeper,
    ) -> None:
        """Start `feed` for the answer that is open in the table; raises what that does. Needs a running event loop.

        `over` is told when nothing follows, and if the answer could go on another time, from what.
        """
        self.record = table.get(key).turns[-1]
        """The answer so far."""
        self.failure: Exception | None = None
        """What ended it before its end."""
        self._table = table
        self._key = key
        self._budget = turn.payload_budget
        self._payloads: dict[int, Payload] = {}
        self._whole = Whole(patient=turn.plan is not None)
        self._intents = Intents.of(self.record)
        self.given = frozenset(call.id for call in table.get(key).calls)
        """Tool calls that had been given out when it began, or went on after a restart."""
        self._readers: set[Reading] = set()
        self._moved = asyncio.Event()
        self._over = asyncio.Event()
        self._keeper = keeper
        self._why = ""  # it was ended, if it was
        self._timer: asyncio.TimerHandle | None = None
        self._when_over = over
        self._send: Send | None = None
        self._feed = feed(self._closed)
        self._task = asyncio.create_task(self._follow(), name=f"{turn.id} in session {key[1]}")
        # Not in the task itself: one that is cancelled before its first step never runs at all.
        self._task.add_done_callback(self._ended)

    @property
    def read(self) -> bool:
        """Whether somebody reads it."""
        return bool(self._readers)

    @property
    def in_vain(self) -> bool:
        """Whether it was gone on with and has not got further yet."""
        return not self.over and self._keeper.tries > 0

    @property
    def over(self) -> bool:
        """Whether nothing follows."""
        return self._over.is_set()

    async def moved(self) -> None:
        """Wait for what comes next."""
        await self._moved.wait()

    async def stop(self, why: str) -> None:
        """End it, and wait until it has ended; readers and record are told why."""
        if not self.over:
            self._why = why
            self._task.cancel()
            await self._over.wait()

    async def ended(self) -> None:
        """Wait until nothing follows."""
        await self._over.wait()

    def leave_by(self, send: Send) -> None:
        """Have it go on elsewhere, from its next boundary on, while its readers read on here."""
        self._send = send

    def enter(self, reader: Reading) -> None:
        """One more reads it."""
        self._readers.add(reader)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def leave(self, reader: Reading) -> None:
        """One reads it no more. Needs no await."""
        if reader not in self._readers:
            return
        self._readers.remove(reader)
        if not self._readers and not self.over:
            self._timer = asyncio.get_running_loop().call_later(self._table.limits.grace_s, self._abandon)

    def _abandon(self) -> None:
        self._why = f"nobody read it for {self._table.limits.grace_s:g} s"
        self._task.cancel()

    async def _follow(self) -> None:
        await self._keeper.begun(self._table.get(self._key))
        with suppress(StopAsyncIteration):
            while True:
                _, event = await self._feed.__anext__()
                await self._intend(event)
                self._note(self._whole.take(event))
                await self._keeper.took(event, lambda: self._table.get(self._key))
                if self._send is not None and not isinstance(event, Finished):
                    await self._leave(self._send, event)

    async def _intend(self, event: Event) -> None:
        """Log the calls that `event` completes, before anybody can read it."""
        calls = () if self._intents is None else self._intents.completed(event)
        if calls and self._table.intend(self._key, calls):
            await self._keeper.intended(self._table.get(self._key))

    async def _leave(self, send: Send, event: Event) -> None:
        capsule = self._keeper.leaving(event, lambda: self._table.get(self._key))
        if capsule is None:
            return
        self._send = None
        if (feed := await send(capsule)) is not None:
            self._feed.close()
            self._feed, self._keeper = feed, Keeper()

    def _closed(self, carried: Carried) -> None:
        if self.over:  # cancelled, and on its way out
            return
        self._keeper.closed(carried)
        payload = carried.memory.payload
        self._payloads[carried.cursor.node] = payload.payload
        several = len(self._payloads) > 1
        data = merge(self._payloads.values()).within(self._budget).data if several else payload.data
        self._table.carry(self._key, data)

    def _note(self, events: list[Event]) -> None:
        for event in events:
            self.record = self._table.add(self._key, event)
        if events:
            self._notify()

    def _notify(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._feed.close()
        if self._timer is not None:
            self._timer.cancel()
        for event in self._whole.rest():
            self._table.add(self._key, event)
        if task.cancelled():
            why = self._why or "the server is shutting down"
            self.failure = Interrupted(f"the answer was ended before it was complete: {why}")
            self.record = self._table.end(self._key, Status.CANCELLED, self.failure.message)
        elif (error := task.exception()) is None:
            self.record = self._table.end(self._key, Status.FINISHED)
        else:
            self.failure = error if isinstance(error, Exception) else InvariantViolation(repr(error))
            if not isinstance(error, GhostError):
                _log.error("%s failed", task.get_name(), exc_info=error)
            said = error.message if isinstance(error, GhostError) else type(error).__name__
            self.record = self._table.end(self._key, Status.FAILED, f"the answer broke off: {said}")
        self._over.set()
        self._notify()
        passing = not self._why if task.cancelled() else isinstance(self.failure, _PASSING)
        blameless = task.cancelled() or isinstance(self.failure, Draining)
        kept = None if not passing else self._keeper.spared() if blameless else self._keeper.kept
        if kept is None:
            self._keeper.ended(self._table.get(self._key))
        self._when_over(kept)


class Reading:
    """One reader of an answer, complete or not: a stream's source. Cancelling a step loses nothing."""

    def __init__(self, record: TurnRecord, running: Running | None = None) -> None:
        """From the answer's beginning; `running` is given while it goes on."""
        self.record = record
        """The answer as it was when the reading began."""
        self._running = running
        self._at = 0
        if running is not None:
            running.enter(self)

    async def settle(self, seconds: float) -> None:
        """Wait for the first event, so that a refusal is raised here; at most `seconds`."""
        running = self._running
        if running is None:
            return
        if not (running.record.events or running.over):
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await running.moved()
        if running.failure is not None and not running.record.events:
            raise running.failure

    def __aiter__(self) -> Reading:
        """The iterator itself."""
        return self

    async def __anext__(self) -> tuple[int, Event]:
        """Raises what ended the answer before its end."""
        while True:
            running = self._running
            over = running is None or running.over
            events = (self.record if running is None else running.record).events
            if self._at < len(events):
                self._at += 1
                return 0, events[self._at - 1]
            if running is not None and not over:
                await running.moved()
                continue
            if running is not None and running.failure is not None:
                raise running.failure
            if self.record.error:
                raise Interrupted(self.record.error)
            raise StopAsyncIteration

    def close(self) -> None:
        """Read no more. Needs no await."""
        if self._running is not None:
            self._running.leave(self)


class Whole:
    """Puts text that comes without a token, such as a plan's headings, to a token next to it.

    So a reader that has everything up to some token has all text up to there.
    """

    def __init__(self, *, patient: bool) -> None:
        """`patient`: keep each token until it is known whether text follows that belongs to it."""
        self._patient = patient
        self._before = ""  # text that waits for the next token
        self._held: list[Event] = []  # a token's output, and what came after it

    def take(self, event: Event) -> list[Event]:
        """What may be written down now."""
        if isinstance(event, Output) and event.text and not event.tokens:
            last = self._held[0] if self._held else None
            if isinstance(last, Output):
                self._held[0] = replace(last, text=last.text + event.text)
            else:
                self._before += event.text
            return []
        if isinstance(event, Finished):
            return [*self.rest(), event]
        if not isinstance(event, Output) or not event.tokens:
            if not self._held:
                return [event]
            self._held.append(event)
            return []
        event = replace(event, text=self._before + event.text)
        self._before = ""
        ready, self._held = self._held, [event]
        return ready if self._patient else [*ready, *self._drain()]

    def rest(self) -> list[Event]:
        """What is left when nothing follows."""
        before, self._before = self._before, ""
        return [*self._drain(), *([Output((), before)] if before else [])]

    def _drain(self) -> list[Event]:
        held, self._held = self._held, []
        return held
