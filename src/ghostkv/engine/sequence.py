"""One running request: its tokens, its blocks, its counters, and the rows it puts into a step.

Mutable and owned by the scheduler alone; what leaves it (Row, Draw, GenerationState, SegmentUsage) is frozen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import repeat
from types import MappingProxyType

from ghostkv.engine.constraint import Constraint
from ghostkv.engine.continuation import Continuation
from ghostkv.engine.drafter import Drafts
from ghostkv.engine.randomness import uniform
from ghostkv.engine.text_gate import Detokenizer
from ghostkv.kv.pool import Allocation
from ghostkv.kv.ring import Ring
from ghostkv.request import SegmentRequest, SegmentUsage, Stop, Verdict
from ghostkv.step import Draw, Row, Targets


class Sequence(Continuation):
    """The record of a request between admission and finish."""

    __slots__ = (
        "_constraint",
        "_decode_s",
        "_plain_draw",
        "_prefill_s",
        "_queue_s",
        "allocation",
        "deadline",
        "drafts",
        "filled",
        "owed",
        "ring",
        "tokens",
    )

    def __init__(
        self,
        request: SegmentRequest,
        allocation: Allocation,
        reserved: int,
        queue_s: float,
        detokenizer: Detokenizer,
        drafts: Drafts | None = None,
    ) -> None:
        super().__init__(request, reserved, detokenizer)
        self.allocation = allocation
        self.tokens = list(request.prompt)  # prompt and output
        self.filled = allocation.cached_tokens  # leading tokens whose KV is in the pool
        self.deadline = float("inf")  # seconds, the engine's clock; of its answer
        self.owed = 0  # blocks beyond the reservation that others must leave to this request
        window = request.residency.visible
        self.ring = None if window is None else Ring(window)  # where its tokens stand, if that is no plain order
        # A ring writes over what it still needs, so nothing is written there that may turn out wrong.
        self.drafts = drafts if window is None else None
        self._constraint = None if request.grammar is None else Constraint.of(request.grammar)
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

    def guess(self) -> Drafts | None:
        """What may come next, within the reservation; None where nothing is ever guessed."""
        if self.drafts is not None:
            self.drafts.propose(self.tokens, self.reserved - self.generated - 1)
        return self.drafts

    def decode_row(self, guesses: int = 0) -> Row:
        """The newest token and that many guesses, to compute their KV and choose what follows each.

        Guesses after one that the grammar does not allow are left out.
        """
        proposal = () if self.drafts is None else self.drafts.proposal[:guesses]
        draws = (self._draw(), *self._draws_after(proposal))
        return self._row((self.tokens[-1], *proposal[: len(draws) - 1]), draws)

    def prefill_row(self, budget: int) -> Row:
        """At most `budget` prompt tokens; with a draw only if the last one is among them and something is to follow."""
        end = min(self.prompt_tokens, self.filled + budget)
        if self.ring is not None:
            end = min(end, self.ring.chunk_end(self.filled))
        draws = (self._draw(),) if end == self.prompt_tokens and self.request.remaining else ()
        return self._row(self.request.prompt[self.filled : end], draws, self._targets(end))

    def advance(self, row: Row, seconds: float) -> None:
        """`row` was computed in a step of `seconds`; whether its guesses are right is not known yet."""
        if row.start < self.prompt_tokens:
            self._prefill_s += seconds
        else:
            self._decode_s += seconds
        self.filled = row.start + len(row.tokens) - len(row.drafts)

    def accept(self, token_id: int) -> Verdict:
        """Append one output token and say what the rules think of it, and then what the grammar does."""
        self.tokens.append(token_id)
        verdict = super().accept(token_id)
        if self._constraint is None or isinstance(verdict, Stop):
            return verdict
        return self._constraint.accept(token_id) or verdict

    @property
    def note(self) -> str:
        """What led to a dead end of the grammar; "" where there is none."""
        return "" if self._constraint is None else self._constraint.note

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

    def _row(self, tokens: tuple[int, ...], draws: tuple[Draw, ...], targets: Targets | None = None) -> Row:
        request = self.request
        window = None if self.ring is None else self.ring.window
        return Row(request.id, tokens, self.filled, self.allocation.table, draws, request.steering, window, targets)

    def _targets(self, end: int) -> Targets | None:
        """What a row of prompt tokens that ends before `end` says about the tokens that follow each."""
        asked = self.request.scores
        if asked is None:
            return None
        first = max(self.filled, asked.start - 1)
        ids = self.request.prompt[first + 1 : end + 1]
        return Targets(first - self.filled, ids, asked.best) if ids else None

    def _draw(self) -> Draw:
        """The draw of the next token."""
        sampling = self.request.sampling
        if self._plain_draw is not None and self._constraint is None and self.emitted >= sampling.min_tokens:
            return self._plain_draw
        return self._draw_at(self.emitted, self._counts, self._constraint)

    def _draws_after(self, guesses: tuple[int, ...]) -> Iterator[Draw]:
        """The draw after each guess as it is if all guesses before it are right: only then it counts."""
        counts = self._counts
        ahead = repeat(None) if self._constraint is None else self._constraint.after(guesses)
        for index, (token_id, constraint) in enumerate(zip(guesses, ahead), self.emitted + 1):
            if self.request.sampling.penalised:
                counts = {**counts, token_id: counts.get(token_id, 0) + 1}
            yield self._draw_at(index, counts, constraint)

    def _draw_at(self, index: int, counts: Mapping[int, int], constraint: Constraint | None) -> Draw:
        """The draw of output token `index` of the session. `counts` are shown where a penalty needs them."""
        sampling = self.request.sampling
        masked = sampling.terminators if index < sampling.min_tokens else ()
        allowed = None
        if constraint is not None:
            allowed, masked = constraint.allowed(masked), ()
        greedy = sampling.temperature == 0
        number = 0.0 if greedy else uniform(sampling.seed, sampling.choice, sampling.node, index)
        # A read-only live view: a copy for each step would cost time in all distinct tokens. It changes in commit only.
        shown = MappingProxyType(counts) if sampling.penalised else None
        return Draw(sampling, number, masked, self._state.client_ids, shown, allowed)

    def _constant_draw(self) -> Draw | None:
        """The draw of every greedy token of which nothing is masked; None where draws differ from token to token."""
        if self.request.sampling.temperature != 0:
            return None
        shown = MappingProxyType(self._counts) if self.request.sampling.penalised else None
        return Draw(self.request.sampling, 0.0, (), self._state.client_ids, shown)
