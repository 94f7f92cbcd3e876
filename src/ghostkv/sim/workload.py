"""What clients ask for, in tokens and seconds: given, or drawn at random."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from ghostkv.step import blocks_of


@dataclass(frozen=True, slots=True)
class Job:
    """One answer that a client asks for. The whole prompt is its head: a question without earlier exchanges."""

    name: str
    arrival: float  # seconds
    prompt: int  # tokens
    output: int  # tokens until the model ends it
    max_tokens: int  # that its client allows
    tenant: str = ""
    repeatable: bool = False
    program: str = ""  # of the tenant's
    deadline_s: float | None = None  # from its arrival to the end of its answer


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs, and the memory that they share."""

    jobs: tuple[Job, ...]
    blocks: int  # of the pool

    @property
    def pressure(self) -> float:
        """KV that all jobs would hold at their ends, over the pool's."""
        return sum(blocks_of(job.prompt + job.output) for job in self.jobs) / self.blocks


def equal_jobs(
    users: int, prompt: int, output: int, *, spread_s: float = 0.0, max_tokens: int | None = None, tenants: int = 1
) -> tuple[Job, ...]:
    """Users that ask for the same, one each `spread_s` seconds."""
    return tuple(
        Job(f"u{i}", i * spread_s, prompt, output, max_tokens or output, f"t{i % tenants}") for i in range(users)
    )


def random_workload(seed: int, *, most_tokens: int = 12_000) -> Workload:
    """Users 4-96, prompts 16-400, outputs 32-2,000 tokens, pools of a fraction to several times the demand.

    Lengths are log-normal around a drawn centre, or of two kinds; arrivals at once, spread, or in bursts; in some
    workloads clients allow more than the model says. Every job fits the pool alone. `most_tokens` of output bounds it.
    """
    rng = random.Random(seed)
    centre = math.exp(rng.uniform(math.log(60), math.log(1500)))
    spread = rng.choice((0.0, 0.2, 0.6))
    second = rng.random() < 0.25  # a second kind of job
    users = max(4, min(rng.randint(4, 96), int(most_tokens / centre)))
    typical = rng.choice((24, 48, 96, 200))
    allowance = rng.choice((1.0, 1.0, 1.5, 4.0))
    shares = rng.choice((0.0, 0.0, 0.3, 1.0))
    window = rng.choice((0.0, 0.0, 5.0, 30.0))
    bursts = rng.choice((0, 0, 3))
    jobs = []
    for i in range(users):
        middle = centre / 5 if second and rng.random() < 0.5 else centre
        output = round(min(2000, max(16, rng.lognormvariate(math.log(middle), spread))))
        prompt = round(min(400, max(8, rng.lognormvariate(math.log(typical), 0.4))))
        at = window * (rng.randrange(bursts) / bursts if bursts else rng.random())
        limit = max(output, min(6000, round(output * allowance)))
        jobs.append(Job(f"u{i}", at, prompt, output, limit, repeatable=rng.random() < shares))
    most = max(blocks_of(job.prompt + max(job.max_tokens, 384)) + 1 for job in jobs)
    demand = sum(blocks_of(job.prompt + job.output) for job in jobs)
    blocks = max(most, round(demand / math.exp(rng.uniform(math.log(0.5), math.log(20)))))
    return Workload(tuple(sorted(jobs, key=lambda job: job.arrival)), blocks)
