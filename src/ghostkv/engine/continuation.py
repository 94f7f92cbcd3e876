"""What one request has generated, and what each new token leads to: the same for every engine behind a backend.

It knows output and reservations. Where tokens come from, and where their KV is, it does not know.
"""

from __future__ import annotations

from dataclasses import dataclass

from ghostkv.engine.text_gate import Detokenizer, TextGate
from ghostkv.request import Boundary, Continue, FinishReason, GenerationState, SegmentRequest, Stop, Verdict


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one output token led to: at most one of an end and a boundary."""

    text: str  # now final
    end: FinishReason | None = None
    boundary: str = ""  # its kind: the policy is to be asked


class Continuation:
    """The output of one request since it began, and what of it the session's next request takes. Mutable."""

    __slots__ = ("_counts", "_state", "emitted", "gate", "generated", "prompt_tokens", "request", "reserved")

    def __init__(self, request: SegmentRequest, reserved: int, detokenizer: Detokenizer) -> None:
        self.request = request
        self.prompt_tokens = len(request.prompt)
        self.generated = 0  # output tokens of this request
        self.reserved = reserved  # output tokens that the reservation allows
        self.emitted = request.state.emitted  # output tokens of the session
        self.gate = TextGate(detokenizer, request.state)
        self._state = request.state
        self._counts = dict(request.state.counts)

    def accept(self, token_id: int) -> Verdict:
        """Append one output token and say what the rules think of it."""
        self.generated += 1
        self.emitted += 1
        self._counts[token_id] = self._counts.get(token_id, 0) + 1
        return self.gate.feed(token_id)

    def outcome(self, verdict: Verdict) -> Outcome:
        """What the token means of which the rules think `verdict`: go on, a boundary, or the end."""
        if isinstance(verdict, Stop):
            return Outcome(self.gate.close(verdict.drop), verdict.reason)
        if self.generated == self.request.remaining:
            return Outcome(self.gate.close(0), FinishReason.LENGTH)
        text = self.gate.release()
        if isinstance(verdict, Continue) and self.generated < self.reserved:
            return Outcome(text)
        return Outcome(text, boundary=verdict.kind if isinstance(verdict, Boundary) else "cap")

    def to_reserve(self, max_context: int) -> int | None:
        """Output tokens to reserve for a request that is kept at this boundary; None where the context ends first.

        Where flushing is weighed that is done at the boundary, so that text is cut there and not where a reservation
        happens to end; else when the reservation is used up.
        """
        request, reserved = self.request, self.reserved - self.generated
        if reserved and not request.flushed_prompt:
            return 0
        left = request.remaining - self.generated
        more = min(request.residency.reserve(left), left) - reserved
        room = max_context - self.prompt_tokens - self.reserved
        if more > room and (request.flushed_prompt or room < 1):
            return None
        return max(0, min(more, room))

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
