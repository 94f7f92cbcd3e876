"""Sessions by id, each tenant's apart, within limits. It holds records and generates nothing.

A session that is not used is forgotten after a while. Where a tenant has used up its limits it is told so: a session is
never dropped to make room for another.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from ghostkv.config import SessionLimits
from ghostkv.errors import (
    GhostError,
    InvariantViolation,
    RateLimited,
    RecordRefused,
    SessionBusy,
    SessionExists,
    SessionNotFound,
)
from ghostkv.session.calls import CallRecord, intended
from ghostkv.session.record import NewTurn, SessionRecord, Status, TurnRecord
from ghostkv.session.turn import Event

Key = tuple[str, str]
"""Tenant and session id."""


@dataclass(slots=True)
class _Entry:
    record: SessionRecord
    before: SessionRecord  # its last answer was begun
    used: float  # when, by the table's clock
    size: int  # bytes that it may come to with the answer that is running


class SessionTable:
    """The sessions of one process. For one thread, but for the records that it gives out, which are values."""

    def __init__(
        self,
        limits: SessionLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        token_bytes: Callable[[int], bytes] = lambda _: b"",
        forgotten: Callable[[Key], object] = lambda _: None,
    ) -> None:
        """`clock` counts seconds; `token_bytes` are the vocabulary's; `forgotten` is told of the idle."""
        self.limits = limits or SessionLimits()
        self._clock = clock
        self._token_bytes = token_bytes
        self._forgotten = forgotten
        self._refused: dict[Key, GhostError] = {}  # sessions of a store that cannot be used here
        self._tenants: dict[str, OrderedDict[str, _Entry]] = {}  # the one that was used last stands last

    def create(self, record: SessionRecord) -> SessionRecord:
        """Add a session without answers; an id of "" becomes one of its own. Raises SessionExists, RateLimited."""
        own = self._own(record.tenant)
        record = replace(record, id=record.id or f"sess_{secrets.token_hex(12)}")
        if record.id in own or (record.tenant, record.id) in self._refused:
            raise SessionExists(f"there is a session {record.id!r} already", param="id")
        if len(own) >= self.limits.count:
            raise self._limited(own, f"there are {len(own)} sessions of at most {self.limits.count}: delete some")
        self._tenants[record.tenant] = own
        own[record.id] = _Entry(record, record, self._clock(), record.size)
        return record

    def adopt(self, record: SessionRecord) -> SessionRecord:
        """Add a session with its answers. Raises what `create` does, RateLimited also where its bytes do not fit."""
        held = sum(entry.size for entry in self._own(record.tenant).values())
        if held + record.size > self.limits.memory:
            said = f"the other sessions hold {held} bytes and this one {record.size}, of at most {self.limits.memory}"
            raise RateLimited(f"{said} in all: delete some", retry_after=max(1, int(self.limits.idle_s)))
        return self.create(record)

    def restore(self, record: SessionRecord, age_s: float) -> None:
        """Take in a session that was kept elsewhere and that nobody has used for `age_s` seconds: the oldest first."""
        own = self._tenants.setdefault(record.tenant, OrderedDict())
        own[record.id] = _Entry(record, record, self._clock() - age_s, record.size)

    def refuse(self, key: Key, error: GhostError) -> None:
        """A session is there but cannot be used: whoever asks for it gets `error`. It can be deleted."""
        self._refused[key] = error

    def put_back(self, key: Key, record: SessionRecord) -> None:
        """The session as it stood before."""
        entry = self._entry(key)
        entry.record = entry.before = record
        entry.size = max(entry.size, record.size)

    def get(self, key: Key) -> SessionRecord:
        """The session as it stands. Raises SessionNotFound. Looking at it does not keep it."""
        return self._entry(key).record

    def check(self, key: Key) -> None:
        """Raises SessionNotFound for a session that is not here, not even as one that cannot be used."""
        if key not in self._refused:
            self._entry(key)

    def of(self, tenant: str) -> tuple[SessionRecord, ...]:
        """A tenant's sessions, the one that was used last first."""
        return tuple(entry.record for entry in reversed(self._own(tenant).values()))

    def tenants(self) -> tuple[str, ...]:
        """Those that have sessions."""
        return tuple(tenant for tenant in tuple(self._tenants) if self._own(tenant))

    def delete(self, key: Key) -> None:
        """Forget a session. Whoever runs its answer must have ended that. Raises SessionNotFound."""
        if self._refused.pop(key, None) is not None:
            return
        self._entry(key)
        own = self._tenants[key[0]]
        del own[key[1]]
        if not own:
            del self._tenants[key[0]]

    def touch(self, key: Key) -> SessionRecord:
        """The session, which is in use."""
        entry = self._entry(key)
        entry.used = self._clock()
        self._tenants[key[0]].move_to_end(key[1])
        return entry.record

    def begin(self, key: Key, asked: NewTurn) -> TurnRecord:
        """Open an answer. Raises SessionNotFound, SessionBusy, and RateLimited where its bytes may not fit."""
        entry = self._entry(key)
        if entry.record.running:
            raise SessionBusy(f"session {key[1]!r} is answering another request", param="ghostkv.session")
        own = self._tenants[key[0]]
        opened = entry.record.opened(asked)
        held = sum(other.size for other in own.values() if other is not entry)
        needed = opened.size + asked.most_bytes
        if held + needed > self.limits.memory:
            raise self._limited(
                own,
                f"the other sessions hold {held} bytes and with this answer this one may hold {needed}, of at most "
                f"{self.limits.memory} in all: delete some, or ask for a smaller max_tokens",
            )
        entry.before, entry.record, entry.size = entry.record, opened, needed
        self.touch(key)
        return entry.record.turns[-1]

    def add(self, key: Key, event: Event) -> TurnRecord:
        """One more event of the running answer."""
        turn, entry = self._running(key).added(event), self._entry(key)
        entry.record = entry.record.with_last(turn)
        return turn

    def carry(self, key: Key, payload: bytes) -> None:
        """What the latest closed segment of the running answer left."""
        self._running(key)
        entry = self._entry(key)
        entry.record = replace(entry.record, payload=payload)

    def intend(self, key: Key, calls: Iterable[CallRecord]) -> bool:
        """Log calls that the running answer is about to make; whether one is new. Raises RecordRefused."""
        self._running(key)
        entry = self._entry(key)
        before, logged = entry.record.calls, intended(entry.record.calls, calls)
        entry.record = replace(entry.record, calls=logged)
        return logged is not before

    def end(self, key: Key, status: Status, error: str = "") -> TurnRecord:
        """Close the running answer. One that failed with nothing to show was refused: it leaves no trace."""
        self.touch(key)  # while it is running, for else it may be idle already
        turn, entry = self._running(key), self._entry(key)
        closed = entry.record.closed(status, error, self._token_bytes)
        opened_here = len(entry.before.turns) < len(entry.record.turns)  # not one that was restored or put back
        refused = status is Status.FAILED and not turn.events and opened_here
        entry.record = entry.before if refused else closed
        entry.size = entry.record.size
        return closed.turns[-1]

    def _running(self, key: Key) -> TurnRecord:
        record = self._entry(key).record
        if not record.running:
            raise InvariantViolation(f"session {key[1]!r} runs no answer")
        return record.turns[-1]

    def _entry(self, key: Key) -> _Entry:
        if (refused := self._refused.get(key)) is not None:
            raise RecordRefused(refused.message, param="session")
        entry = self._own(key[0]).get(key[1])
        if entry is None:
            raise SessionNotFound(f"there is no session {key[1][:100]!r}", param="session")
        return entry

    def _own(self, tenant: str) -> OrderedDict[str, _Entry]:
        """A tenant's sessions, without those that nobody has used for too long."""
        own = self._tenants.get(tenant, OrderedDict())
        for session_id in list(self._idle(own)):
            del own[session_id]
            self._forgotten((tenant, session_id))
        if not own:
            self._tenants.pop(tenant, None)
        return own

    def _idle(self, own: OrderedDict[str, _Entry]) -> Iterator[str]:
        oldest = self._clock() - self.limits.idle_s
        for session_id, entry in own.items():
            if entry.used > oldest:
                return
            if not entry.record.running:
                yield session_id

    def _limited(self, own: OrderedDict[str, _Entry], message: str) -> RateLimited:
        """With the time after which the session that was used longest ago is forgotten."""
        oldest = min(entry.used for entry in own.values())
        return RateLimited(message, retry_after=max(1, int(oldest + self.limits.idle_s - self._clock()) + 1))
