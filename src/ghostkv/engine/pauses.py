"""The ledger of pauses: whose blocks are kept while a tool runs, for how long, and what came of it.

All that it keeps is counted and bounded, yields to answers that have begun, and ends at its time-to-live. It holds no
request, and no memory that anybody could be refused for for ever.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from ghostkv.engine.pause import Fate, Lengths, PauseDecision, PauseView, decide
from ghostkv.kv.pool import BlockPool
from ghostkv.kv.prefix_index import Node
from ghostkv.request import SegmentRequest

SHARE = 2  # at most one of so many blocks of the pool is kept for pauses
RECORDED = 1024  # decisions that are remembered
_FORGOTTEN_S = 600.0  # after so long nobody is expected to come back: it teaches nothing about how long tools take


@dataclass(frozen=True, slots=True)
class PauseRecord:
    """A decision and all that it was taken by: `decide(view)` gives it again."""

    request_id: str
    view: PauseView
    decision: PauseDecision
    blocks: int  # kept


@dataclass(slots=True)
class PauseCounts:
    """What came of pauses since the beginning."""

    kept: int = 0
    dropped: int = 0
    resumed: int = 0  # kept ones whose session came back in time
    expired: int = 0  # kept ones whose time-to-live ended
    displaced: int = 0  # kept ones that made room for others' pauses


@dataclass(slots=True)
class _Pause:
    domain: str
    path: tuple[Node, ...]  # the session's indexed blocks: pinned, or only remembered where it was dropped
    least: int  # of them, those of the last prompt: whoever has these goes on from it
    tokens: int  # of that prompt
    since: float
    until: float  # when the pins are taken; `since` where there are none

    @property
    def kept(self) -> bool:
        return self.until > self.since


class Pauses:
    """Over one pool. Not thread-safe: the scheduler owns it."""

    def __init__(self, pool: BlockPool) -> None:
        self.counts = PauseCounts()
        self.records: deque[PauseRecord] = deque(maxlen=RECORDED)
        """The latest decisions, oldest first."""
        self._pool = pool
        self._lengths = Lengths()
        self._open: OrderedDict[int, _Pause] = OrderedDict()  # oldest first
        self._next = 0

    @property
    def blocks(self) -> int:
        """Blocks that are kept and that no allocation holds."""
        return self._pool.pinned

    @property
    def lengths(self) -> tuple[float, ...]:
        """Seconds that pauses took, ascending."""
        return self._lengths.ascending

    def begin(self, request: SegmentRequest, ids: Sequence[int], view: PauseView, now: float) -> PauseDecision:
        """A session whose text is `ids` pauses after `request`; what is in the pool of it is kept or not."""
        decision = decide(view)
        path = self._pool.find(ids, request.domain)
        bound = self._pool.num_blocks // SHARE
        until = now
        if decision.fate is Fate.KEEP and 0 < len(path) <= bound:
            self._pool.pin(path)
            until += decision.ttl_s
        self.counts.kept += until > now
        self.counts.dropped += until <= now
        self.records.append(PauseRecord(request.id, view, decision, len(path) if until > now else 0))
        if path:
            prompt = len(request.prompt)
            least = min(len(path), max(1, prompt // self._pool.block_tokens))
            self._open[self._next] = _Pause(request.domain, path, least, prompt, now, until)
            self._next += 1
        self._displace(bound)
        return decision

    def expire(self, now: float) -> None:
        """Give up what has been kept for its time, and forget who has been away for too long."""
        for key, pause in list(self._open.items()):
            if pause.kept and now >= pause.until:
                self._release(pause)
                self.counts.expired += 1
            if now - pause.since >= _FORGOTTEN_S:
                del self._open[key]

    def held_from(self, request: SegmentRequest) -> int:
        """Kept blocks that a new arrival must leave: all but those of its own pause."""
        if not self.blocks:
            return 0
        own = self._paused(request)
        mine = 0 if own is None or not self._open[own].kept else self._pool.unreferenced(self._open[own].path)
        return self.blocks - mine

    def resumed(self, request: SegmentRequest, now: float) -> None:
        """A request was admitted: the pause that it goes on from is over, which also says how long it took."""
        if (key := self._paused(request)) is None:
            return
        pause = self._open.pop(key)
        self._lengths.ended(now - pause.since)
        self.counts.resumed += pause.kept
        self._release(pause)

    def _paused(self, request: SegmentRequest) -> int | None:
        """The pause whose text a prompt repeats furthest, whether its session has a name or only its messages come."""
        candidates = [
            (key, pause)
            for key, pause in self._open.items()
            if len(request.prompt) > pause.tokens and pause.domain == request.domain
        ]
        if not candidates:
            return None
        found = self._pool.find(request.prompt, request.domain)
        shared = {key: sum(mine is its for mine, its in zip(found, pause.path)) for key, pause in candidates}
        furthest = max(candidates, key=lambda each: (shared[each[0]], -each[1].since))
        return furthest[0] if shared[furthest[0]] >= furthest[1].least else None

    def _displace(self, bound: int) -> None:
        """Within the bound: what ends soonest goes first."""
        kept = sorted((pause for pause in self._open.values() if pause.kept), key=lambda pause: pause.until)
        for pause in kept:
            if self._pool.pins <= bound:
                return
            self._release(pause)
            self.counts.displaced += 1

    def _release(self, pause: _Pause) -> None:
        if pause.kept:
            self._pool.unpin(pause.path)
            pause.until = pause.since
