"""What the continuity loop needs from an engine. One protocol, one conformance suite (tests/backends)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

from ghostkv.request import Delta, FinishReason, SegmentRequest, Window

if TYPE_CHECKING:
    from ghostkv.engine.engine import Engine

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
    kv_budget: int  # bytes of the pool; 0: somebody else's, of which only the context is known to be a limit
    block_tokens: int
    steering: tuple[str, ...] = ()  # control vectors that a request may name
    grammar: bool = False  # output that must match a grammar
    windows: bool = True  # residency through a window
    max_window: int | None = None  # tokens that such a window may show; None: as many as the context holds
    lacks: frozenset[str] = frozenset()  # request fields that would change nothing there


@dataclass(frozen=True, slots=True)
class Load:
    """How busy a backend is, about now: whoever asks is not on the engine's thread."""

    free_tokens: int  # slots that an admission could take
    waiting: int  # requests in line


@dataclass(frozen=True, slots=True)
class UpstreamState:
    """One server that a backend asks."""

    address: str
    healthy: bool  # segments are sent there
    since: float  # seconds since the epoch, of the last change of `healthy`
    running: int  # segments that it is asked for
    failovers: int  # segments that left it because it broke off, refused them or could not be reached


@dataclass(frozen=True, slots=True)
class Stats:
    """What a backend holds about now, and what it has counted since it began.

    Whoever asks is not on the engine's thread, so a step may be half counted; no counter ever goes back.
    """

    running: int  # requests
    waiting: int  # requests
    blocks: int  # of the pool
    live_blocks: int
    cached_blocks: int
    free_blocks: int
    peak_live_blocks: int
    steps: int
    step_seconds: float  # of forward passes
    prefill_tokens: int  # prompt tokens computed
    generated_tokens: int  # output tokens chosen
    prompt_tokens: int  # of ended requests
    cached_tokens: int  # of those, found in the prefix index
    refused: int  # requests refused before any generation
    waits_for_memory: int  # requests that were first in line and had to wait because blocks were missing
    kept: int  # boundaries
    flushed: int  # boundaries
    drafts: int  # rows that guessed tokens
    drafted_tokens: int  # guesses computed
    accepted_tokens: int  # of them, right and used
    paused_blocks: int = 0  # cached blocks that are kept for sessions that wait for a tool
    pauses_kept: int = 0
    pauses_dropped: int = 0
    pauses_resumed: int = 0  # of those kept, the ones whose session came back in time
    dropped_tokens: int = 0  # output tokens that came after a boundary or an end, from an engine that went on
    upstreams: tuple[UpstreamState, ...] = ()  # in place of an engine of our own

    @classmethod
    def of(cls, engine: Engine) -> Self:
        """Those of ghostkv's own engine; each number is read once, and blocks add up to the pool."""
        stats, pool, occupancy = engine.stats, engine.scheduler.pool, engine.scheduler.occupancy()
        free, cached, pauses = pool.free, pool.cached, engine.scheduler.pauses.counts
        return cls(
            running=occupancy.running,
            waiting=occupancy.waiting,
            blocks=pool.num_blocks,
            live_blocks=pool.num_blocks - free - cached,
            cached_blocks=cached,
            free_blocks=free,
            peak_live_blocks=stats.peak_live_blocks,
            steps=stats.steps,
            step_seconds=stats.step_seconds,
            prefill_tokens=stats.prefill_tokens,
            generated_tokens=stats.generated_tokens,
            prompt_tokens=stats.prompt_tokens,
            cached_tokens=stats.cached_tokens,
            refused=stats.refused,
            waits_for_memory=stats.waits_for_memory,
            kept=stats.boundaries_kept,
            flushed=stats.finished[FinishReason.FLUSH.value],
            drafts=stats.drafts,
            drafted_tokens=stats.drafted_tokens,
            accepted_tokens=stats.accepted_tokens,
            paused_blocks=pool.pinned,
            pauses_kept=pauses.kept,
            pauses_dropped=pauses.dropped,
            pauses_resumed=pauses.resumed,
        )


class Backend(Protocol):
    """An engine that continues prompts."""

    def capabilities(self) -> Capabilities:
        """Fixed for the backend's life."""
        ...

    def generate(self, request: SegmentRequest) -> AsyncIterator[Delta]:
        """Stream one segment; the last delta carries `finish`. Closing the iterator early cancels the request.

        Where `score` is a capability, `request.scores` is answered in the deltas' `prompt`, in order, and a request
        with nothing `remaining` ends when its prompt is read. Raises InvalidRequest before any generation if the
        request can never fit, Overloaded if the line is full, and EngineFault if the engine dies before the end.
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

    def pause(self, request: SegmentRequest, ids: Sequence[int]) -> None:
        """The answer whose last request this was waits for a tool; prompt and output were `ids`. A hint, no duty."""
        ...

    def count(self, text: str) -> int:
        """Tokens of `text`."""
        ...
