"""What one measurement consists of: jobs of clients, and the KV bytes that each engine gets for them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ghostkv.step import BLOCK_TOKENS, blocks_of

POOL_STEP = 2 * BLOCK_TOKENS
"""Pools are whole numbers of 32 tokens: a block of every engine that is compared divides it."""


@dataclass(frozen=True, slots=True)
class Job:
    """One answer that a client asks for, of exactly `output` tokens."""

    prompt: int  # tokens
    output: int  # tokens
    arrival_s: float = 0.0  # after the cell's start; after the end of the job that it follows
    tenant: str = ""
    follows: int | None = None  # index of the job whose end it waits for
    background: bool = False  # there to make load: stopped when all others have ended, counted apart
    text: str = ""  # the prompt itself, where it is given; else it is made


@dataclass(frozen=True, slots=True)
class Cell:
    """Jobs and memory. Equal cells are equal work for whoever serves them."""

    preset: str
    name: str
    jobs: tuple[Job, ...]
    pool_tokens: int
    """Tokens whose KV in bfloat16 the pool's bytes hold."""
    timeout_s: float = 600.0
    """After so long a client leaves; what it got by then is lost."""
    seed: int = 0
    """Of prompts that are made."""
    all_engines: bool = True
    """False: only engines that lead a comparison run it."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What table and figures name it by: users, prompt, output, and what else its preset varies."""

    @property
    def demand_tokens(self) -> int:
        """KV that all jobs would hold at their ends, in tokens of whole blocks."""
        return sum(blocks_of(job.prompt + job.output) * BLOCK_TOKENS for job in self.jobs)

    @property
    def pressure(self) -> float:
        """Demand over pool."""
        return self.demand_tokens / self.pool_tokens

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt and answer together."""
        return max(job.prompt + job.output for job in self.jobs)

    @property
    def tenants(self) -> tuple[str, ...]:
        """Names of all tenants, "" where there is one only."""
        return tuple(sorted({job.tenant for job in self.jobs}))

    def identity(self) -> dict[str, Any]:
        """Everything that makes a measurement of it another one."""
        jobs = json.dumps([asdict(job) for job in self.jobs], sort_keys=True)
        return {
            "jobs": hashlib.sha256(jobs.encode()).hexdigest()[:16],
            "pool_tokens": self.pool_tokens,
            "timeout_s": self.timeout_s,
            "seed": self.seed,
        }


def pool_of(tokens: float) -> int:
    """The least pool of whole steps that holds so many tokens."""
    return max(1, -(-int(tokens) // POOL_STEP)) * POOL_STEP
