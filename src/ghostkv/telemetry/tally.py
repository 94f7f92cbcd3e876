"""What one answer has come to: counts and seconds, never its text. Metrics and log read the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from ghostkv.request import FinishReason
from ghostkv.session.turn import Event, Finished, Output, SegmentRecord, Turn


@dataclass(slots=True)
class Tally:
    """An answer so far. Times are the clock's; seconds of waiting, prefill and decoding add up over its segments."""

    tenant: str
    choice: int  # its index among the answers to its prompt
    asked: float  # when its HTTP request came
    first: float | None = None  # when its first token came
    latest: float = 0.0  # when its newest token came
    completion_tokens: int = 0
    segments: int = 0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    finished: Finished | None = None
    failed: str = ""  # code of the error that ended it
    ended: bool = False

    @classmethod
    def of(cls, turn: Turn, asked: float) -> Self:
        """Of a turn that begins."""
        return cls(turn.tenant, turn.sampling.choice, asked)

    @property
    def reason(self) -> str:
        """Why it ended, in vLLM's words: stop, length, abort or error; "" while it runs."""
        if self.failed:
            return "error"
        if self.finished is None or self.finished.reason is FinishReason.CANCELLED:
            return "abort" if self.ended else ""
        return self.finished.reason.value

    def take(self, event: Event, now: float) -> None:
        """Add what an event says."""
        if isinstance(event, Output) and event.tokens:
            self.first = now if self.first is None else self.first
            self.latest = now
            self.completion_tokens += len(event.tokens)
        elif isinstance(event, SegmentRecord):
            self.segments += 1
            self.queue_s += event.usage.queue_s
            self.prefill_s += event.usage.prefill_s
            self.decode_s += event.usage.decode_s
        elif isinstance(event, Finished):
            self.finished = event
