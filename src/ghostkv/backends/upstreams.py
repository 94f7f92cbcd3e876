"""Several upstreams of one model: which is asked for a segment, and what becomes of the segment when that one fails.

Prompt and output so far are known here, so a segment goes on from its last token wherever it is asked for next: at
another upstream, or at the same one when it is back. What was passed on is never taken back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import TypeVar

from ghostkv.backends.base import UpstreamState
from ghostkv.backends.upstream import FailedTry, Failure
from ghostkv.backends.upstream_member import Member, Visit
from ghostkv.backends.upstream_prefixes import prefix_keys
from ghostkv.backends.upstream_probe import Findings
from ghostkv.backends.upstream_segment import RemoteSegment
from ghostkv.errors import EngineFault, GhostError
from ghostkv.routing import Asked, Router, key_of

_log = logging.getLogger(__name__)
T = TypeVar("T")

WAIT_S = 60.0
"""Seconds that an answer which has begun waits for an upstream, where all are away."""

_CHECK_S = 10.0  # between two health checks
_AWAY_S = 1.0  # likewise, of one that is away
_PATIENCE_S = 2.0  # that a segment of an answer without a token is tried for
_WAIT_S = 0.25  # before one that was busy or away is asked again; twice as long each time
_LONGEST_WAIT_S = 10.0
_BREAKS = 3  # upstreams that end with a segment, until it is held to be the cause

Discovery = Callable[[Member], Awaitable[Findings]]
"""Asks what an upstream can do, and adapts that to what is offered. Raises GhostError or FailedTry."""


class Upstreams:
    """All its methods belong to one event loop, but `states`."""

    def __init__(
        self,
        members: Sequence[Member],
        discovery: Discovery,
        by: Router,
        *,
        wait_s: float = WAIT_S,
        check_s: float = _CHECK_S,
    ) -> None:
        """A segment goes where `by` says; an answer that has begun waits `wait_s` seconds where all are away.

        Members that serve have joined already.
        """
        self._members = tuple(members)
        self._by = by
        self._placed = 0
        self._discovery = discovery
        self._wait_s = wait_s
        self._check_s = check_s
        self._news = asyncio.Event()  # one for each change of who serves
        self._watching: list[asyncio.Task[None]] = []

    def states(self) -> tuple[UpstreamState, ...]:
        """Of each upstream, about now."""
        return tuple(member.state() for member in self._members)

    async def watch(self) -> None:
        """Begin to check on them."""
        self._watching = [asyncio.create_task(self._watch(member)) for member in self._members]

    async def close(self) -> None:
        """Close every connection."""
        for task in self._watching:
            task.cancel()
        for member in self._members:
            await member.upstream.close()

    async def ask(self, segment: RemoteSegment, question: Callable[[Visit], Awaitable[T]]) -> T:
        """What `question` finds at an upstream. Where one fails, it is asked elsewhere or later, for what is left then.

        Raises what `question` does but FailedTry, and the error of the last one where no other try is made.
        """
        tries = _Tries()
        while True:
            member = await self._chosen(segment, tries)
            try:
                with member.visit(segment.request.prompt, segment.ids) as visit:
                    return await question(visit)
            except FailedTry as failed:
                member.failovers += 1
                if visit.answered:
                    tries = _Tries()
                tries.failed(member, failed)
                await self._doubt(member, failed)

    async def _chosen(self, segment: RemoteSegment, tries: _Tries) -> Member:
        """The upstream for the segment, as soon as there is one to ask."""
        begun = segment.request.begun or segment.emitted > 0
        patience = self._wait_s if begun else min(_PATIENCE_S, self._wait_s)
        while True:
            news, now = self._news, monotonic()
            end = now + patience - tries.waited_s
            serving = [member for member in self._members if member.healthy]
            found = [member for member in serving if tries.again_at(member) <= now]
            if found and tries.breaks < _BREAKS:
                return found[0] if len(found) == 1 else self._routed(found, segment)
            # The soonest of those that serve; one that is away may come back at any time.
            soonest = min(map(tries.again_at, serving), default=float("inf"))
            if len(serving) < len(self._members):
                soonest = min(soonest, end)
            if soonest > end or now >= end or tries.breaks >= _BREAKS:
                raise tries.error or EngineFault("; ".join(member.problem for member in self._members))
            most = min(soonest, end) - now
            with suppress(TimeoutError):
                async with asyncio.timeout(most):
                    await news.wait()
            tries.waited_s += min(most, monotonic() - now)

    def _routed(self, members: Sequence[Member], segment: RemoteSegment) -> Member:
        ids = (*segment.request.prompt, *segment.ids)
        asked, keys = Asked(self._placed, key_of(segment.request.program, ids)), prefix_keys(ids)
        self._placed += 1
        return members[self._by.choose(asked, [member.resource(len(ids), keys) for member in members])]

    async def _doubt(self, member: Member, failed: FailedTry) -> None:
        """Who is gone is left at once; who answers, but not as it should, is looked at."""
        if failed.kind in (Failure.AWAY, Failure.BROKE, Failure.SILENT):
            member.leave(failed.error.message)
        if failed.kind is Failure.FAULT:  # whether there is hope depends on it
            await self._check(member)
        else:
            member.doubt.set()

    async def _watch(self, member: Member) -> None:
        while True:
            with suppress(TimeoutError):
                soon = not member.healthy and not member.unfit
                async with asyncio.timeout(min(_AWAY_S, self._check_s) if soon else self._check_s):
                    await member.doubt.wait()
            if member.doubt.is_set() or not member.healthy or monotonic() - member.heard >= self._check_s:
                member.doubt.clear()
                await self._check(member)

    async def _check(self, member: Member) -> None:
        """Ask whether it serves; one that was gone is asked again what it can do, since another may have come back."""
        asked = monotonic()
        async with member.checking:
            if member.checked > asked:  # meanwhile, for somebody else
                return
            member.checked = monotonic()
            try:
                await member.upstream.check()
                if member.healthy:
                    return
                known = member.found if member.known else None
                member.join(known or await self._discovery(member))
            except FailedTry as failed:  # whoever is only slow is still the same
                gone = member.leave if failed.kind is Failure.SILENT else member.lost
                gone(failed.error.message)
            except Exception as error:  # noqa: BLE001 - whatever a server answers, it is looked at again
                problem = error.message if isinstance(error, GhostError) else f"{member.upstream.address}: {error!r}"
                if problem != member.problem:
                    _log.error("an upstream is not used: %s", problem)
                member.leave(problem)
                member.unfit = True
            else:
                _log.info("an upstream serves: %s", member.upstream.address)
                self._news.set()
                self._news = asyncio.Event()


class _Tries:
    """The tries of one segment that failed since its last token."""

    def __init__(self) -> None:
        self.error: GhostError | None = None  # of the latest
        self.waited_s = 0.0
        self.breaks = 0  # that the segment may be the cause of
        self._aside: dict[Member, tuple[int, float]] = {}  # times, and until when it is left alone
        self._faults: dict[Member, int] = {}  # how often it had been left by then: until it comes back, it fails

    def failed(self, member: Member, failed: FailedTry) -> None:
        self.error = failed.error
        self.breaks += failed.kind in (Failure.BROKE, Failure.SILENT, Failure.FAULT)
        if failed.kind is Failure.FAULT:
            self._faults[member] = member.left
        elif failed.kind in (Failure.BUSY, Failure.AWAY):
            times, _ = self._aside.get(member, (0, 0.0))
            wait = max(min(_WAIT_S * 2**times, _LONGEST_WAIT_S), min(failed.wait_s, _LONGEST_WAIT_S))
            self._aside[member] = times + 1, monotonic() + wait

    def again_at(self, member: Member) -> float:
        """When it may be asked, in seconds of `time.monotonic`; infinity where that would be no use."""
        if self._faults.get(member) == member.left:
            return float("inf")
        return self._aside.get(member, (0, 0.0))[1]
