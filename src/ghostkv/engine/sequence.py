"""One running request: its tokens, its blocks, its counters, and the rows it puts into a step.

Mutable and owned by the scheduler alone; what leaves it (Row, Draw, GenerationState, SegmentUsage) is frozen.
"""

from __future__ import annotations

from types import MappingProxyType

from ghostkv.engine.constraint import Constraint
from ghostkv.engine.randomness import uniform
from ghostkv.engine.text_gate import Detokenizer, TextGate
from ghostkv.kv.pool import Allocation
from ghostkv.kv.ring import Ring
from ghostkv.request import GenerationState, SegmentRequest, SegmentUsage, Stop, Verdict
from ghostkv.step import Draw, Row, Targets


class Sequence:
    """The record of a request between admission and finish."""

    __slots__ = (
        "_constraint",
        "_counts",
        "_counts_view",
        "_decode_s",
        "_plain_draw",
        "_prefill_s",
        "_queue_s",
        "_state",
        "allocation",
        "emitted",
        "filled",
        "gate",
        "generated",
        "prompt_tokens",
        "request",
        "reserved",
        "ring",
        "tokens",
    )

    def __init__(
        self, request: SegmentRequest, allocation: Allocation, reserved: int, queue_s: float, detokenizer: Detokenizer
    ) -> None:
        self.request = request
        self.allocation = allocation
        self.tokens = list(request.prompt)  # prompt and output
        self.prompt_tokens = len(request.prompt)
        self.filled = allocation.cached_tokens  # leading tokens whose KV is in the pool
        self.generated = 0  # output tokens of this request
        self.reserved = reserved  # output tokens that the reservation allows
        self.emitted = request.state.emitted  # output tokens of the session
        self.gate = TextGate(detokenizer, request.state)
        window = request.residency.visible
        self.ring = None if window is None else Ring(window)  # where its tokens stand, if that is no plain order
        self._constraint = None if request.grammar is None else Constraint(request.grammar)
        self._state = request.state
        self._counts = dict(request.state.counts)
        # A read-only live view: a copy for each step would cost time in all distinct tokens. It changes in commit only.
        self._counts_view = MappingProxyType(self._counts) if request.sampling.penalised else None
        self._plain_draw = self._constant_draw()
        self._queue_s = queue_s
        self._prefill_s = 0.0
        self._decode_s = 0.0

    @property
    def decoding(self) -> bool:
        """Whether the whole prompt is computed."""
        return self.filled >= self.prompt_tokens

    @property
    def resident(self) -> int:
        """Tokens whose KV is in the pool and can still be seen."""
        return self.filled if self.ring is None else self.ring.resident(self.filled)

    def decode_row(self) -> Row:
        """The newest token, to compute its KV and choose the next."""
        return self._row((self.tokens[-1],), self._draw())

    def prefill_row(self, budget: int) -> Row:
        """At most `budget` prompt tokens; with a draw only if the last one is among them and something is to follow."""
        end = min(self.prompt_tokens, self.filled + budget)
        if self.ring is not None:
            end = min(end, self.ring.chunk_end(self.filled))
        draw = self._draw() if end == self.prompt_tokens and self.request.remaining else None
        return self._row(self.request.prompt[self.filled : end], draw, self._targets(end))

    def advance(self, row: Row, seconds: float) -> None:
        """`row` was computed in a step of `seconds`."""
        if row.start < self.prompt_tokens:
            self._prefill_s += seconds
        else:
            self._decode_s += seconds
        self.filled = row.start + len(row.tokens)

    def accept(self, token_id: int) -> Verdict:
        """Append one output token and say what the rules think of it, and then what the grammar does."""
        self.tokens.append(token_id)
        self.generated += 1
        self.emitted += 1
        self._counts[token_id] = self._counts.get(token_id, 0) + 1
        verdict = self.gate.feed(token_id)
        if self._constraint is None or isinstance(verdict, Stop):
            return verdict
        return self._constraint.accept(token_id) or verdict

    @property
    def note(self) -> str:
        """What led to a dead end of the grammar; "" where there is none."""
        return "" if self._constraint is None else self._constraint.note

    def state(self) -> GenerationState:
        """What the session's next request takes."""
        return GenerationState(
            emitted=self.emitted,
            client_ids=self._state.client_ids,
            counts=tuple(sorted(self._counts.items())),
            undecoded=self.gate.undecoded,
            held=self.gate.held,
            rules=self.gate.rules,
        )

    def usage(self) -> SegmentUsage:
        """What the request has cost so far."""
        return SegmentUsage(
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.allocation.cached_tokens,
            generated_tokens=self.generated,
            resident_tokens=self.resident,
            queue_s=self._queue_s,
            prefill_s=self._prefill_s,
            decode_s=self._decode_s,
        )

    def _row(self, tokens: tuple[int, ...], draw: Draw | None, targets: Targets | None = None) -> Row:
        request = self.request
        window = None if self.ring is None else self.ring.window
        return Row(request.id, tokens, self.filled, self.allocation.table, draw, request.steering, window, targets)

    def _targets(self, end: int) -> Targets | None:
        """What a row of prompt tokens that ends before `end` says about the tokens that follow each."""
        asked = self.request.scores
        if asked is None:
            return None
        first = max(self.filled, asked.start - 1)
        ids = self.request.prompt[first + 1 : end + 1]
        return Targets(first - self.filled, ids, asked.best) if ids else None

    def _draw(self) -> Draw:
        sampling = self.request.sampling
        masked = sampling.terminators if self.emitted < sampling.min_tokens else ()
        allowed = None
        if self._constraint is not None:
            allowed, masked = self._constraint.allowed(masked), ()
        elif self._plain_draw is not None and not masked:
            return self._plain_draw
        greedy = sampling.temperature == 0
        number = 0.0 if greedy else uniform(sampling.seed, sampling.choice, sampling.node, self.emitted)
        return Draw(sampling, number, masked, self._state.client_ids, self._counts_view, allowed)

    def _constant_draw(self) -> Draw | None:
        """The draw of every greedy token of which nothing is masked; None where draws differ from token to token."""
        if self.request.sampling.temperature != 0:
            return None
        return Draw(self.request.sampling, 0.0, (), self._state.client_ids, self._counts_view)
