"""Whether `auto` is as fast as the better of `full` with a queue and `segment`, over random workloads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

from ghostkv.residency import policy
from ghostkv.sim.simulation import Outcome, Setup, Simulation
from ghostkv.sim.workload import Workload, random_workload

POLICIES = ("full", "segment", "auto")
LEAST = 0.95
"""Of the better one's tokens per second."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One workload under each policy."""

    seed: int
    users: int
    tokens: int
    pressure: float
    blocks: int
    rates: dict[str, float]  # policy -> output tokens per second, over the whole run
    sustained: dict[str, float]  # likewise, over the first 90 % of all tokens
    flushes: dict[str, int]

    @property
    def whole(self) -> float:
        """`auto` over the better of the others, over the whole run: the last few to run weigh as much as all else."""
        return _share(self.rates)

    @property
    def share(self) -> float:
        """`auto` over the better of the others, while there is something to choose."""
        return _share(self.sustained)


def compare(workload: Workload, setup: Setup, policies: Iterable[str] = POLICIES) -> list[Outcome]:
    """The workload under each policy."""
    return [Simulation(workload, policy(name), setup).run() for name in policies]


def trial(seed: int, setup: Setup, most_tokens: int = 12_000) -> Trial:
    """Random workload `seed`."""
    workload = random_workload(seed, most_tokens=most_tokens)
    outcomes = compare(workload, setup)
    return Trial(
        seed=seed,
        users=len(workload.jobs),
        tokens=outcomes[0].tokens,
        pressure=workload.pressure,
        blocks=workload.blocks,
        rates={outcome.policy: outcome.tokens_per_second for outcome in outcomes},
        sustained={outcome.policy: outcome.sustained for outcome in outcomes},
        flushes={outcome.policy: outcome.flushes for outcome in outcomes},
    )


def trials(
    seeds: Iterable[int], setup: Setup, workers: int = 1, told: Callable[[Trial], None] = lambda _: None
) -> Iterator[Trial]:
    """Random workloads, in order, on so many processes; `told` of each as it ends."""
    run = partial(trial, setup=setup)
    if workers == 1:
        for seed in seeds:
            done = run(seed)
            told(done)
            yield done
        return
    with ProcessPoolExecutor(workers) as processes:
        for done in processes.map(run, seeds):
            told(done)
            yield done


def _share(rates: dict[str, float]) -> float:
    return rates["auto"] / max(rates["full"], rates["segment"])
