"""What the engine counts and what it shows of each step. Numbers only: no token ids and no text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ghostkv.request import Decision, Delta


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How full the engine is. Taken after `plan`, it describes the step that was planned."""

    decode_rows: int  # rows of the latest plan that decode; they come first
    drafted: int  # guesses in them
    running: int  # requests
    waiting: int  # requests
    live_blocks: int
    cached_blocks: int
    free_blocks: int


@dataclass(frozen=True, slots=True)
class StepTrace:
    """One step. Blocks and requests as they were while the step ran."""

    step: int
    now: float  # seconds, the engine's clock, at the start
    seconds: float  # of the forward pass
    decode_rows: int
    prefill_tokens: int
    running: int
    waiting: int
    live_blocks: int
    cached_blocks: int
    free_blocks: int
    drafted: int = 0  # guessed tokens that were computed beside those of the decode rows
    accepted: int = 0  # of them, right and used

    @classmethod
    def of(
        cls, step: int, now: float, seconds: float, tokens: int, occupancy: Occupancy, accepted: int = 0
    ) -> StepTrace:
        """The trace of a step that computed `tokens` tokens in all."""
        return cls(
            step=step,
            now=now,
            seconds=seconds,
            decode_rows=occupancy.decode_rows,
            prefill_tokens=tokens - occupancy.decode_rows - occupancy.drafted,
            running=occupancy.running,
            waiting=occupancy.waiting,
            live_blocks=occupancy.live_blocks,
            cached_blocks=occupancy.cached_blocks,
            free_blocks=occupancy.free_blocks,
            drafted=occupancy.drafted,
            accepted=accepted,
        )


@dataclass(slots=True)
class EngineStats:
    """Counters since the engine began. One thread writes them; a reader in another may see a step half counted."""

    steps: int = 0
    step_seconds: float = 0.0
    prefill_tokens: int = 0  # prompt tokens computed
    decode_tokens: int = 0  # output tokens computed
    generated_tokens: int = 0  # output tokens chosen
    drafts: int = 0  # decode rows that guessed
    drafted_tokens: int = 0  # guesses computed
    accepted_tokens: int = 0  # of them, right and used
    cached_tokens: int = 0  # prompt tokens found in the index, of finished requests
    prompt_tokens: int = 0  # of finished requests
    added: int = 0  # requests taken into the line
    refused: int = 0  # requests answered with an error before any generation
    waits_for_memory: int = 0  # requests that were first in line and had to wait because blocks were missing
    boundaries_kept: int = 0
    peak_live_blocks: int = 0
    finished: Counter[str] = field(default_factory=Counter)  # requests by finish reason

    def count_step(self, trace: StepTrace, deltas: Sequence[Delta]) -> None:
        """Add one step and what it gave."""
        self.steps += 1
        self.step_seconds += trace.seconds
        self.prefill_tokens += trace.prefill_tokens
        self.decode_tokens += trace.decode_rows + trace.accepted
        self.drafted_tokens += trace.drafted
        self.accepted_tokens += trace.accepted
        self.generated_tokens += sum(len(delta.tokens) for delta in deltas)
        self.peak_live_blocks = max(self.peak_live_blocks, trace.live_blocks)
        for delta in deltas:
            if delta.finish is not None:
                self.count_finish(delta)
            elif delta.boundary is not None and delta.boundary.decision is Decision.KEEP:
                self.boundaries_kept += 1

    def count_finish(self, delta: Delta) -> None:
        """Add one finished request; flushed boundaries are those that finish with reason "flush"."""
        if delta.finish is None:
            return
        self.finished[delta.finish.reason.value] += 1
        self.prompt_tokens += delta.finish.usage.prompt_tokens
        self.cached_tokens += delta.finish.usage.cached_tokens
