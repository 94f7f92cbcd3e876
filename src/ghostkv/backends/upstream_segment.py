"""One segment that another engine generates: its continuation, its tokens so far, and when they came."""

from __future__ import annotations

import time

from ghostkv.engine.continuation import Continuation, Outcome
from ghostkv.engine.text_gate import Detokenizer
from ghostkv.request import Delta, Finish, FinishReason, SegmentRequest, SegmentUsage, Token


class RemoteSegment(Continuation):
    """Mutable, and owned by the task that serves it."""

    __slots__ = ("_asked", "_cached", "_came", "_first", "ids")

    def __init__(self, request: SegmentRequest, reserved: int, detokenizer: Detokenizer, came: float) -> None:
        """`came`: when, in seconds of `time.monotonic`."""
        super().__init__(request, reserved, detokenizer)
        self.ids: list[int] = []  # output tokens of this request
        self._cached = 0
        self._came = self._asked = self._first = came

    def asked(self) -> None:
        """The engine is asked from now on."""
        self._asked = time.monotonic()

    def found(self, cached: int) -> None:
        """So many prompt tokens were found in the prefix cache; what counts is said before the first output token."""
        if not self.ids:
            self._cached = cached

    def take(self, token: Token) -> Outcome:
        """Take the next token; what it led to."""
        if not self.ids:
            self._first = time.monotonic()
        self.ids.append(token.id)
        return self.outcome(self.accept(token.id))

    def finish(self, reason: FinishReason) -> Finish:
        """How the segment ends now."""
        return Finish(reason, self.state(), self.usage())

    def finished(self, reason: FinishReason, text: str = "") -> Delta:
        """A last delta without a token."""
        return Delta(self.request.id, text=text, finish=self.finish(reason))

    def usage(self) -> SegmentUsage:
        """What the request has cost: its first token's wait counts as prefill, the engine's own line included."""
        now = time.monotonic()
        first = self._first if self.ids else now
        return SegmentUsage(
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self._cached,  # 0 over HTTP: said only at an end, which is mostly not waited for
            generated_tokens=self.generated,
            resident_tokens=self.prompt_tokens + max(0, self.generated - 1),
            queue_s=self._asked - self._came,
            prefill_s=max(0.0, first - self._asked),
            decode_s=now - first,
        )
