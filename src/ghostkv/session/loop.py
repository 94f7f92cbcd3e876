"""The continuity loop: an answer as a chain of segments, each one engine request.

It decides nothing about memory (the residency policy does, asked by the engine) and nothing about what a boundary is
(rules do). It keeps the protocol's order: recall, render, decode, extract, merge, and again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace

from ghostkv.backends.base import Backend
from ghostkv.errors import DeadEnd, DeadlineExceeded, EngineFault
from ghostkv.protocol.render import Assembled
from ghostkv.request import BoundaryMark, Decision, Delta, Finish, FinishReason, SegmentRequest
from ghostkv.session.chain import Chain, Closed
from ghostkv.session.context import TurnContext
from ghostkv.session.digest import turn_digest
from ghostkv.session.seat import Seat, Seating, Seats, one_worker, stay
from ghostkv.session.start import FROM_THE_START, Start
from ghostkv.session.strict import check_shown
from ghostkv.session.turn import Event, Finished, Output, Phases, SegmentRecord, Turn


async def run(
    backend: Backend,
    turn: Turn,
    context: TurnContext,
    seats: Seats = one_worker,
    closed: Closed = lambda _: None,
    start: Start = FROM_THE_START,
) -> AsyncGenerator[Event, None]:
    """Stream one answer: Outputs, a SegmentRecord at the end of each segment, Finished last.

    `seats` may have its segments run elsewhere; `closed` is told what each segment leaves; from another `start` than
    its own only what follows is streamed. Closing the generator early cancels the engine request. Raises
    InvalidRequest, ContextLengthExceeded among them, before any generation, DeadEnd where a grammar comes to one,
    DeadlineExceeded where the backend ends it for its deadline, and what the backend raises.
    """
    chain = Chain.of(turn, context, backend.capabilities())
    seat = Seat(backend, chain, start.carried or chain.begin())
    async with aclosing(
        follow(seat, seats(chain), begun=start is not FROM_THE_START, closed=closed, start=start)
    ) as events:
        async for event in events:
            yield event


async def follow(
    seat: Seat,
    seating: Seating = stay,
    *,
    begun: bool = False,
    closed: Closed = lambda _: None,
    start: Start = FROM_THE_START,
) -> AsyncGenerator[Event, None]:
    """`run` for a chain that starts from `seat`; `closed` is told what each segment leaves.

    `begun`: other chains of the same answer run already, so that this one is not turned away by a full line.
    """
    home, records = seat.chain, list(start.records)
    left_s = _countdown(home, start)
    while True:
        phase = _Stopwatch(home.context.clock)
        with phase("render"):
            seat = seating(seat)
            chain, carried = seat.chain, seat.carried
            selection = chain.select(carried)
        with phase("recall"):
            block = chain.recall(carried, selection)
        with phase("render"):
            assembled = chain.render(carried, selection, block)

        if not records:
            check_shown(home.turn, assembled, at_home=chain is home)
        segment = _Decoded(start, short=not records and chain.begins_short)
        request = replace(chain.request(len(records), assembled, carried), begun=begun, deadline_s=left_s())
        request = start.opened(request)
        start = FROM_THE_START
        try:
            async for delta in seat.backend.generate(request):
                segment.take(delta)
                if delta.prompt:
                    yield Output((), "", prompt=delta.prompt)
                if delta.tokens or delta.text:
                    filled = len(assembled.ids) + len(segment.ids) - 1  # the newest token is not fed back yet
                    yield Output(delta.tokens, delta.text, chain.resident(filled), kept=_kept(delta))
        finally:
            if segment.finish is None:
                seat.backend.cancel(request.id)
        finish = segment.finish
        if finish is None:
            raise EngineFault(f"the backend ended {request.id} without saying why")
        _check_end(finish)

        with phase("extract"):
            transition = chain.extract(carried, segment.ids, finish)
        with phase("merge"):
            seat = replace(seat, carried=chain.merge(carried, transition, finish, assembled))
        closed(seat.carried)
        records.append(_record(seat, len(records), segment, finish, assembled, phase.phases))
        yield records[-1]
        if finish.reason is not FinishReason.FLUSH:
            _pause(seat, request, segment)
            yield _finished(home, chain, finish, assembled, records)
            return


def _countdown(home: Chain, start: Start) -> Callable[[], float | None]:
    """Seconds that are left of a turn that begins now; None where it has no deadline.

    An answer that goes on after a restart has none: it was that of a client who is gone.
    """
    seconds, clock = home.turn.deadline_s, home.context.clock
    if seconds is None or start is not FROM_THE_START:
        return lambda: None
    due = clock() + seconds
    return lambda: due - clock()


def _check_end(finish: Finish) -> None:
    """Raises where a request ended without its answer being complete, for a reason of its own."""
    if finish.reason is FinishReason.DEADLINE:
        raise DeadlineExceeded(
            f"the deadline cannot be met any more, after {finish.state.emitted} tokens: {finish.note}",
            param="ghostkv.deadline_s",
        )
    if finish.reason is FinishReason.DEAD_END:
        raise DeadEnd(
            f"after {finish.state.emitted} tokens the grammar lets nothing follow, and the answer is not complete "
            f"there: {finish.note}"
        )


class _Decoded:
    """What the deltas of one request add up to."""

    def __init__(self, start: Start, *, short: bool) -> None:
        """`short`: of the client's prompt, not all could be read."""
        self.ids = list(start.ids)
        self.restored = len(start.ids)
        self.boundary: BoundaryMark | None = None  # the one that was flushed
        self.decisions = [*([BoundaryMark("prompt", Decision.FLUSH, "prompt")] if short else []), *start.kept]
        self.finish: Finish | None = None

    def take(self, delta: Delta) -> None:
        self.ids += [token.id for token in delta.tokens]
        self.finish = delta.finish
        if delta.boundary is None:
            return
        self.decisions.append(delta.boundary)
        if delta.boundary.decision is Decision.FLUSH:
            self.boundary = delta.boundary


def _pause(seat: Seat, request: SegmentRequest, segment: _Decoded) -> None:
    """Tell the backend of an answer that asks for tools: its client is likely to come back with their results."""
    finish = segment.finish
    if finish is not None and finish.reason is FinishReason.STOP and seat.chain.calls(segment.ids):
        seat.backend.pause(request, (*request.prompt, *segment.ids[segment.restored :]))


def _kept(delta: Delta) -> BoundaryMark | None:
    mark = delta.boundary
    return mark if mark is not None and mark.decision is Decision.KEEP else None


class _Stopwatch:
    """Adds up the seconds of each phase."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seconds = dict.fromkeys(("recall", "render", "extract", "merge"), 0.0)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        started = self._clock()
        yield
        self._seconds[name] += self._clock() - started

    @property
    def phases(self) -> Phases:
        return Phases(**self._seconds)


def _record(
    seat: Seat, index: int, segment: _Decoded, finish: Finish, assembled: Assembled, phases: Phases
) -> SegmentRecord:
    chain, carried, usage, restored = seat.chain, seat.carried, finish.usage, segment.restored
    usage = replace(
        usage, prompt_tokens=usage.prompt_tokens - restored, generated_tokens=usage.generated_tokens + restored
    )
    recalled = min(assembled.block.recalled_tokens, assembled.lines)
    return SegmentRecord(
        index=index,
        usage=usage,
        boundary=segment.boundary,
        decisions=tuple(segment.decisions),
        live_kv_bytes=chain.live_kv_bytes(finish.usage),
        phases=phases,
        tail=assembled.tail,
        state=assembled.lines - recalled,
        recalled=recalled,
        dropped=assembled.dropped + chain.condensed_tokens,
        payload_bytes=len(carried.memory.payload.data),
        payload_dropped=carried.memory.payload.payload.dropped,
        density=carried.density,
        worker=seat.worker,
        reason=seat.reason,
        restored=restored,
    )


def _finished(
    home: Chain, chain: Chain, finish: Finish, assembled: Assembled, records: Sequence[SegmentRecord]
) -> Finished:
    """The end of a turn that was asked of `home` and ended in `chain`, whose tokens may be another vocabulary's."""
    prompt = len(home.prompt)
    condensed = min(prompt, chain.condensed_tokens)
    dropped = min(prompt, assembled.dropped + condensed)
    return Finished(
        reason=finish.reason,
        prompt_tokens=prompt,
        completion_tokens=finish.state.emitted,
        exact=chain is home and chain.exact and len(records) == 1 and not (dropped or assembled.lines),
        unseen_tokens=dropped,
        condensed_tokens=condensed,
        segments=tuple(records),
        digest=turn_digest(home.turn, home.prompt, _flushes(home, records)),
    )


def _flushes(home: Chain, records: Sequence[SegmentRecord]) -> tuple[int, ...] | None:
    """Output tokens before each flush, where that depends on more than the request: then it determines the answer."""
    budget = home.policy.budget
    if budget is None or not budget.whole:
        return None
    marks = (mark for record in records for mark in record.decisions)
    return tuple(mark.at for mark in marks if mark.decision is Decision.FLUSH)
