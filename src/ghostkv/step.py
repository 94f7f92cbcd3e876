"""What crosses between scheduler and runner, and nothing else: StepPlan down, StepResult up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ghostkv.request import NO_STEERING, Bitmask, Sampling, Steering, Token, Window

BLOCK_TOKENS = 16  # token slots of a pool block; also the attention kernel's vector width


def blocks_of(tokens: int) -> int:
    """Blocks that hold so many tokens."""
    return -(-tokens // BLOCK_TOKENS)


BlockTable = npt.NDArray[np.int32]  # [blocks], the pool blocks of a request in order of position


@dataclass(frozen=True, slots=True)
class Draw:
    """Everything that choosing one token needs besides its logits."""

    sampling: Sampling
    uniform: float  # in [0, 1); unused when greedy
    masked: tuple[int, ...] = ()  # ids that cannot be chosen now
    client_ids: frozenset[int] = frozenset()
    counts: Mapping[int, int] | None = None  # occurrences in the output; None unless a penalty is active
    allowed: Bitmask | None = None  # ids that can be chosen, at least one; None: all


@dataclass(frozen=True, slots=True)
class Targets:
    """Tokens whose log-probabilities a row gives: `ids[i]` as what follows the row's token `first + i`."""

    first: int
    ids: tuple[int, ...]
    best: int  # most probable tokens to name beside each


@dataclass(frozen=True, slots=True)
class Row:
    """Consecutive tokens of one request to compute in this step."""

    request_id: str
    tokens: tuple[int, ...]
    start: int  # position of tokens[0]
    table: BlockTable  # covers at least position start + len(tokens) - 1
    draws: tuple[Draw, ...]  # of the row's last tokens, whose logits each choose the next; () where none is wanted
    steering: Steering = NO_STEERING
    window: Window | None = None  # then the table is that of `kv.ring.Ring(window)`
    targets: Targets | None = None  # never of a token that draws

    @property
    def drafts(self) -> tuple[int, ...]:
        """Tokens that are only guessed: all that draw but the first. Each later draw assumes those before it."""
        return self.tokens[len(self.tokens) - len(self.draws) + 1 :] if self.draws else ()


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One forward pass: decoding rows first, then prefill chunks."""

    index: int
    now: float  # seconds, the engine's clock
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class StepResult:
    """One token for each draw, in the plan's order."""

    tokens: tuple[Token, ...]
    seconds: float  # of the whole step
    sampling_s: float = 0.0  # of it, choosing tokens
    scored: tuple[tuple[Token, ...], ...] = ()  # for each row with targets, in the plan's order


class Runner(Protocol):
    """Executes a plan. The model's runner and the simulator's cost model are the two."""

    def run(self, plan: StepPlan) -> StepResult:
        """Compute every row, write its KV into its blocks, and draw the tokens asked for."""
        ...
