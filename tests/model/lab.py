"""A synchronous engine over a real runner that keeps every logits row it computed, for bitwise comparison."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ghostkv.engine.admission import Limits
from ghostkv.engine.clock import MonotonicClock
from ghostkv.engine.engine import Engine
from ghostkv.engine.scheduler import Scheduler
from ghostkv.engine.speculation import Speculation
from ghostkv.kv.pool import BlockPool
from ghostkv.kv.ring import Ring
from ghostkv.model.checkpoint import open_checkpoint
from ghostkv.model.cpu_ops import CPUOps
from ghostkv.model.decoder import Decoder
from ghostkv.model.gemm import Product, product
from ghostkv.model.int8_weights import int8_weights
from ghostkv.model.kv_tensors import KVTensors
from ghostkv.model.runner import ModelRunner, RunnerLimits
from ghostkv.model.selfcheck import SelfCheck, self_check
from ghostkv.model.steering import Steerer
from ghostkv.model.threads import compute
from ghostkv.request import Finish, GenerationState, Sampling, SegmentRequest, Token, Window
from ghostkv.residency import policy
from ghostkv.step import BlockTable, Draw, Row, StepPlan, Targets
from ghostkv.text.detokenizer import Detokenizer
from ghostkv.text.tokenizer import Tokenizer

GREEDY = Sampling(temperature=0.0)
ROWS, SEQUENCES = 192, 24


class RecordingRunner(ModelRunner):
    """Keeps logits by (request, tokens before the next one)."""

    logits: dict[tuple[str, int], torch.Tensor]

    def forward(self, plan: StepPlan) -> torch.Tensor:
        logits = super().forward(plan)
        rows = iter(logits)
        for row in plan.rows:
            end = row.start + len(row.tokens)
            for length in range(end - len(row.draws) + 1, end + 1):
                self.logits[row.request_id, length] = next(rows).clone()
        return logits


@dataclass
class Run:
    """What came out, by request id."""

    ids: dict[str, list[int]]
    text: dict[str, str]
    finish: dict[str, Finish]
    scored: dict[str, list[Token]]
    logits: dict[tuple[str, int], torch.Tensor]

    def rows(self, request_id: str) -> dict[int, torch.Tensor]:
        return {at: values for (request, at), values in self.logits.items() if request == request_id}


class Lab:
    """One loaded model; `engine` gives fresh pools over it."""

    def __init__(
        self,
        path: Path,
        dtype: torch.dtype,
        *,
        kv_dtype: torch.dtype | None = None,
        threads: int = 2,
        product: Product = product,
        cache: Path | None = None,
    ) -> None:
        checkpoint = open_checkpoint(path)
        self.shape = checkpoint.shape
        self.tokenizer: Tokenizer = checkpoint.tokenizer
        plain = torch.bfloat16 if dtype is torch.int8 else dtype
        self.kv_dtype = kv_dtype or plain
        weights, int8 = checkpoint.weights(plain), dtype is torch.int8
        if int8:
            weights = int8_weights(checkpoint.shape, weights)
        self.model = Decoder(checkpoint.shape, weights, torch.device("cpu"), int8=int8)
        limits: Mapping[str, int] = {name: SEQUENCES if name == "head" else ROWS for name in self.model.products()}
        self.check: SelfCheck = self_check(
            self.model.products(), limits, threads, print, product=product, directory=cache
        )
        self.ops = CPUOps(self.shape, self.check.plans, threads, product)
        self.threads = threads
        self.dtype = dtype
        self.digest = checkpoint.digest
        self.steerer: Steerer | None = None

    def runner(self, blocks: int) -> RecordingRunner:
        kv = KVTensors(self.shape, blocks, self.kv_dtype, torch.device("cpu"))
        runner = RecordingRunner(self.model, kv, self.ops, RunnerLimits(ROWS, SEQUENCES, self.threads), self.steerer)
        runner.logits = {}
        return runner

    def engine(
        self,
        *,
        blocks: int = 256,
        step_tokens: int = ROWS,
        sequences: int = SEQUENCES,
        speculation: Speculation | None = None,
    ) -> LabEngine:
        return LabEngine(self, blocks, step_tokens, sequences, speculation)


class LabEngine(Engine):
    """An engine that runs until idle and returns everything."""

    def __init__(
        self, lab: Lab, blocks: int, step_tokens: int, sequences: int, speculation: Speculation | None = None
    ) -> None:
        self.runner = lab.runner(blocks)
        limits = Limits(lab.shape.context, max_sequences=sequences, step_tokens=step_tokens)
        scheduler = Scheduler(BlockPool(blocks), limits, Detokenizer(lab.tokenizer), speculation)
        super().__init__(scheduler, self.runner, MonotonicClock())

    def run(self, requests: Iterable[SegmentRequest], *, every: int = 0) -> Run:
        """Add one request each `every` steps (all at once for 0), run to the end."""
        waiting = list(requests)
        out = Run(
            {r.id: [] for r in waiting},
            {r.id: "" for r in waiting},
            {},
            {r.id: [] for r in waiting},
            self.runner.logits,
        )
        step = 0
        while waiting or not self.idle:
            while waiting and (every == 0 or self.idle or step % every == 0):
                self.add(waiting.pop(0))
                if every:
                    break
            for delta in self.step():
                out.ids[delta.request_id] += [token.id for token in delta.tokens]
                out.text[delta.request_id] += delta.text
                out.scored[delta.request_id] += delta.prompt
                if delta.finish is not None:
                    out.finish[delta.request_id] = delta.finish
            step += 1
        self.scheduler.check_integrity()
        return out


def request(name: str, prompt: Iterable[int], tokens: int, sampling: Sampling = GREEDY) -> SegmentRequest:
    prompt = tuple(prompt)
    state = GenerationState(client_ids=frozenset(prompt))
    return SegmentRequest(name, prompt, sampling, state, policy("full"), tokens)


def teacher_forced(runner: ModelRunner, ids: Sequence[int], table: BlockTable) -> torch.Tensor:
    """Logits of every position, float32 [len(ids), vocabulary]: each token as a row of its own."""
    pieces = []
    for at in range(0, len(ids), SEQUENCES):
        tokens = enumerate(ids[at : at + SEQUENCES], at)
        rows = tuple(Row("forced", (token,), place, table, (Draw(GREEDY, 0.0),)) for place, token in tokens)
        with compute(2):
            pieces.append(runner.forward(StepPlan(0, 0.0, rows)).float().clone())
    return torch.cat(pieces)


def score(
    runner: ModelRunner, ids: Sequence[int], start: int, table: BlockTable, window: Window | None = None
) -> list[float | None]:
    """Log-probabilities of ids[start:], read in chunks that are as large as they may be."""
    found: list[float | None] = []
    at = 0
    while at < len(ids) - 1:
        end = min(len(ids) - 1, at + ROWS) if window is None else min(len(ids) - 1, Ring(window).chunk_end(at))
        first = max(at, start - 1)
        targets = Targets(first - at, tuple(ids[first + 1 : end + 1]), 0) if first < end else None
        row = Row("score", tuple(ids[at:end]), at, table, (), window=window, targets=targets)
        found += [token.logprob for part in runner.run(StepPlan(0, 0.0, (row,))).scored for token in part]
        at = end
    return found


def renamed(value: SegmentRequest, name: str) -> SegmentRequest:
    return replace(value, id=name)


def same_bits(left: Mapping[int, torch.Tensor], right: Mapping[int, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(
        torch.equal(left[at].view(torch.uint8), right[at].view(torch.uint8)) for at in left
    )
