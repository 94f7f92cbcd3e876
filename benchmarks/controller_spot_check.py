"""Twenty of the random workloads of `ghostkv sim --acceptance`, for real: SmolLM2, the real clock, the real boundaries.

Of the workloads whose clients allow just what the model says, small ones are taken, as many from each of five ranges of
KV demand over pool. Each runs under `full`, `segment` and `auto` in turn, the order rotated with every repeat, in one
process whose pool is the workload's. A row says tokens per second of each, `auto` over the better of the others, and
the same as simulated. What is in results/controller_spot_check.jsonl is not run again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Iterator
from contextlib import aclosing
from itertools import islice
from pathlib import Path
from pydoc_data.topics import topics

from record import RESULTS, append

from ghostkv.config import EngineConfig
from ghostkv.launch import open_worker
from ghostkv.model.load import pool_bytes
from ghostkv.model.pull import resolve_model
from ghostkv.request import Sampling
from ghostkv.session.turn import Finished, Output, Turn
from ghostkv.session.worker import Worker
from ghostkv.sim.acceptance import POLICIES, Trial, trial
from ghostkv.sim.hardware import SMALL_CPU, read_hardware
from ghostkv.sim.simulation import Setup
from ghostkv.sim.workload import Job, Workload, random_workload

NAME = "controller_spot_check"
RANGES = ((0.0, 1.0), (1.0, 2.0), (2.0, 4.0), (4.0, 8.0), (8.0, 99.0))  # demand over pool
EACH = 4
LEAST_BLOCKS = 24  # `segment` needs so many
MOST_TOKENS = 4_000
LEAST_TOKENS = 1_000


def chosen() -> Iterator[tuple[int, Workload]]:
    """The first `EACH` that are small in every range."""
    for low, high in RANGES:
        yield from islice(_small(low, high), EACH)


def _small(low: float, high: float) -> Iterator[tuple[int, Workload]]:
    for seed in range(1000):
        workload = random_workload(seed)
        tokens = sum(job.output for job in workload.jobs)
        if (
            low <= workload.pressure < high
            and LEAST_TOKENS <= tokens <= MOST_TOKENS
            and workload.blocks >= LEAST_BLOCKS
            and all(job.output == job.max_tokens for job in workload.jobs)
        ):
            yield seed, workload


def turns(workload: Workload, worker: Worker, residency: str, run: str) -> list[tuple[Job, Turn]]:
    """Prompts of just the lengths, from different places of a text, so that nothing is shared."""
    text = "\n\n".join(topics[name] for name in sorted(topics))
    ids = worker.tokenizer.encode(text[: 5_000 * len(workload.jobs)])
    places = random.Random(1).sample(range(len(ids) - 500), len(workload.jobs))
    found = []
    for index, (job, place) in enumerate(zip(workload.jobs, places, strict=True)):
        turn = Turn(
            id=f"{run}-{job.name}",
            sampling=Sampling(temperature=0.8, seed=index),
            max_tokens=job.output,
            prompt=tuple(ids[place : place + job.prompt]),
            ignore_eos=True,
            residency=residency,
            seeded=job.repeatable,
            share_group=run,  # no block of another run is found
        )
        found.append((job, turn))
    return found


async def timed(workload: Workload, worker: Worker, residency: str, run: str) -> tuple[float, int]:
    """Output tokens per second from the first arrival to the last token; flushes."""
    asked = turns(workload, worker, residency, run)
    begun = time.perf_counter() - workload.jobs[0].arrival
    tokens = flushes = 0

    async def one(job: Job, turn: Turn) -> None:
        nonlocal tokens, flushes
        await asyncio.sleep(begun + job.arrival - time.perf_counter())
        async with aclosing(worker.run(turn)) as events:
            async for event in events:
                if isinstance(event, Output):
                    tokens += len(event.tokens)
                elif isinstance(event, Finished):
                    flushes += len(event.segments) - 1

    await asyncio.gather(*(one(job, turn) for job, turn in asked))
    return tokens / (time.perf_counter() - begun - workload.jobs[0].arrival), flushes


def measure(seed: int, workload: Workload, repeats: range, simulated: Trial) -> Iterator[dict[str, object]]:
    """A row for each repeat."""
    path, config = resolve_model("smollm2", print), EngineConfig(speculation="off", max_waiting=100_000)
    config = EngineConfig(speculation="off", max_waiting=100_000, kv_budget=pool_bytes(path, config, workload.blocks))
    worker = open_worker("smollm2", config, residency="full")
    try:
        small = Workload(tuple(Job(f"w{i}", 0.0, 16, 32, 32) for i in range(2)), workload.blocks)
        asyncio.run(timed(small, worker, "full", f"warm-{seed}"))
        for repeat in repeats:
            found = {}
            for name in (*POLICIES[repeat % 3 :], *POLICIES[: repeat % 3]):
                found[name] = asyncio.run(timed(workload, worker, name, f"{seed}-{repeat}-{name}"))
            rates = {name: rate for name, (rate, _) in found.items()}
            yield {
                "seed": seed,
                "repeat": repeat,
                "users": len(workload.jobs),
                "tokens": sum(job.output for job in workload.jobs),
                "blocks": workload.blocks,
                "pressure": workload.pressure,
                "rates": rates,
                "flushes": {name: flushes for name, (_, flushes) in found.items()},
                "whole": rates["auto"] / max(rates["full"], rates["segment"]),
                "simulated_rates": simulated.rates,
                "simulated_whole": simulated.whole,
            }
    finally:
        worker.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", type=int, default=EACH * len(RANGES), help="how many of the twenty")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--hardware", type=Path, help="costs for the simulated figures, as for ghostkv sim")
    asked = parser.parse_args()
    setup = Setup(SMALL_CPU if asked.hardware is None else read_hardware(asked.hardware))
    file = RESULTS / f"{NAME}.jsonl"
    done = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
    for seed, workload in islice(chosen(), asked.workloads):
        first = sum(row["seed"] == seed for row in done)
        if first >= asked.repeats:
            continue
        simulated = trial(seed, setup)
        for row in measure(seed, workload, range(first, asked.repeats), simulated):
            append(NAME, [row])
            print(
                f"{seed:4}  {row['users']:3} users  {row['pressure']:5.2f} x pool  auto / better: "
                f"{row['whole']:.3f} measured, {row['simulated_whole']:.3f} simulated",
                flush=True,
            )


if __name__ == "__main__":
    main()
