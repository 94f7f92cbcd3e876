"""What of sessions outlives the process: nothing, or all that a store is given. It decides when; what is `capsule`'s.

Before an answer says anything it is kept with its seed, and before the first token of a segment is said, so is what
the boundary before it left, or that it was kept and after which tokens. Under `full` tokens are written now and then,
since they can be generated again and nothing is decided.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from ghostkv.request import Decision
from ghostkv.session.capsule import Answering, Capsule
from ghostkv.session.chain import Carried
from ghostkv.session.context import residency_of
from ghostkv.session.manifest import Manifest
from ghostkv.session.record import SessionRecord
from ghostkv.session.store import Store
from ghostkv.session.table import Key
from ghostkv.session.turn import Event, Output, SegmentRecord, Turn
from ghostkv.session.worker import Worker

_LOG_S = 1.0  # between two writes of a kept segment's tokens


class Keeper:
    """Of one answer of which nothing outlives the process. Its methods are called on the event loop."""

    @property
    def kept(self) -> Capsule | None:
        """What of it would outlive the process by now."""
        return None

    async def begun(self, record: SessionRecord) -> None:
        """It is under way; nothing of it has been said."""

    def closed(self, carried: Carried) -> None:
        """A segment has left this; its record follows."""

    async def took(self, event: Event, record: Callable[[], SessionRecord]) -> None:
        """It has said something; nothing after that is said before this returns."""

    def ended(self, record: SessionRecord) -> None:
        """It is over, for good."""


class Keeping:
    """Of a server without a store."""

    def answer(self, key: Key, turn: Turn, carried: Carried | None = None) -> Keeper:
        """The keeper of an answer, which goes on after a boundary that left `carried`."""
        return Keeper()

    async def made(self, record: SessionRecord) -> None:
        """A session was made. Raises StoreError."""

    async def forget(self, key: Key) -> None:
        """Nothing is to be left of it. Raises StoreError."""

    def forgotten(self, key: Key) -> None:
        """Nobody has used it for too long."""


class StoreKeeping(Keeping):
    """Of a server with one."""

    def __init__(self, store: Store, worker: Worker) -> None:
        self._store = store
        self._worker = worker
        self._manifest = worker.named

    def answer(self, key: Key, turn: Turn, carried: Carried | None = None) -> Keeper:
        """See Keeping."""
        whole = residency_of(turn, self._worker.context).budget is None
        logs = whole and turn.grammar is None and turn.plan is None
        return StoreKeeper(self._store, self._manifest, key, Answering.of(turn, self._worker), carried, logs=logs)

    async def made(self, record: SessionRecord) -> None:
        """See Keeping."""
        capsule = Capsule(self._manifest, record)
        await asyncio.wrap_future(self._store.keep((record.tenant, record.id), capsule))

    async def forget(self, key: Key) -> None:
        """See Keeping."""
        await asyncio.wrap_future(self._store.forget(key))

    def forgotten(self, key: Key) -> None:
        """See Keeping. What fails is tried again when it is read, and found too old, after the next start."""
        self._store.forget(key)


class StoreKeeper(Keeper):
    """Of one answer of a session in a store."""

    def __init__(
        self,
        store: Store,
        manifest: Manifest,
        key: Key,
        answering: Answering,
        carried: Carried | None,
        *,
        logs: bool,
    ) -> None:
        """`logs`: write its tokens now and then, since its segments have no end."""
        self._store = store
        self._manifest = manifest
        self._key = key
        self._answering = answering
        self._carried = carried
        self._kept: Capsule | None = None
        self._logs = logs
        self._logged: Future[None] | None = None
        self._next_log = time.monotonic() + _LOG_S
        self._left: deque[Carried] = deque()  # by segments whose records have not come yet

    @property
    def kept(self) -> Capsule | None:
        """See Keeper."""
        return self._kept

    async def begun(self, record: SessionRecord) -> None:
        """See Keeper."""
        await self._keep(record)

    def closed(self, carried: Carried) -> None:
        """See Keeper. The nodes of a plan close theirs side by side: a planned answer starts over."""
        if self._answering.turn.plan is None:
            self._left.append(carried)

    async def took(self, event: Event, record: Callable[[], SessionRecord]) -> None:
        """See Keeper."""
        if isinstance(event, Output):
            if event.kept is not None and not self._logs:
                await self._keep(record())  # decided by more than the request, so never again
            elif self._logs and time.monotonic() >= self._next_log:
                self._log(record())
        if not (isinstance(event, SegmentRecord) and self._left):
            return
        carried = self._left.popleft()
        if event.boundary is not None and event.boundary.decision is Decision.FLUSH:
            self._carried = carried
            await self._keep(record())

    def ended(self, record: SessionRecord) -> None:
        """See Keeper. Where it cannot be written, the end is found again from what is kept."""
        self._store.keep(self._key, Capsule(self._manifest, record))

    async def _keep(self, record: SessionRecord) -> None:
        capsule = Capsule.at(self._manifest, record, self._answering, self._carried)
        await asyncio.wrap_future(self._store.keep(self._key, capsule))
        self._kept = capsule

    def _log(self, record: SessionRecord) -> None:
        if self._logged is None or self._logged.done():
            capsule = Capsule.at(self._manifest, record, self._answering, self._carried)
            self._logged = self._store.keep(self._key, capsule)
            self._next_log = time.monotonic() + _LOG_S
