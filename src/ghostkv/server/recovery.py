"""After a start: what the store has kept comes back, and answers that broke off go on.

One goes on when somebody comes to read it, and otherwise `resume_s` after the start. It is the same answer, bit for
bit; the log says what had to be generated or prefilled again. One that may end the process each time is tried again
only when the server has been up for some time, which doubles: none is given up, and the others get on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import Context

from ghostkv.errors import GhostError, RecordRefused, StoreError
from ghostkv.request import Grammar
from ghostkv.server.desk import Desk
from ghostkv.server.running import Feed
from ghostkv.session.capsule import Capsule
from ghostkv.session.chain import Closed
from ghostkv.session.record import TurnRecord
from ghostkv.session.resumption import Resumed, resumed
from ghostkv.session.store import Store
from ghostkv.session.table import Key
from ghostkv.session.worker import Worker

_log = logging.getLogger(__name__)

PROMPT_TRIES = 3
"""To go on with an answer from one place, until it has to wait."""

_UP_S = 5.0  # that the server has been up for before the next one; twice as long each time
_MOST_UP_S = 300.0

Feeding = Callable[[Resumed], Callable[[Closed], Feed]]
"""How an answer's events are made."""

Regrown = Callable[[TurnRecord, str], Awaitable[Grammar | None]]
"""The grammar of a recorded request of a tenant."""


class Recovery:
    """Of one server; of the event loop's thread alone."""

    def __init__(
        self,
        desk: Desk,
        worker: Worker,
        feeding: Feeding,
        regrown: Regrown,
        leaving: Callable[[], bool] = lambda: False,
    ) -> None:
        """`leaving`: whether the server is on its way out, and takes nothing over."""
        self._desk = desk
        self._leaving = leaving
        self._worker = worker
        self._feeding = feeding
        self._regrown = regrown
        self._going_on: dict[Key, asyncio.Task[None]] = {}
        self._suspects = asyncio.Lock()
        self._since = time.monotonic()
        desk.rejoin = self.rejoin

    @asynccontextmanager
    async def over(self, store: Store | None, resume_s: float) -> AsyncGenerator[None]:
        """Take in what `store` has; meanwhile go on with what broke off. Raises StoreError."""
        if store is None:
            yield
            return
        await asyncio.to_thread(self._take_in, store)
        tasks = [asyncio.create_task(self._go_on_later(resume_s))]
        if store.shared_s is not None:
            tasks.append(asyncio.create_task(self._look_again(store, store.shared_s)))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def rejoin(self, key: Key) -> None:
        """Somebody comes to read: go on with the session's answer if it broke off. Returns once it does, or cannot."""
        if (task := self._begun(key)) is not None:
            await asyncio.shield(task)  # whoever leaves does not take the answer from the others

    def _begun(self, key: Key) -> asyncio.Task[None] | None:
        """What goes on with the session's answer, if it broke off."""
        task = self._going_on.get(key)
        if task is None and self._desk.broken_off(key) is not None:
            # In a context of its own: the answer is its tenant's, not of whoever comes to read it.
            task = asyncio.create_task(self._go_on(key), name=f"session {key[1]} goes on", context=Context())
            self._going_on[key] = task
            task.add_done_callback(lambda _: self._going_on.pop(key, None))
        return task

    def _take_in(self, store: Store) -> None:
        count = refused = 0
        for stored in store.load(self._worker.named):
            count += 1
            if isinstance(stored.found, Capsule):
                self._desk.take_in(stored.found, stored.age_s)
            else:
                refused += 1
                self._desk.table.refuse(stored.key, stored.found)
                _log.error("%s", stored.found.message)
        fields = {"sessions": count, "unfinished": len(self._desk.unfinished), "refused": refused}
        _log.info("store read", extra={"fields": fields})

    async def _go_on_later(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        for key in sorted(self._desk.unfinished, key=self._tries):
            self._begun(key)

    async def _look_again(self, store: Store, seconds: float) -> None:
        """Take over the sessions of servers that are gone, and go on with what broke off with them."""
        while True:
            await asyncio.sleep(seconds)
            if self._leaving():
                return
            try:
                found = await asyncio.to_thread(lambda: list(store.load(self._worker.named)))
            except StoreError as error:
                _log.warning("no look for sessions of other servers: %s", error.message)
                continue
            for stored in found:
                if isinstance(stored.found, Capsule):
                    self._desk.take_over(stored.found, stored.age_s)
            for key in self._desk.unfinished:
                self._begun(key)

    def _tries(self, key: Key) -> int:
        capsule = self._desk.broken_off(key)
        return 0 if capsule is None else capsule.tries

    async def _go_on(self, key: Key) -> None:
        capsule = self._desk.broken_off(key)
        if capsule is None:
            return
        if not capsule.tries:
            await self._try(key)
            return
        # One of those that ended with the process last time may have ended it: one after another, so that the others
        # are not counted with it.
        await self._wait(key, capsule.tries)
        async with self._suspects:
            # Else the one before was it, or somebody has deleted this one meanwhile.
            if self._worker.healthy() and self._desk.broken_off(key) is not None:
                await self._try(key)
                await self._desk.further(key)

    async def _wait(self, key: Key, tries: int) -> None:
        """Until the server has been up for long enough for an answer that was tried so often."""
        if tries < PROMPT_TRIES:
            return
        up_s = min(_UP_S * 2.0 ** (tries - PROMPT_TRIES), _MOST_UP_S)
        if (seconds := self._since + up_s - time.monotonic()) > 0:
            _log.warning(
                "session %s was gone on with %d times, and each time the process ended before it got any further: it "
                "waits for %.0f s; delete it if it is why",
                key[1],
                tries,
                seconds,
            )
            await asyncio.sleep(seconds)

    async def _try(self, key: Key) -> None:
        try:
            await self._desk.claim(key)
            capsule = await self._desk.tried(key)
            if capsule is None:
                return
            grammar = await self._regrown(capsule.record.turns[-1], key[0])
            found = await asyncio.to_thread(resumed, capsule, self._worker, grammar)
            if self._desk.broken_off(key) is capsule:  # nobody has ended it meanwhile
                self._desk.resume(key, found, self._feeding(found))
                _tell(capsule, found)
        except Exception as problem:  # noqa: BLE001 - whatever is wrong with one answer is no other's concern
            error = problem if isinstance(problem, GhostError) else RecordRefused(f"it cannot be read here: {problem}")
            _log.error("session %s cannot go on: %s", key[1], error.message)
            self._desk.give_up(key, error)


def _tell(capsule: Capsule, found: Resumed) -> None:
    """How much is done again: tokens that are prefilled, and committed ones that are generated once more."""
    committed, kept = capsule.record.turns[-1].tokens, found.record.turns[-1].tokens
    prefilled = len(found.start.ids)
    fields = {
        "session": found.record.id,
        "answer": found.turn.id,
        "at_token": kept,
        "segments": len(found.start.records),
        "prefilled_again": prefilled + (len(capsule.answering.prompt) if capsule.answering and prefilled else 0),
        "generated_again": committed - kept,
    }
    _log.info("session goes on", extra={"fields": fields})
