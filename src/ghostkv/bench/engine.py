"""`ghostkv bench engine`: tokens per second at several batch sizes, and where the time of a step goes.

The engine alone, on the calling thread: no server, no segments, KV ample. Prompts are distinct, so nothing is shared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

import numpy as np

from ghostkv.bench.roofline import Roofline, StepWork
from ghostkv.config import EngineConfig
from ghostkv.engine.admission import Limits
from ghostkv.engine.clock import MonotonicClock
from ghostkv.engine.engine import Engine
from ghostkv.engine.scheduler import Scheduler
from ghostkv.engine.speculation import Speculation
from ghostkv.kv.pool import BlockPool
from ghostkv.model.load import LoadedModel, load_model, pool_bytes, runner_limits
from ghostkv.model.ops import Ops
from ghostkv.model.peaks import Peaks, measure_peaks
from ghostkv.request import Delta, GenerationState, Sampling, SegmentRequest
from ghostkv.residency import policy
from ghostkv.step import BLOCK_TOKENS, Runner, StepPlan, StepResult, blocks_of
from ghostkv.text.detokenizer import Detokenizer

GREEDY = Sampling(temperature=0.0)
PARTS = ("gemm", "attention", "sampling", "scheduling", "rest")


@dataclass(frozen=True, slots=True)
class Workload:
    """What every cell runs: `prompt` tokens in, exactly `tokens` out, greedy, for each batch size in `sequences`."""

    sequences: tuple[int, ...] = (1, 8, 32, 64, 128)
    prompt: int = 64
    tokens: int = 128
    repeats: int = 5


@dataclass(frozen=True, slots=True)
class Cell:
    """One batch size: medians over the repeats."""

    sequences: int
    tokens_per_second: float  # output tokens over the whole run, prefill included
    first_token_s: float  # until every sequence has its first token
    shares: dict[
        str, float
    ]  # each of PARTS -> share of the run's wall time; `rest`: norms, rotary, activations, Python
    roofline: Roofline  # of a step that decodes all of them and does nothing else


class OpTimer:
    """Stands in for an `Ops` and adds up the seconds of each operator."""

    def __init__(self, ops: Ops) -> None:
        self.seconds: dict[str, float] = {}
        self._ops = ops

    def __getattr__(self, name: str) -> Callable[..., object]:
        operator = getattr(self._ops, name)

        def timed(*arguments: object) -> object:
            start = time.perf_counter()
            result = operator(*arguments)
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
            return result

        setattr(self, name, timed)
        return timed

    def spent(self, *names: str) -> float:
        """Seconds of these operators together."""
        return sum(self.seconds.get(name, 0.0) for name in names)


class RunTimer:
    """Stands in for a runner and adds up what its results say."""

    def __init__(self, model: LoadedModel) -> None:
        self._runner = model.runner
        self.seconds = self.sampling_s = 0.0
        self.decodes: list[tuple[int, float, float]] = []  # steps without prefill: sequences, mean context, seconds

    def run(self, plan: StepPlan) -> StepResult:
        """Run `plan`."""
        result = self._runner.run(plan)
        self.seconds += result.seconds
        self.sampling_s += result.sampling_s
        if all(len(row.tokens) == 1 for row in plan.rows):
            self.decodes.append((len(plan.rows), fmean(row.start + 1 for row in plan.rows), result.seconds))
        return result


def bench_engine(
    path: Path, config: EngineConfig, workload: Workload, announce: Callable[[str], None] = lambda _: None
) -> Iterator[Cell]:
    """Measure one cell after the other, over a pool that holds the largest."""
    timers: list[OpTimer] = []

    def instrument(ops: Ops) -> Ops:
        timers.append(OpTimer(ops))
        return timers[0]  # type: ignore[return-value]  # it forwards every attribute

    blocks = max(workload.sequences) * blocks_of(workload.prompt + workload.tokens)
    config = replace(config, kv_budget=pool_bytes(path, config, blocks))
    model = load_model(path, config, announce, instrument)
    announce("measuring memory bandwidth and the product's peak")
    peaks = measure_peaks(config.dtype, runner_limits(config).threads)
    _measure(model, config, timers[0], replace(workload, tokens=4), 2, peaks)  # compiles, and faults pages in
    for sequences in workload.sequences:
        runs = [_measure(model, config, timers[0], workload, sequences, peaks) for _ in range(workload.repeats)]
        yield Cell(
            sequences=sequences,
            tokens_per_second=median(run.tokens_per_second for run in runs),
            first_token_s=median(run.first_token_s for run in runs),
            shares={part: median(run.shares[part] for run in runs) for part in PARTS},
            roofline=sorted((run.roofline for run in runs), key=lambda found: found.step_s)[len(runs) // 2],
        )


def prompts(count: int, length: int, vocab: int) -> list[tuple[int, ...]]:
    """Distinct prompts of ordinary ids, the same for every engine that is compared."""
    generator = np.random.default_rng(count)
    return [tuple(generator.integers(1000, vocab - 1000, length).tolist()) for _ in range(count)]


def filled(
    model: LoadedModel,
    config: EngineConfig,
    runner: Runner,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    sampling: Sampling = GREEDY,
    speculation: Speculation | None = None,
) -> Engine:
    """An engine over a fresh pool that is to decode exactly `tokens` tokens after each prompt, all at once."""
    checkpoint = model.checkpoint
    limits = Limits.of(config, checkpoint.shape.context)
    scheduler = Scheduler(BlockPool(model.blocks), limits, Detokenizer(checkpoint.tokenizer), speculation)
    engine = Engine(scheduler, runner, MonotonicClock())
    for index, ids in enumerate(prompts):
        engine.add(SegmentRequest(str(index), tuple(ids), sampling, GenerationState(), policy("full"), tokens))
    return engine


def decode(
    model: LoadedModel, config: EngineConfig, runner: Runner, prompts: Sequence[Sequence[int]], tokens: int
) -> Iterator[Delta]:
    """Every delta of decoding exactly `tokens` tokens after each prompt, greedily and plainly, all at once."""
    engine = filled(model, config, runner, prompts, tokens)
    while not engine.idle:
        yield from engine.step()


def _measure(
    model: LoadedModel, config: EngineConfig, ops: OpTimer, workload: Workload, sequences: int, peaks: Peaks
) -> Cell:
    runner = RunTimer(model)
    rows = prompts(sequences, workload.prompt, model.checkpoint.shape.vocab)
    ops.seconds.clear()
    first: dict[str, float] = {}
    generated = 0
    start = time.perf_counter()
    for delta in decode(model, config, runner, rows, workload.tokens):
        first.setdefault(delta.request_id, time.perf_counter() - start)
        generated += len(delta.tokens)
    wall = time.perf_counter() - start
    seconds = {
        "gemm": ops.spent("linear", "gated"),
        "attention": ops.spent("attend", "attend_windowed"),
        "sampling": runner.sampling_s,
        "scheduling": wall - runner.seconds,
    }
    seconds["rest"] = wall - sum(seconds.values())
    shares = {part: value / wall for part, value in seconds.items()}
    return Cell(sequences, generated / wall, max(first.values()), shares, _roofline(model, runner, sequences, peaks))


def _roofline(model: LoadedModel, runner: RunTimer, sequences: int, peaks: Peaks) -> Roofline:
    """Of the median step that decoded all sequences."""
    steps = [(context, seconds) for rows, context, seconds in runner.decodes if rows == sequences]
    per_token = model.block_bytes / BLOCK_TOKENS
    context = fmean(context for context, _ in steps)
    work = StepWork.of_decode(model.checkpoint.shape, model.product_bytes, per_token, sequences, context)
    return Roofline.of(median(seconds for _, seconds in steps), work, peaks)
