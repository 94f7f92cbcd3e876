"""What fits on a machine by the source's formulas, with whole histories (F2) and with one segment each (F3).

KV is counted in whole blocks, as a pool holds it. Nothing here is measured or simulated.
"""

from __future__ import annotations

from dataclasses import dataclass

from ghostkv.residency.segment import MEASURED
from ghostkv.sim.memory import Memory
from ghostkv.step import BLOCK_TOKENS, blocks_of


@dataclass(frozen=True, slots=True)
class Ask:
    """What is asked of the machine."""

    users: int  # U_active of F2 and F3: whose answers are decoded at a time
    prompt: int  # tokens of each prompt
    tokens: int  # of each answer
    payload: int  # bytes of a session between its segments
    sessions: int  # U_sessions of F3: whose payload is held

    @property
    def whole(self) -> int:
        """KV tokens of one user at the end of the answer, whole blocks."""
        return BLOCK_TOKENS * blocks_of(self.prompt + self.tokens)

    @property
    def segment(self) -> int:
        """The most KV tokens that one segment of it takes: S_segment of F3, with what the last one left; whole blocks.

        An answer that is no longer than a segment is one.
        """
        longest = self.prompt + MEASURED.carried + MEASURED.cap if self.tokens > MEASURED.cap else self.whole
        return min(self.whole, BLOCK_TOKENS * blocks_of(longest))


@dataclass(frozen=True, slots=True)
class Fit:
    """What fits, in tokens, bytes and users."""

    pool: int  # tokens
    demand: float  # KV of all users with whole histories, over the pool
    segment_demand: float  # KV of all users with a segment each and all sessions' payload, over the pool
    whole_bytes: float  # F2
    segment_bytes: float  # F3
    whole_users: int  # that fit with whole histories
    segment_users: int  # that fit with a segment each, beside the payload of all sessions
    longest: int  # tokens of an answer that all users may have with whole histories; 0: none

    @property
    def bound(self) -> bool:
        """Whether memory binds at all: where it does not, segments have nothing to give."""
        return self.demand > 1


def fit(memory: Memory, ask: Ask) -> Fit:
    """Raises ConfigError where there is no memory for KV."""
    pool, token = memory.blocks * BLOCK_TOKENS, memory.token_bytes
    payload = ask.sessions * ask.payload
    left = max(0.0, pool * token - payload)
    return Fit(
        pool=pool,
        demand=ask.users * ask.whole / pool,
        segment_demand=(ask.users * ask.segment * token + payload) / (pool * token),
        whole_bytes=memory.whole(ask.users, ask.whole),
        segment_bytes=memory.segmented(ask.users, ask.sessions, ask.segment, ask.payload),
        whole_users=pool // ask.whole,
        segment_users=int(left / (ask.segment * token)),
        longest=max(0, memory.blocks // ask.users * BLOCK_TOKENS - ask.prompt),
    )
