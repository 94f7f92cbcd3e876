"""Executes step plans on a model: the only place where scheduling meets tensors."""

from __future__ import annotations

import time
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch

from ghostkv.kv.ring import Ring
from ghostkv.model.batch import Batch
from ghostkv.model.decoder import Buffers, Decoder
from ghostkv.model.kv_tensors import KVTensors
from ghostkv.model.ops import Ops
from ghostkv.model.sampler import Sampler
from ghostkv.model.steering import NO_SHIFTS, Steerer
from ghostkv.model.threads import compute
from ghostkv.request import Sampling, Token, Window
from ghostkv.step import BlockTable, Draw, Row, StepPlan, StepResult, Targets


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    """The largest step: rows (tokens) and requests, and the compute threads."""

    rows: int
    sequences: int
    threads: int


class ModelRunner:
    """`step.Runner` over a model, its KV tensors and a sampler."""

    def __init__(
        self, model: Decoder, kv: KVTensors, ops: Ops, limits: RunnerLimits, steerer: Steerer | None = None
    ) -> None:
        self._model = model
        self._kv = kv
        self._ops = ops
        self._limits = limits
        self._steerer = steerer
        rows, device = ops.padded_rows(limits.rows), model.embedding.device
        self._buffers = Buffers(model.shape, rows, model.activations, device)
        self._sampler = Sampler(model.shape.vocab, limits.threads)
        self._head = torch.empty(limits.sequences, model.shape.vocab, device=device)  # logits

    def run(self, plan: StepPlan) -> StepResult:
        """Compute the plan's rows and draw its tokens."""
        start = time.perf_counter()
        draws = [draw for row in plan.rows for draw in row.draws]
        targets = [row.targets for row in plan.rows if row.targets is not None]
        with compute(self._limits.threads):
            logits = self.forward(plan)
            computed = time.perf_counter()
            tokens = self._sampler.sample(logits, draws) if draws else ()
            scored = self._score(len(draws), targets)
        end = time.perf_counter()
        return StepResult(tokens, end - start, end - computed, scored)

    def warm_up(self) -> None:
        """Compile every routine that a request needs; writes to block 0, so before anything is stored."""
        window = Window(0, 1)
        table = np.zeros(Ring(window).blocks, dtype=np.int32)
        for sampling, seen in ((Sampling(temperature=0.0), None), (Sampling(logprobs=1, top_k=2, top_p=0.9), window)):
            self.run(StepPlan(0, 0.0, (Row("warm-up", (0,), 0, table, (Draw(sampling, 0.5),), window=seen),)))

    def forward(self, plan: StepPlan) -> torch.Tensor:
        """Logits [draws, vocabulary], float32, of the plan, valid until the next call.

        Call under `threads.compute`.
        """
        batch = Batch.of(plan)
        shifts = NO_SHIFTS if self._steerer is None else self._steerer.shifts(batch)
        self._model.forward(batch, self._kv, self._buffers, self._ops, shifts)
        return self._logits(0, sum(len(row.draws) for row in plan.rows))

    def residuals(self, ids: Sequence[int], layer: int, table: BlockTable) -> torch.Tensor:
        """The residual stream after block `layer`, float32 [len(ids), hidden], in the basis of the checkpoint.

        Writes the KV of the blocks up to there to `table`.
        """
        model, kv = copy(self._model), copy(self._kv)
        through = slice(layer + 1)
        model.layers, kv.layers = model.layers[through], kv.layers[through]
        pieces = []
        with compute(self._limits.threads):
            for at in range(0, len(ids), self._limits.rows):
                row = Row("residuals", tuple(ids[at : at + self._limits.rows]), at, table, ())
                model.forward(Batch.of(StepPlan(0, 0.0, (row,))), kv, self._buffers, self._ops)
                pieces.append(self._buffers.residual[: len(row.tokens)].clone())
            basis = model.to_residual(torch.eye(model.shape.hidden, device=model.embedding.device))
            return torch.cat(pieces) @ basis.T

    def _score(self, done: int, targets: Sequence[Targets]) -> tuple[tuple[Token, ...], ...]:
        """The targets' tokens, whose heads follow the `done` ones of the draws."""
        asked = [(token_id, row.best) for row in targets for token_id in row.ids]
        found: list[Token] = []
        for at in range(0, len(asked), self._limits.sequences):  # the most rows that the head's product is checked for
            piece = asked[at : at + self._limits.sequences]
            found += self._sampler.score(self._logits(done + at, len(piece)), piece)
        tokens = iter(found)
        return tuple(tuple(islice(tokens, len(row.ids))) for row in targets)

    def _logits(self, first: int, count: int) -> torch.Tensor:
        """Logits [count, vocabulary] of the heads from `first` on; those before them are then lost."""
        normed = self._buffers.normed
        if count == 0:
            return self._head[:0]
        if first:  # products read from the buffer's beginning, where there is room to pad
            normed[:count] = normed[first : first + count].clone()
        self._ops.linear(normed, self._model.head, self._head, count)
        return self._head[:count]
