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
from ghostkv.engine.controller import Controller
from ghostkv.engine.lookahead import Lookahead, refusal
from ghostkv.engine.order import Line, Waiting, by_phase
from ghostkv.engine.pause import PauseDecision, PauseView
from ghostkv.engine.pauses import Pauses
from ghostkv.engine.sequence import Sequence
from ghostkv.engine.speculation import Speculation
from ghostkv.engine.stats import Occupancy
from ghostkv.engine.text_gate import Detokenizer
from ghostkv.errors import InvalidRequest, InvariantViolation
from ghostkv.kv.pool import Allocation, BlockPool
from ghostkv.kv.ring import Ring
from ghostkv.request import (
    BoundaryMark,
    BoundaryView,
    Decision,
    Delta,
    Finish,
    FinishReason,
    SegmentRequest,
    SegmentUsage,
    Token,
)
from ghostkv.step import Row, StepPlan, StepResult

_LEAST_MORE = 64  # output tokens that a kept request goes on with, where a whole segment finds no room
_SMALLEST_SEGMENT = 128  # tokens of a short question and the least that is reserved for its answer


class Scheduler:
    """Continuous batching over a block pool: decodes first, chunked prefill, tenants by what they were served."""

    def __init__(
        self, pool: BlockPool, limits: Limits, detokenizer: Detokenizer, speculation: Speculation | None = None
    ) -> None:
        self.pool = pool
        self.limits = limits
        self.speculation = speculation or Speculation()
        self.waits_for_memory = 0  # requests that were first in line and had to wait because blocks were missing
        self.pauses = Pauses(pool)
        self._detokenizer = detokenizer
        self._line = Line(limits.max_wait_s)
        self._controller = Controller(self.speculation.cost, pool.num_blocks, limits.max_sequences)
        self._owed = 0  # blocks that are promised beyond reservations
        self._running: dict[str, Sequence] = {}  # in order of admission
        self._ahead = Lookahead(self._controller, self._line, self._running)
        self._step = 0  # index of the next plan
        self._decode_rows = self._drafted = self._read = 0  # of the latest plan; tokens that its decoding rows see

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
            self._check_deadline(request, now)
            self._ahead.changed()
        self._line.add(request, now, begun=begun)

    def cancel(self, request_id: str, now: float) -> Delta | None:
        """End a request and free its blocks at once. None for an unknown id."""
        waiting = self._line.pop(request_id)
        if waiting is not None:
            self._ahead.changed()
            return _unserved(waiting, FinishReason.CANCELLED, now)
        sequence = self._running.get(request_id)
        return None if sequence is None else self._finish(sequence, FinishReason.CANCELLED)

    def expire(self, now: float) -> list[Delta]:
        """End what its deadline has passed, and what could not be complete by then even with nothing beside it."""
        deltas = []
        for waiting in self._line.dated:
            if self._ahead.alone_s(waiting.request) <= waiting.deadline - now:
                continue  # even if nothing of its prompt is found
            if (needed := self._ahead.alone_s(waiting.request, self._found(waiting.request))) > waiting.deadline - now:
                self._line.pop(waiting.request.id)
                self._ahead.changed()
                note = f"the answer needs {needed:.2f} s more and its deadline is in {waiting.deadline - now:.2f} s"
                deltas.append(_unserved(waiting, FinishReason.DEADLINE, now, note))
        for sequence in [each for each in self._running.values() if now >= each.deadline]:
            ended = self._finish(sequence, FinishReason.DEADLINE)
            note = f"its deadline passed after {sequence.emitted} output tokens"
            deltas.append(replace(ended, finish=ended.finish and replace(ended.finish, note=note)))
        return deltas

    def pause(self, request: SegmentRequest, ids: tuple[int, ...], now: float) -> PauseDecision:
        """A session whose text is `ids` waits for a tool since `request` ended: whether its blocks are kept."""
        view = PauseView(
            tokens=len(ids),
            others=sum(len(sequence.tokens) for sequence in self._running.values()),
            prefill_s=self.speculation.cost.times().prefill * len(ids),
            wanted=1.0 if self._line else self.pool.referenced / self.pool.num_blocks,
            lengths=self.pauses.lengths,
        )
        return self.pauses.begin(request, ids, view, now)

    def plan(self, now: float) -> StepPlan | None:
        """The next step; None where no request can run, which is only when there is none."""
        self.pauses.expire(now)
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
        self._read = sum(row.start for row in decodes)
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
        prefill = sum(len(row.tokens) for row in plan.rows[self._decode_rows :])
        rows = self._decode_rows + self._drafted
        self.speculation.cost.observe(rows, result.seconds, prefill=prefill, read=self._read)
        now = plan.now + result.seconds
        if self._line.oldest(now) >= self.limits.max_wait_s:
            self._controller.overdue(result.seconds)
        tokens, scores = iter(result.tokens), iter(result.scored)
        deltas: list[Delta] = []
        for row in plan.rows:
            drawn = tuple(islice(tokens, len(row.draws)))
            scored = next(scores) if row.targets is not None else ()
            sequence = self._running.get(row.request_id)
            if sequence is None:
                continue  # cancelled while the step ran
            sequence.advance(row, result.seconds)
            told = list(self._accept_run(sequence, row, drawn, now) if drawn else self._read_on(sequence))
            if scored:
                told[:1] = [replace(told[0] if told else Delta(row.request_id), prompt=scored)]
            deltas += told
        return deltas

    def check_integrity(self) -> None:
        """Raise InvariantViolation unless pool and requests agree."""
        self.pool.check_integrity()
        if not self._running and self.pool.referenced:
            raise InvariantViolation(f"{self.pool.referenced} blocks are referenced while no request runs")

    def _check_deadline(self, request: SegmentRequest, now: float) -> None:
        """Raises Overloaded or DeadlineExceeded, with the seconds, where a deadline is predicted not to be met."""
        if request.deadline_s is None:
            return
        deadline, found = now + request.deadline_s, self._found(request)
        predicted = self._ahead.predict(request, deadline, found, self._step)
        if predicted is not None and (refused := refusal(request, predicted)) is not None:
            raise refused

    def _found(self, request: SegmentRequest) -> int:
        """Prompt tokens that are in the pool."""
        return len(self.pool.find(request.prompt[:-1], request.domain)) * self.pool.block_tokens

    def _admissions(self, now: float) -> Iterator[Sequence]:
        """Admit from the line, one by one, as long as blocks and sequence slots allow."""
        while len(self._running) < self.limits.max_sequences:
            waiting = self._line.head(now)
            if waiting is None:
                return
            request = waiting.request
            reserved = reservation(request)
            owed = self._promise(request, len(request.prompt), 0, reserved)
            spare = self._owed + owed + self._held_back(request.account, now) + self._paused(waiting, now)
            allocation = self._allocate(request, reserved, spare)
            if allocation is None:
                if not waiting.short:  # tried again in every step, counted once
                    waiting.short = True
                    self.waits_for_memory += 1
                return
            self._line.pop(request.id)
            computed = len(request.prompt) - allocation.cached_tokens
            self._line.started(request, computed)
            self.pauses.resumed(request, now)
            if request.state.emitted:
                self._controller.resumed(len(request.prompt), computed)
            queue_s, drafts = now - waiting.since, self.speculation.start()
            sequence = Sequence(request, allocation, reserved, queue_s, self._detokenizer, drafts)
            sequence.deadline = waiting.deadline
            self._running[request.id] = sequence
            self._owe(sequence, owed)
            yield sequence

    def _allocate(self, request: SegmentRequest, reserved: int, spare: int) -> Allocation | None:
        """Blocks for the whole reservation, or for the window that the request sees through: None if there are none.

        The token before the first one to be scored is always computed, as the last of a prompt is. `spare` blocks must
        stay available to others; where nothing runs there are no others.
        """
        if not self._running:
            spare = 0
        window = request.residency.visible
        if window is not None:
            return self.pool.admit_apart(Ring(window).blocks, spare)
        prompt = request.prompt if request.scores is None else request.prompt[: request.scores.start]
        reserve = len(request.prompt) - len(prompt) + max(reserved, 1)
        return self.pool.admit(prompt, reserve, request.domain, spare)

    def _promise(self, request: SegmentRequest, tokens: int, generated: int, reserved: int) -> int:
        """Blocks beyond `reserved` output tokens that a request of `tokens` tokens is to find when it needs them.

        All that is expected, where that is predicted to be faster than segments: then it will be kept, and whatever
        else came in instead would only make it flush.
        """
        if not request.flushed_prompt or generated + reserved >= request.remaining:
            return 0
        left = self._controller.expected(request.state.emitted + generated, request.remaining - generated)
        if left <= reserved:
            return 0
        whole = self.pool.blocks_for(tokens + left - 1)
        if whole > self.pool.num_blocks or not self._ahead.whole_pays(self._step):
            return 0
        return whole - self.pool.blocks_for(tokens + reserved - 1)

    def _owe(self, sequence: Sequence, blocks: int) -> None:
        self._owed += blocks - sequence.owed
        sequence.owed = blocks

    def _held_back(self, account: str, now: float) -> int:
        """Blocks of one smallest segment, for a tenant that has nothing running and may come any moment."""
        return self.pool.blocks_for(_SMALLEST_SEGMENT) if self._line.absent(account, now) else 0

    def _claimed(self, account: str, now: float) -> int:
        """Blocks that the first in line needs, of a tenant with nothing running: it is first at the next boundary."""
        head = self._line.head(now) if self._line.claims(account) else None
        if head is None:
            return 0
        return self.pool.blocks_for(len(head.request.prompt) + max(1, reservation(head.request)) - 1)

    def _paused(self, waiting: Waiting, now: float) -> int:
        """Blocks kept for others that wait for a tool, which whoever has begun or waited too long need not leave."""
        request = waiting.request
        if request.begun or request.state.emitted or now - waiting.since >= self.limits.max_wait_s:
            return 0
        return self.pauses.held_from(request)

    def _read_on(self, sequence: Sequence) -> Iterator[Delta]:
        """Part of a prompt was read: nothing, or the end where nothing is to follow."""
        self._index(sequence)
        if sequence.decoding and not sequence.request.remaining:
            yield self._finish(sequence, FinishReason.LENGTH)

    def _accept_run(self, sequence: Sequence, row: Row, drawn: tuple[Token, ...], now: float) -> Iterator[Delta]:
        """The row's new tokens one by one, each as if it were the only one.

        The first is always new. One that follows a guess is, if the guess was drawn before it and the request goes on:
        then it was drawn from the very row that plain decoding would compute next.
        """
        if sequence.drafts is not None:
            sequence.drafts.learn([token.id for token in drawn])
        for token, guess in zip_longest(drawn, row.drafts):
            self._index(sequence)
            delta = self._accept(sequence, token, now)
            self._line.chose(sequence.request, 1)
            yield delta
            if delta.finish is not None or token.id != guess:
                return
            sequence.filled += 1
            self.speculation.accepted += 1

    def _index(self, sequence: Sequence) -> None:
        if sequence.ring is None:
            self.pool.commit_filled(sequence.allocation, sequence.tokens, sequence.filled)

    def _accept(self, sequence: Sequence, token: Token, now: float) -> Delta:
        """One new token of one request: go on, cross a boundary, or finish."""
        request = sequence.request
        outcome = sequence.outcome(sequence.accept(token.id))
        if outcome.end is not None:
            return self._finish(sequence, outcome.end, token, outcome.text)
        if not outcome.boundary:
            return Delta(request.id, (token,), outcome.text)
        mark = self._decide(sequence, outcome.boundary, now)
        if mark.decision is Decision.KEEP:
            return Delta(request.id, (token,), outcome.text, mark)
        return self._finish(sequence, FinishReason.FLUSH, token, outcome.text, mark)

    def _decide(self, sequence: Sequence, kind: str, now: float) -> BoundaryMark:
        """Ask the policy; what it would keep is flushed where the next segment finds no room."""
        request = sequence.request
        if request.grammar is not None:
            # A structure is never flushed inside: all of it is reserved, see `check_fits`.
            return BoundaryMark(kind, Decision.KEEP)
        left, reserved = request.remaining - sequence.generated, sequence.reserved - sequence.generated
        waited_s = self._line.oldest(now)
        turn_s = self._turn_s(sequence, waited_s)
        view = BoundaryView(
            kind=kind,
            resident=sequence.resident,
            generated=sequence.generated,
            unreserved=request.remaining - sequence.reserved,
            free_blocks=self.pool.available,
            waiting=len(self._line),
            reserved=reserved,
            gain=self._gain(sequence, left),
            waited_s=waited_s,
            max_wait_s=self.limits.max_wait_s,
            turns=self._controller.turns(turn_s) if turn_s else 0.0,
            repeatable=request.repeatable,
            others=self._instead(request),
        )
        decision = request.residency.at_boundary(view)
        reason = "policy" if decision is Decision.FLUSH else self._short_of(sequence, now)
        if reason:
            decision = Decision.FLUSH
            if reason == "policy" and view.turns >= 1 and view.waited_s >= view.max_wait_s:
                self._controller.took_turn(turn_s)
        return BoundaryMark(kind, decision, reason, sequence.emitted, view.gain, view.waited_s, view.waiting)

    def _turn_s(self, sequence: Sequence, waited_s: float) -> float:
        """What a flush of this request, only for somebody's turn, would cost; 0 where it is nobody's."""
        if not sequence.request.flushed_prompt or waited_s < self.limits.max_wait_s:
            return 0.0
        return self._ahead.turn_s(sequence)

    def _gain(self, sequence: Sequence, left: int) -> float:
        """What flushing here is worth: nothing where that frees no block and nobody waits for a turn."""
        request = sequence.request
        if not request.flushed_prompt:
            return 0.0
        likely = self._controller.expected(sequence.emitted, left)
        tokens = min(request.residency.reserve(left), likely)
        freed = self.pool.blocks_for(len(sequence.tokens) + tokens) - self.pool.blocks_for(
            request.flushed_prompt + tokens
        )
        if freed <= 0 and not self._line:
            return 0.0
        return self._ahead.gain(self._step)

    def _to_go_on(self, sequence: Sequence) -> int:
        """Blocks beyond its own that a request needs to go on from its next flush."""
        request, left = sequence.request, sequence.request.remaining - sequence.reserved
        if not request.flushed_prompt or sequence.owed or left < 1:
            return 0
        needed = self.pool.blocks_for(request.flushed_prompt + request.residency.reserve(left))
        return max(0, needed - self.pool.blocks_for(sequence.prompt_tokens + sequence.reserved - 1))

    def _instead(self, request: SegmentRequest) -> int:
        """Running requests that may be flushed instead of one that can be had again, as long as that costs little."""
        if not request.repeatable or not self._ahead.spares(self._step):
            return 0
        others = (sequence.request for sequence in self._running.values())
        return sum(bool(other.flushed_prompt) and not other.repeatable for other in others)

    def _short_of(self, sequence: Sequence, now: float) -> str:
        """Reserve the next segment of a request that is kept; what is missing for that, "" if nothing is."""
        request, reserved = sequence.request, sequence.reserved - sequence.generated
        more = sequence.to_reserve(self.limits.max_context)
        if more is None:
            return "context"
        if reserved and not request.flushed_prompt:
            return ""
        spare = self._owed - sequence.owed + self._held_back(request.account, now) + self._claimed(request.account, now)
        if request.flushed_prompt and not sequence.owed and not self._ahead.whole_pays(self._step):
            spare += sum(self._to_go_on(other) for other in self._running.values() if other is not sequence)
        spare = spare if len(self._running) > 1 else 0
        if more and not self.pool.extend(sequence.allocation, more, spare):
            left = request.remaining - sequence.generated
            more = min(more, max(_LEAST_MORE, self._controller.expected(sequence.emitted, left)) - reserved)
            if not request.flushed_prompt or more <= 0 or not self.pool.extend(sequence.allocation, more, spare):
                return "memory"
        sequence.reserved += more
        self._owe(sequence, self._promise(request, len(sequence.tokens), sequence.generated, reserved + more))
        return ""

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
        self._line.ended(sequence.request)
        self._owe(sequence, 0)
        if reason is not FinishReason.FLUSH:
            self._ahead.changed()
        if reason in (FinishReason.STOP, FinishReason.LENGTH):
            begun = sequence.request.state.emitted
            self._controller.ended(sequence.emitted, begun + sequence.request.remaining)
        finish = Finish(reason, sequence.state(), sequence.usage(), sequence.note)
        return Delta(sequence.request.id, () if token is None else (token,), text, boundary, finish)


def _unserved(waiting: Waiting, reason: FinishReason, now: float, note: str = "") -> Delta:
    """The end of a request that never ran."""
    request = waiting.request
    usage = SegmentUsage(len(request.prompt), 0, 0, 0, now - waiting.since, 0.0, 0.0)
    return Delta(request.id, finish=Finish(reason, request.state, usage, note))
