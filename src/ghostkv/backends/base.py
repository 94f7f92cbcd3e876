"""What the continuity loop needs from an engine. One protocol, one conformance suite (tests/backends)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ghostkv.request import Delta, SegmentRequest, Window

SCORING = "score"
"""The tenant of what is scored. A request that is to share prefixes with it names it too."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do. What it lacks is refused by field name, or degraded with `exact: false`."""

    token_ids: bool  # takes and returns token ids
    extend: bool  # can keep a request over a boundary
    generation_state: bool  # penalties, stop tails and counters survive a boundary
    logprobs: bool
    score: bool
    exact: bool  # the numeric contract holds
    max_context: int  # tokens
    kv_bytes_per_token: int
    kv_budget: int  # bytes of the pool
    block_tokens: int
    steering: tuple[str, ...] = ()  # control vectors that a request may name


@dataclass(frozen=True, slots=True)
class Load:
    """How busy a backend is, about now: whoever asks is not on the engine's thread."""

    free_tokens: int  # slots that an admission could take
    waiting: int  # requests in line


class Backend(Protocol):
    """An engine that continues prompts."""

    def capabilities(self) -> Capabilities:
        """Fixed for the backend's life."""
        ...

    def generate(self, request: SegmentRequest) -> AsyncIterator[Delta]:
        """Stream one segment; the last delta carries `finish`. Closing the iterator early cancels the request.

        Raises InvalidRequest before any generation if the request can never fit, Overloaded if the line is full, and
        EngineFault if the engine dies before the end.
        """
        ...

    async def score(self, ids: Sequence[int], start: int, window: Window | None = None) -> list[float]:
        """Natural log-probability of each of ids[start:] given everything before it that `window` shows (start >= 1).

        None shows all of it. Under a window, ids may be longer than the model's context.
        """
        ...

    def cancel(self, request_id: str) -> None:
        """End a request; its blocks are free within one step. Unknown ids are ignored."""
        ...

    def count(self, text: str) -> int:
        """Tokens of `text`."""
        ...
