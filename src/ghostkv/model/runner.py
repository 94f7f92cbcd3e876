"""Executes step plans on a model: the only place where scheduling meets tensors."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from ghostkv.model.batch import Batch
from ghostkv.model.kv_tensors import KVTensors
from ghostkv.model.llama import Buffers, Llama
from ghostkv.model.ops import Ops
from ghostkv.model.sampler import Sampler
from ghostkv.model.threads import compute
from ghostkv.step import StepPlan, StepResult


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
        self._threads = limits.threads
        dtype, device = model.head.dtype, model.head.device
        self._buffers = Buffers(model.shape, ops.padded_rows(limits.rows), dtype, device)
        heads = ops.padded_rows(limits.sequences)
        self._logits = torch.zeros(heads, model.shape.vocab, dtype=dtype, device=device)
        self._sampler = Sampler(model.shape.vocab, limits.threads)

    def run(self, plan: StepPlan) -> StepResult:
        """Compute the plan's rows and draw its tokens."""
        start = time.perf_counter()
        draws = [row.draw for row in plan.rows if row.draw is not None]
        with compute(self._threads):
            logits = self.forward(plan)
            tokens = self._sampler.sample(logits, draws) if draws else ()
        return StepResult(tokens, time.perf_counter() - start)

    def forward(self, plan: StepPlan) -> torch.Tensor:
        """Logits [rows with a draw, vocabulary] of the plan, valid until the next call. Call under `threads.compute`."""
        batch = Batch.of(plan)
        self._model.forward(batch, self._kv, self._buffers, self._ops)
        heads = len(batch.heads)
        if heads:
            self._ops.linear(self._buffers.normed, self._model.head, self._logits, heads)
        return self._logits[:heads]
