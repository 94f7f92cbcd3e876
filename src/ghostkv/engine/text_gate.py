"""The text side of a request: detokenise, ask the rules, and hold back what a stop string may still swallow.

It turns token ids into final text and verdicts. What a verdict leads to is the scheduler's business.
"""

from __future__ import annotations

from typing import Protocol

from ghostkv.errors import InvariantViolation
from ghostkv.request import CONTINUE, Boundary, Continue, GenerationState, Rule, Stop, Verdict


class Detokenizer(Protocol):
    """The incremental detokeniser as the engine uses it. Pure: the bytes between calls are all its state."""

    def feed(self, undecoded: bytes, token_id: int) -> tuple[str, bytes]:
        """The text that this token completes, and the bytes of a character still incomplete."""
        ...

    def flush(self, undecoded: bytes) -> str:
        """The text that incomplete bytes stand for where nothing follows."""
        ...


class TextGate:
    """Held text, undecoded bytes and rules of one request."""

    __slots__ = ("_detokenizer", "_hold", "held", "rules", "undecoded")

    def __init__(self, detokenizer: Detokenizer, state: GenerationState) -> None:
        self._detokenizer = detokenizer
        self.undecoded = state.undecoded
        self.held = state.held  # text not given out yet
        self.rules = state.rules
        self._hold = 0  # characters of it that must stay

    def feed(self, token_id: int) -> Verdict:
        """Take one token. The strongest verdict: the first Stop in the rules' order, else the first Boundary."""
        piece, self.undecoded = self._detokenizer.feed(self.undecoded, token_id)
        self.held += piece
        strongest: Verdict = CONTINUE
        successors: list[Rule] = []
        hold = 0
        for rule in self.rules:
            successor, verdict = rule.feed(token_id, piece)
            successors.append(successor)
            if (held := successor.held) > hold:
                hold = held
            if verdict is not CONTINUE and _outranks(verdict, strongest):
                strongest = verdict
        self.rules = tuple(successors)
        self._hold = hold
        return strongest

    def release(self) -> str:
        """Give out all text but what the rules hold back."""
        if not self._hold:
            text, self.held = self.held, ""
            return text
        cut = max(0, len(self.held) - self._hold)
        text, self.held = self.held[:cut], self.held[cut:]
        return text

    def close(self, drop: int) -> str:
        """Give out the rest without its last `drop` characters; nothing follows.

        Incomplete bytes come after all complete text, so where the end of it is dropped they are dropped with it.
        """
        if drop > len(self.held):
            raise InvariantViolation(f"a rule drops {drop} characters of which only {len(self.held)} were held back")
        text = self.held[: len(self.held) - drop] if drop else self.held + self._detokenizer.flush(self.undecoded)
        self.held, self.undecoded = "", b""
        return text


def _outranks(verdict: Verdict, other: Verdict) -> bool:
    """Stop over Boundary over Continue; of equals the first stays."""
    if isinstance(verdict, Stop):
        return not isinstance(other, Stop)
    return isinstance(verdict, Boundary) and isinstance(other, Continue)
