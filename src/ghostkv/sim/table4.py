"""The source's Table 4 at its own size: 128, 192 and 256 users, 192 and 250 output tokens. All of it simulated.

The source says neither how long prompts were nor how many units a user ran; here each user asks once, all at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ghostkv.engine.admission import Limits
from ghostkv.engine.step_cost import StepTimes
from ghostkv.residency.segment import MEASURED
from ghostkv.sim.acceptance import compare
from ghostkv.sim.memory import Memory
from ghostkv.sim.simulation import Outcome, Setup
from ghostkv.sim.workload import Workload, equal_jobs
from ghostkv.step import BLOCK_TOKENS

CELLS = tuple((users, tokens) for users in (128, 192, 256) for tokens in (192, 250))
PAYLOAD = 4096
"""Bytes of compact state that F3 is asked with for each session."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell under one policy."""

    users: int
    tokens: int
    demand: float  # KV that all hold at their ends, over the pool
    whole: float  # bytes by F2
    segmented: float  # bytes by F3
    peak: float  # bytes, weights and runtime included, that the simulation came to
    outcome: Outcome


def cells(times: StepTimes, memory: Memory, prompt: int) -> Iterator[Cell]:
    """Every cell under every policy."""
    limits = Limits(memory.context, max_sequences=256, step_tokens=2048, max_waiting=100_000)
    segment = prompt + MEASURED.cap
    for users, tokens in CELLS:
        workload = Workload(equal_jobs(users, prompt, tokens), memory.blocks)
        for outcome in compare(workload, Setup(times, limits)):
            yield Cell(
                users=users,
                tokens=tokens,
                demand=workload.pressure,
                whole=memory.whole(users, prompt + tokens),
                segmented=memory.segmented(users, users, segment, PAYLOAD),
                peak=memory.whole(1, 0) + outcome.peak_blocks * BLOCK_TOKENS * memory.token_bytes,
                outcome=outcome,
            )
