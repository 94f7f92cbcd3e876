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
from dataclasses import replace

from ghostkv.errors import RecordRefused, Unsupported
from ghostkv.request import Decision
from ghostkv.session.capsule import Answering, Capsule
from ghostkv.session.chain import Carried
from ghostkv.session.context import residency_of
from ghostkv.session.folding import flushed
from ghostkv.session.manifest import Manifest
from ghostkv.session.record import SessionRecord
from ghostkv.session.store import Store, Stored
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

    @property
    def tries(self) -> int:
        """How often it was gone on with, this time included, since it last got further."""
        return 0

    def spared(self) -> Capsule | None:
        """`kept`; it was ended in order, so that this was no try in vain."""
        return self.kept

    async def begun(self, record: SessionRecord) -> None:
        """It is under way; nothing of it has been said."""

    def closed(self, carried: Carried) -> None:
        """A segment has left this; its record follows."""

    async def intended(self, record: SessionRecord) -> None:
        """It is about to call tools, which is logged in `record`; those calls are not said before this returns."""

    async def took(self, event: Event, record: Callable[[], SessionRecord]) -> None:
        """It has said something; nothing after that is said before this returns."""

    def leaving(self, event: Event, record: Callable[[], SessionRecord]) -> Capsule | None:
        """What it can go on from elsewhere, now that `event` is the last that was said; None: not from here."""
        return None

    def ended(self, record: SessionRecord) -> None:
        """It is over, for good."""


class Keeping:
    """Of a server without a store."""

    def answer(self, key: Key, turn: Turn, carried: Carried | None = None, tries: int = 0) -> Keeper:
        """The keeper of an answer, which goes on after a boundary that left `carried`, for the `tries`-th time."""
        return Keeper()

    async def claim(self, key: Key) -> Stored | None:
        """Have a session that another server on the same store may have used since; None: what is here counts.

        Raises SessionNotFound, StoreError, SessionElsewhere among them.
        """
        return None

    async def made(self, record: SessionRecord) -> None:
        """A session was made. Raises StoreError, SessionExists."""

    async def forget(self, key: Key) -> None:
        """Nothing is to be left of it. Raises StoreError."""

    def forgotten(self, key: Key) -> None:
        """Nobody has used it for too long."""

    async def held(self, key: Key) -> Capsule:
        """What is committed of a session. Raises Unsupported, RecordRefused."""
        raise Unsupported("what a session can go on from is kept in a store: serve with --store PATH", param="session")

    async def adopted(self, capsule: Capsule) -> None:
        """A session came from elsewhere. Raises StoreError."""


class StoreKeeping(Keeping):
    """Of a server with one."""

    def __init__(self, store: Store, worker: Worker) -> None:
        self._store = store
        self._worker = worker
        self._manifest = worker.named

    def answer(self, key: Key, turn: Turn, carried: Carried | None = None, tries: int = 0) -> Keeper:
        """See Keeping."""
        whole = residency_of(turn, self._worker.context).budget is None
        logs = whole and turn.grammar is None and turn.plan is None
        answering = Answering.of(turn, self._worker)
        return StoreKeeper(self._store, self._manifest, key, answering, carried, logs=logs, tries=tries)

    async def claim(self, key: Key) -> Stored | None:
        """See Keeping."""
        if self._store.shared_s is None:
            return None
        return await asyncio.wrap_future(self._store.claim(key, self._manifest))

    async def made(self, record: SessionRecord) -> None:
        """See Keeping."""
        capsule = Capsule(self._manifest, record)
        await asyncio.wrap_future(self._store.keep((record.tenant, record.id), capsule))

    async def forget(self, key: Key) -> None:
        """See Keeping."""
        await asyncio.wrap_future(self._store.forget(key))

    async def held(self, key: Key) -> Capsule:
        """See Keeping."""
        capsule = await asyncio.wrap_future(self._store.held(key))
        if capsule is None:
            raise RecordRefused("nothing of this session is committed yet", param="session")
        return capsule

    async def adopted(self, capsule: Capsule) -> None:
        """See Keeping."""
        await asyncio.wrap_future(self._store.keep((capsule.record.tenant, capsule.record.id), capsule))

    def forgotten(self, key: Key) -> None:
        """See Keeping. What fails is tried again when it is read, and found too old, after the next start."""
        self._store.forget(key, expired=True)


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
        tries: int = 0,
    ) -> None:
        """`logs`: write its tokens now and then, since its segments have no end. `tries`: see Keeping."""
        self._store = store
        self._manifest = manifest
        self._key = key
        self._answering = answering
        self._carried = carried
        self._kept: Capsule | None = None
        self._answer_id = ""
        self._tries = tries
        self._tokens = 0  # of the session's output when it was taken up
        self._logs = logs
        self._logged: Future[None] | None = None
        self._next_log = time.monotonic() + _LOG_S
        self._left: deque[Carried] = deque()  # by segments whose records have not come yet

    @property
    def kept(self) -> Capsule | None:
        """See Keeper."""
        return self._kept

    @property
    def tries(self) -> int:
        """See Keeper."""
        return self._tries

    def spared(self) -> Capsule | None:
        """See Keeper."""
        if self._kept is not None and self._kept.tries:
            self._kept = replace(self._kept, tries=0)
            self._store.keep(self._key, self._kept)
        return self._kept

    async def begun(self, record: SessionRecord) -> None:
        """See Keeper."""
        self._answer_id, self._tokens = record.turns[-1].id, record.tokens
        await self._keep(record)

    def closed(self, carried: Carried) -> None:
        """See Keeper. The nodes of a plan close theirs side by side: a planned answer starts over."""
        if self._answering.turn.plan is None:
            self._left.append(carried)

    async def intended(self, record: SessionRecord) -> None:
        """See Keeper."""
        await self._keep(record)

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

    def leaving(self, event: Event, record: Callable[[], SessionRecord]) -> Capsule | None:
        """See Keeper. Where tokens are logged any token will do; else what is committed is that of a boundary."""
        if self._logs:
            return self._capsule(record())
        kept = event.kept is not None if isinstance(event, Output) else flushed(event)
        return self._kept if kept else None

    def ended(self, record: SessionRecord) -> None:
        """See Keeper. Where it cannot be written, the end is found again from what is kept.

        The request stays with its answer, for replay and forks; one that was refused has left no trace in `record`.
        """
        answered = bool(record.turns) and record.turns[-1].id == self._answer_id
        self._store.keep(self._key, Capsule(self._manifest, record, self._answering if answered else None))

    async def _keep(self, record: SessionRecord) -> None:
        capsule = self._capsule(record)
        await asyncio.wrap_future(self._store.keep(self._key, capsule))
        self._kept = capsule

    def _log(self, record: SessionRecord) -> None:
        if self._logged is None or self._logged.done():
            self._logged = self._store.keep(self._key, self._capsule(record))
            self._next_log = time.monotonic() + _LOG_S

    def _capsule(self, record: SessionRecord) -> Capsule:
        if record.tokens > self._tokens:
            self._tries = 0
        return Capsule.at(self._manifest, record, self._answering, self._carried, self._tries)
