"""Executes step plans on a model: the only place where scheduling meets tensors."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from ghostkv.model.batch import Batch
from ghostkv.model.kv_tensors import KVTensors
from ghostkv.model.llama import Buffers, Llama
from ghostkv.model.ops import Ops
from ghostkv.model.sampler import Sampler
from ghostkv.model.threads import compute
from ghostkv.request import Sampling
from ghostkv.step import BlockTable, Draw, Row, StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    """The largest step: rows (tokens) and requests, and the compute threads."""

    rows: int
    sequences: int
    threads: int


class ModelRunner:
    """`step.Runner` over a model, its KV tensors and a sampler."""

    def __init__(self, model: Llama, kv: KVTensors, ops: Ops, limits: RunnerLimits) -> None:
        self._model = model
        self._kv = kv
        self._ops = ops
        self._limits = limits
        dtype, device = model.embedding.dtype, model.embedding.device
        self._buffers = Buffers(model.shape, ops.padded_rows(limits.rows), dtype, device)
        self._sampler = Sampler(model.shape.vocab, limits.threads)

    def run(self, plan: StepPlan) -> StepResult:
        """Compute the plan's rows and draw its tokens."""
        start = time.perf_counter()
        draws = [row.draw for row in plan.rows if row.draw is not None]
        with compute(self._limits.threads):
            logits = self.forward(plan)
            computed = time.perf_counter()
            tokens = self._sampler.sample(logits, draws) if draws else ()
        end = time.perf_counter()
        return StepResult(tokens, end - start, end - computed)

    def warm_up(self) -> None:
        """Compile every routine that a request needs; writes to block 0, so before anything is stored."""
        table = np.zeros(1, dtype=np.int32)
        for sampling in (Sampling(temperature=0.0), Sampling(logprobs=1, top_k=2, top_p=0.9)):
            self.run(StepPlan(0, 0.0, (Row("warm-up", (0,), 0, table, Draw(sampling, 0.5)),)))

    def forward(self, plan: StepPlan) -> torch.Tensor:
        """Logits [rows with a draw, vocabulary] of the plan, valid until the next call.

        Call under `threads.compute`.
        """
        return self._logits_of(Batch.of(plan))

    def score(self, ids: Sequence[int], start: int, table: BlockTable) -> list[float]:
        """Natural log-probability of each of ids[start:] given all before it (start >= 1).

        Writes their KV to `table`.
        """
        found: list[float] = []
        with compute(self._limits.threads):
            for at, logits in self.teacher_forced(ids[:-1], start - 1, table):
                targets = ids[at + 1 : at + 1 + len(logits)]
                found += self._sampler.log_probabilities(logits, targets)
        return found

    def teacher_forced(self, ids: Sequence[int], start: int, table: BlockTable) -> Iterator[tuple[int, torch.Tensor]]:
        """Logits of positions `start` on, as (first position, rows), in pieces. Call under `threads.compute`."""
        chunk = min(self._limits.sequences, self._limits.rows)
        for at in range(0, len(ids), chunk):
            row = Row("score", tuple(ids[at : at + chunk]), at, table, None)
            first = max(start - at, 0)
            heads = np.arange(first, len(row.tokens))
            logits = self._logits_of(replace(Batch.of(StepPlan(0, 0.0, (row,))), heads=heads))
            if len(heads):
                yield at + first, logits

    def _logits_of(self, batch: Batch) -> torch.Tensor:
        self._model.forward(batch, self._kv, self._buffers, self._ops)
        heads = len(batch.heads)
        if heads == 0:
            return self._buffers.normed.new_empty(0, self._model.shape.vocab)
        return self._ops.linear(self._buffers.normed, self._model.head, heads)[:heads]
