"""The scheduler: what the next step computes, and what its result means.

Three verbs: `plan` what to compute, (a runner computes it), `commit` the result; requests come by `add` and go by a
finish or by `cancel`. It does no I/O, reads no clock and starts no thread, so the simulator runs this very code. It
knows tokens and blocks, and asks opaque rules and policies; what a segment means is decided above.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain

from ghostkv.engine.admission import Limits, check_fits, check_line, reservation
from ghostkv.engine.order import by_phase, head
from ghostkv.engine.sequence import Sequence
from ghostkv.engine.text_gate import Detokenizer
from ghostkv.errors import InvalidRequest, InvariantViolation
from ghostkv.kv.pool import Allocation, BlockPool
from ghostkv.kv.ring import Ring
from ghostkv.request import (
    Boundary,
    BoundaryMark,
    BoundaryView,
    Continue,
    Decision,
    Delta,
    Finish,
    FinishReason,
    SegmentRequest,
    SegmentUsage,
    Stop,
    Token,
)
from ghostkv.step import StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How full the engine is. Taken after `plan`, it describes the step that was planned."""

    decode_rows: int  # rows of the latest plan that decode; they come first
    running: int  # requests
    waiting: int  # requests
    live_blocks: int
    cached_blocks: int
    free_blocks: int


@dataclass(frozen=True, slots=True)
class _Waiting:
    request: SegmentRequest
    since: float  # seconds, the engine's clock
    short: bool = False  # it was first in line and blocks were missing


class Scheduler:
    """Continuous batching over a block pool: decodes first, chunked prefill, first come first served."""

    def __init__(self, pool: BlockPool, limits: Limits, detokenizer: Detokenizer) -> None:
        self.pool = pool
        self.limits = limits
        self.waits_for_memory = 0  # requests that were first in line and had to wait because blocks were missing
        self._detokenizer = detokenizer
        self._arriving: OrderedDict[str, _Waiting] = OrderedDict()
        self._resuming: OrderedDict[str, _Waiting] = OrderedDict()  # next segments of answers that have begun
        self._running: dict[str, Sequence] = {}  # in order of admission
        self._step = 0  # index of the next plan
        self._decode_rows = 0

    @property
    def idle(self) -> bool:
        """Whether no request runs or waits."""
        return not self._running and not self._waiting

    @property
    def _waiting(self) -> int:
        return len(self._arriving) + len(self._resuming)

    def occupancy(self) -> Occupancy:
        """How full the engine is now."""
        pool = self.pool
        return Occupancy(self._decode_rows, len(self._running), self._waiting, pool.referenced, pool.cached, pool.free)

    def check(self, request: SegmentRequest) -> None:
        """Refuse what can never run here: InvalidRequest, ContextLengthExceeded with the numbers. Changes nothing."""
        check_fits(request, self.pool, self.limits)

    def add(self, request: SegmentRequest, now: float) -> None:
        """Put a request in line. Raises what `check` raises, and Overloaded where the line is full.

        The next segment of an answer that has begun is never turned away, and waits only behind others like it.
        """
        self.check(request)
        if any(request.id in line for line in (self._arriving, self._resuming, self._running)):
            raise InvalidRequest(f"a request with id {request.id!r} is already running", param="id")
        if request.begun or request.state.emitted:
            self._resuming[request.id] = _Waiting(request, now)
            return
        check_line(len(self._arriving), self.limits)
        self._arriving[request.id] = _Waiting(request, now)

    def cancel(self, request_id: str, now: float) -> Delta | None:
        """End a request and free its blocks at once. None for an unknown id."""
        waiting = self._arriving.pop(request_id, None) or self._resuming.pop(request_id, None)
        if waiting is not None:
            usage = SegmentUsage(len(waiting.request.prompt), 0, 0, 0, now - waiting.since, 0.0, 0.0)
            return Delta(request_id, finish=Finish(FinishReason.CANCELLED, waiting.request.state, usage))
        sequence = self._running.get(request_id)
        return None if sequence is None else self._finish(sequence, FinishReason.CANCELLED)

    def plan(self, now: float) -> StepPlan | None:
        """The next step; None where no request can run, which is only when there is none."""
        decoding, prefilling = by_phase(self._running.values())
        rows = [sequence.decode_row() for sequence in decoding]
        self._decode_rows = len(rows)
        budget = self.limits.step_tokens - len(rows)
        for sequence in chain(prefilling, self._admissions(now)):  # admits lazily: only while the step has room
            row = sequence.prefill_row(budget)
            rows.append(row)
            budget -= len(row.tokens)
            if budget == 0:
                break
        if not rows:
            if not self.idle:
                raise InvariantViolation(f"nothing can run: {self.occupancy()}")
            return None
        self._step += 1
        return StepPlan(self._step - 1, now, tuple(rows))

    def commit(self, plan: StepPlan, result: StepResult) -> list[Delta]:
        """Take the result of the latest plan; one delta for each request that has something to say."""
        draws = sum(row.draw is not None for row in plan.rows)
        asked = sum(row.targets is not None for row in plan.rows)
        if plan.index != self._step - 1 or (draws, asked) != (len(result.tokens), len(result.scored)):
            raise InvariantViolation(
                f"step {plan.index} with {draws} draws and {asked} rows to score is committed with "
                f"{len(result.tokens)} tokens and {len(result.scored)} scores; the latest plan is step {self._step - 1}"
            )
        tokens, scores = iter(result.tokens), iter(result.scored)
        deltas = []
        for row in plan.rows:
            token = next(tokens) if row.draw is not None else None
            scored = next(scores) if row.targets is not None else ()
            sequence = self._running.get(row.request_id)
            if sequence is None:
                continue  # cancelled while the step ran
            sequence.advance(row, result.seconds)
            if sequence.ring is None:
                self.pool.commit_filled(sequence.allocation, sequence.tokens, sequence.filled)
            delta = self._result(sequence, token)
            if scored:
                delta = replace(delta or Delta(row.request_id), prompt=scored)
            if delta is not None:
                deltas.append(delta)
        return deltas

    def check_integrity(self) -> None:
        """Raise InvariantViolation unless pool and requests agree."""
        self.pool.check_integrity()
        if not self._running and self.pool.referenced:
            raise InvariantViolation(f"{self.pool.referenced} blocks are referenced while no request runs")

    def _admissions(self, now: float) -> Iterator[Sequence]:
        """Admit from the line, one by one, as long as blocks and sequence slots allow."""
        while len(self._running) < self.limits.max_sequences:
            waiting = head(self._resuming, self._arriving)
            if waiting is None:
                return
            request = waiting.request
            reserved = reservation(request)
            line = self._resuming if request.id in self._resuming else self._arriving
            allocation = self._allocate(request, reserved)
            if allocation is None:
                if not waiting.short:  # tried again in every step, counted once
                    line[request.id] = replace(waiting, short=True)
                    self.waits_for_memory += 1
                return
            del line[request.id]
            sequence = Sequence(request, allocation, reserved, now - waiting.since, self._detokenizer)
            self._running[request.id] = sequence
            yield sequence

    def _allocate(self, request: SegmentRequest, reserved: int) -> Allocation | None:
        """Blocks for the whole reservation, or for the window that the request sees through: None if there are none.

        The token before the first one to be scored is always computed, as the last of a prompt is.
        """
        window = request.residency.visible
        if window is not None:
            return self.pool.admit_apart(Ring(window).blocks)
        prompt = request.prompt if request.scores is None else request.prompt[: request.scores.start]
        return self.pool.admit(prompt, len(request.prompt) - len(prompt) + max(reserved, 1), request.domain)

    def _result(self, sequence: Sequence, token: Token | None) -> Delta | None:
        """What a computed row comes to: a token, or the end of a prompt that is only read, or nothing yet."""
        if token is not None:
            return self._accept(sequence, token)
        if sequence.decoding and not sequence.request.remaining:
            return self._finish(sequence, FinishReason.LENGTH)
        return None

    def _accept(self, sequence: Sequence, token: Token) -> Delta:
        """One new token of one request: go on, cross a boundary, or finish."""
        request, gate = sequence.request, sequence.gate
        verdict = sequence.accept(token.id)
        if isinstance(verdict, Stop):
            return self._finish(sequence, verdict.reason, token, gate.close(verdict.drop))
        if sequence.generated == request.remaining:
            return self._finish(sequence, FinishReason.LENGTH, token, gate.close(0))
        text = gate.release()
        if isinstance(verdict, Continue) and sequence.generated < sequence.reserved:
            return Delta(request.id, (token,), text)
        kind = verdict.kind if isinstance(verdict, Boundary) else "cap"
        if self._decide(sequence, kind) is Decision.KEEP:
            return Delta(request.id, (token,), text, BoundaryMark(kind, Decision.KEEP))
        return self._finish(sequence, FinishReason.FLUSH, token, text, BoundaryMark(kind, Decision.FLUSH))

    def _decide(self, sequence: Sequence, kind: str) -> Decision:
        """Ask the policy; what it would keep is flushed where the reservation is used up and cannot be extended."""
        request = sequence.request
        if request.grammar is not None:
            return Decision.KEEP  # a structure is never flushed inside: all of it is reserved, see `check_fits`
        view = BoundaryView(
            kind=kind,
            resident=sequence.resident,
            generated=sequence.generated,
            unreserved=request.remaining - sequence.reserved,
            free_blocks=self.pool.available,
            waiting=self._waiting,
        )
        decision = request.residency.at_boundary(view)
        if decision is Decision.FLUSH or sequence.generated < sequence.reserved:
            return decision
        left = request.remaining - sequence.generated
        more = min(request.residency.reserve(left), left, self.limits.max_context - len(sequence.tokens))
        if more < 1 or not self.pool.extend(sequence.allocation, more):
            return Decision.FLUSH
        sequence.reserved += more
        return Decision.KEEP

    def _finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        token: Token | None = None,
        text: str = "",
        boundary: BoundaryMark | None = None,
    ) -> Delta:
        del self._running[sequence.request.id]
        self.pool.release(sequence.allocation)
        finish = Finish(reason, sequence.state(), sequence.usage(), sequence.note)
        return Delta(sequence.request.id, () if token is None else (token,), text, boundary, finish)
