"""The scheduler: what the next step computes, and what its result means.

Three verbs: `plan` what to compute, (a runner computes it), `commit` the result; requests come by `add` and go by a
finish or by `cancel`. It does no I/O, reads no clock and starts no thread, so the simulator runs this very code. It
knows tokens and blocks, and asks opaque rules and policies; what a segment means is decided above.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice, zip_longest

from ghostkv.engine.admission import Limits, check_fits, check_line, reservation
from ghostkv.engine.order import Line, by_phase
from ghostkv.engine.sequence import Sequence
from ghostkv.engine.speculation import Speculation
from ghostkv.engine.stats import Occupancy
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
from ghostkv.step import Row, StepPlan, StepResult


class Scheduler:
    """Continuous batching over a block pool: decodes first, chunked prefill, first come first served."""

    def __init__(
        self, pool: BlockPool, limits: Limits, detokenizer: Detokenizer, speculation: Speculation | None = None
    ) -> None:
        self.pool = pool
        self.limits = limits
        self.speculation = speculation or Speculation()
        self.waits_for_memory = 0  # requests that were first in line and had to wait because blocks were missing
        self._detokenizer = detokenizer
        self._line = Line()
        self._running: dict[str, Sequence] = {}  # in order of admission
        self._step = 0  # index of the next plan
        self._decode_rows = self._drafted = 0  # of the latest plan

    @property
    def idle(self) -> bool:
        """Whether no request runs or waits."""
        return not self._running and not self._line

    def occupancy(self) -> Occupancy:
        """How full the engine is now."""
        pool, rows = self.pool, (self._decode_rows, self._drafted)
        return Occupancy(*rows, len(self._running), len(self._line), pool.referenced, pool.cached, pool.free)

    def check(self, request: SegmentRequest) -> None:
        """Refuse what can never run here: InvalidRequest, ContextLengthExceeded with the numbers. Changes nothing."""
        check_fits(request, self.pool, self.limits)

    def add(self, request: SegmentRequest, now: float) -> None:
        """Put a request in line. Raises what `check` raises, and Overloaded where the line is full.

        The next segment of an answer that has begun is never turned away, and waits only behind others like it.
        """
        self.check(request)
        if request.id in self._line or request.id in self._running:
            raise InvalidRequest(f"a request with id {request.id!r} is already running", param="id")
        begun = request.begun or request.state.emitted > 0
        if not begun:
            check_line(self._line.arriving, self.limits)
        self._line.add(request, now, begun=begun)

    def cancel(self, request_id: str, now: float) -> Delta | None:
        """End a request and free its blocks at once. None for an unknown id."""
        waiting = self._line.pop(request_id)
        if waiting is not None:
            usage = SegmentUsage(len(waiting.request.prompt), 0, 0, 0, now - waiting.since, 0.0, 0.0)
            return Delta(request_id, finish=Finish(FinishReason.CANCELLED, waiting.request.state, usage))
        sequence = self._running.get(request_id)
        return None if sequence is None else self._finish(sequence, FinishReason.CANCELLED)

    def plan(self, now: float) -> StepPlan | None:
        """The next step; None where no request can run, which is only when there is none."""
        decoding, prefilling = by_phase(self._running.values())
        prefills = []
        budget = self.limits.step_tokens - len(decoding)
        for sequence in chain(prefilling, self._admissions(now)):  # admits lazily: only while the step has room
            row = sequence.prefill_row(budget)
            prefills.append(row)
            budget -= len(row.tokens)
            if budget == 0:
                break
        # At most max_sequences tokens are drawn in a step; what still draws beside the guesses is running.
        room = min(budget, self.limits.max_sequences - len(self._running))
        decodes = self.speculation.rows(decoding, sum(len(row.tokens) for row in prefills), room)
        self._decode_rows, self._drafted = len(decodes), sum(len(row.drafts) for row in decodes)
        rows = [*decodes, *prefills]
        if not rows:
            if not self.idle:
                raise InvariantViolation(f"nothing can run: {self.occupancy()}")
            return None
        self._step += 1
        return StepPlan(self._step - 1, now, tuple(rows))

    def commit(self, plan: StepPlan, result: StepResult) -> list[Delta]:
        """Take the result of the latest plan: a delta for each new token, and what else a request has to say."""
        draws = sum(len(row.draws) for row in plan.rows)
        asked = sum(row.targets is not None for row in plan.rows)
        if plan.index != self._step - 1 or (draws, asked) != (len(result.tokens), len(result.scored)):
            raise InvariantViolation(
                f"step {plan.index} with {draws} draws and {asked} rows to score is committed with "
                f"{len(result.tokens)} tokens and {len(result.scored)} scores; the latest plan is step {self._step - 1}"
            )
        if len(plan.rows) == self._decode_rows:
            self.speculation.cost.observe(self._decode_rows + self._drafted, result.seconds)
        tokens, scores = iter(result.tokens), iter(result.scored)
        deltas: list[Delta] = []
        for row in plan.rows:
            drawn = tuple(islice(tokens, len(row.draws)))
            scored = next(scores) if row.targets is not None else ()
            sequence = self._running.get(row.request_id)
            if sequence is None:
                continue  # cancelled while the step ran
            sequence.advance(row, result.seconds)
            told = list(self._accept_run(sequence, row, drawn) if drawn else self._read(sequence))
            if scored:
                told[:1] = [replace(told[0] if told else Delta(row.request_id), prompt=scored)]
            deltas += told
        return deltas

    def check_integrity(self) -> None:
        """Raise InvariantViolation unless pool and requests agree."""
        self.pool.check_integrity()
        if not self._running and self.pool.referenced:
            raise InvariantViolation(f"{self.pool.referenced} blocks are referenced while no request runs")

    def _admissions(self, now: float) -> Iterator[Sequence]:
        """Admit from the line, one by one, as long as blocks and sequence slots allow."""
        while len(self._running) < self.limits.max_sequences:
            waiting = self._line.head
            if waiting is None:
                return
            request = waiting.request
            reserved = reservation(request)
            allocation = self._allocate(request, reserved)
            if allocation is None:
                if not waiting.short:  # tried again in every step, counted once
                    waiting.short = True
                    self.waits_for_memory += 1
                return
            self._line.pop(request.id)
            queue_s, drafts = now - waiting.since, self.speculation.start()
            sequence = Sequence(request, allocation, reserved, queue_s, self._detokenizer, drafts)
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

    def _read(self, sequence: Sequence) -> Iterator[Delta]:
        """Part of a prompt was read: nothing, or the end where nothing is to follow."""
        self._index(sequence)
        if sequence.decoding and not sequence.request.remaining:
            yield self._finish(sequence, FinishReason.LENGTH)

    def _accept_run(self, sequence: Sequence, row: Row, drawn: tuple[Token, ...]) -> Iterator[Delta]:
        """The row's new tokens one by one, each as if it were the only one.

        The first is always new. One that follows a guess is, if the guess was drawn before it and the request goes on:
        then it was drawn from the very row that plain decoding would compute next.
        """
        if sequence.drafts is not None:
            sequence.drafts.learn([token.id for token in drawn])
        for token, guess in zip_longest(drawn, row.drafts):
            self._index(sequence)
            delta = self._accept(sequence, token)
            yield delta
            if delta.finish is not None or token.id != guess:
                return
            sequence.filled += 1
            self.speculation.accepted += 1

    def _index(self, sequence: Sequence) -> None:
        if sequence.ring is None:
            self.pool.commit_filled(sequence.allocation, sequence.tokens, sequence.filled)

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
            waiting=len(self._line),
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
