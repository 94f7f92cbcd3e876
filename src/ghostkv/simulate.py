"""`ghostkv sim`: policies side by side in simulation. Nothing is computed, so it takes seconds."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from ghostkv.engine.step_cost import StepTimes
    from ghostkv.sim.simulation import Setup


def sim(
    users: Annotated[int, typer.Option(min=1, help="Answers asked for.")] = 64,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 48,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of each answer.")] = 1000,
    max_tokens: Annotated[int, typer.Option(min=0, help="What clients allow; 0: just those tokens.")] = 0,
    spread: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Between two arrivals.")] = 0.0,
    pool: Annotated[int, typer.Option(min=1, help="Tokens that the KV pool holds.")] = 2176,
    max_wait: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Then sessions take turns.")] = 10.0,
    hardware: Annotated[
        Path | None,
        typer.Option(help="Costs of a step: results of benchmarks/engine.py, or JSON of base, row, prefill, read."),
    ] = None,
    acceptance: Annotated[
        int, typer.Option(min=0, help="Instead: so many random workloads, auto against the better of the others.")
    ] = 0,
    first: Annotated[int, typer.Option(min=0, help="The first random workload.")] = 0,
    workers: Annotated[int, typer.Option(min=1, help="Processes for them.")] = 1,
    table4: Annotated[  # noqa: FBT002
        bool, typer.Option("--table4", help="Instead: 128-256 users x 192, 250 tokens on --hardware's machine.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write each random workload as a JSON line.")] = None,
) -> None:
    """Simulate a workload under several residency policies. Every number is simulated."""
    from ghostkv.sim.acceptance import compare
    from ghostkv.sim.hardware import SMALL_CPU, read_hardware
    from ghostkv.sim.simulation import Setup
    from ghostkv.sim.workload import Workload, equal_jobs
    from ghostkv.step import BLOCK_TOKENS
    from ghostkv.terminal import Progress

    setup = Setup(SMALL_CPU if hardware is None else read_hardware(hardware))
    setup = replace(setup, limits=replace(setup.limits, max_wait_s=max_wait))
    if table4:
        if hardware is None:
            raise typer.BadParameter("--table4 needs --hardware FILE with an object `memory`")
        _table4(hardware, setup.times, prompt)
        return
    if acceptance:
        _accept(range(first, first + acceptance), setup, workers, out)
        return
    jobs = equal_jobs(users, prompt, tokens, spread_s=spread, max_tokens=max_tokens or None)
    workload = Workload(jobs, max(1, pool // BLOCK_TOKENS))
    table = Table(title=f"simulated: {users} x {tokens} tokens, KV demand {workload.pressure:.1f} x the pool")
    for column in ("policy", "tokens/s", "p50 s", "p95 s", "first token p95 s", "flushes", "peak blocks"):
        table.add_column(column, justify="left" if column == "policy" else "right")
    with Progress() as progress:
        for name in ("full", "segment", "auto"):
            progress(f"simulating {name}")
            for outcome in compare(workload, setup, (name,)):
                table.add_row(
                    outcome.policy,
                    f"{outcome.tokens_per_second:.0f}",
                    f"{outcome.latency_s(0.5):.1f}",
                    f"{outcome.latency_s(0.95):.1f}",
                    f"{outcome.first_token_s(0.95):.1f}",
                    str(outcome.flushes),
                    f"{outcome.peak_blocks} of {workload.blocks}",
                )
    Console().print(table)


def _table4(hardware: Path, times: StepTimes, prompt: int) -> None:
    from ghostkv.sim.memory import read_memory
    from ghostkv.sim.table4 import CELLS, cells
    from ghostkv.step import BLOCK_TOKENS
    from ghostkv.terminal import Progress

    memory, giga = read_memory(hardware), 1e9
    table = Table(title=f"simulated: prompts of {prompt} tokens, a pool of {memory.blocks * BLOCK_TOKENS} tokens")
    for column in ("users x tokens", "demand / pool", "F2 GB", "F3 GB", "policy", "tokens/s", "p50 s", "p95 s"):
        table.add_column(column, justify="right")
    table.add_column("peak GB", justify="right")
    table.add_column("flushes", justify="right")
    with Progress() as progress:
        for done, cell in enumerate(cells(times, memory, prompt), 1):
            progress(f"{done} of {3 * len(CELLS)} simulated")
            outcome = cell.outcome
            table.add_row(
                f"{cell.users} x {cell.tokens}",
                f"{cell.demand:.2f}",
                f"{cell.whole / giga:.1f}",
                f"{cell.segmented / giga:.1f}",
                outcome.policy,
                f"{outcome.tokens_per_second:.1f}",
                f"{outcome.latency_s(0.5):.1f}",
                f"{outcome.latency_s(0.95):.1f}",
                f"{cell.peak / giga:.1f}",
                str(outcome.flushes),
            )
    Console().print(table)
    for users, tokens in CELLS:
        print(
            f"by F1 and F2 memory binds {users} users x {tokens} tokens from prompts of "
            f"{memory.prompt_to_fill(users, tokens)} tokens on ({memory.token_bytes:.0f} bytes per token)"
        )


def _accept(seeds: range, setup: Setup, workers: int, out: Path | None) -> None:
    from ghostkv.sim.acceptance import LEAST, Trial, trials
    from ghostkv.terminal import Progress

    done: list[Trial] = []
    with Progress() as progress:

        def told(trial: Trial) -> None:
            done.append(trial)
            progress(f"{len(done)} of {len(seeds)} workloads, worst {min(each.share for each in done):.3f}")

        for trial in trials(seeds, setup, workers, told):
            if out is not None:
                with out.open("a", encoding="utf-8") as file:
                    print(json.dumps(asdict(trial) | {"share": trial.share, "whole": trial.whole}), file=file)
    for name, shares in (
        ("first 90 % of tokens", sorted(trial.share for trial in done)),
        ("whole run", sorted(trial.whole for trial in done)),
    ):
        below = sum(share < LEAST for share in shares)
        print(
            f"simulated, {name}: auto over the better of full and segment: worst {shares[0]:.3f}, "
            f"5th percentile {shares[len(shares) // 20]:.3f}, median {shares[len(shares) // 2]:.3f}; "
            f"{below} of {len(shares)} below {LEAST}"
        )
    worst = sorted(done, key=lambda trial: trial.share)[:5]
    print("worst workloads: " + ", ".join(f"{trial.seed} ({trial.share:.3f})" for trial in worst))
