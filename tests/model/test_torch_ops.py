"""The plain torch operators and the compiled ones run the same model; other devices take the former."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from ghostkv.model.kv_tensors import KVTensors
from ghostkv.model.runner import ModelRunner, RunnerLimits
from ghostkv.model.threads import compute
from ghostkv.model.torch_ops import TorchOps
from ghostkv.step import Draw, Row, StepPlan
from model.lab import GREEDY, ROWS, SEQUENCES, Lab


@pytest.mark.parametrize(
    ("dtype", "kv_dtype"),
    [(torch.float32, torch.float32), (torch.int8, torch.float32), (torch.float32, torch.int8)],
)
def test_both_give_the_same_logits(small_hf: Path, dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
    lab = Lab(small_hf, dtype)
    draws = (Draw(GREEDY, 0.0),)
    tables = [np.arange(8, dtype=np.int32), np.arange(8, 16, dtype=np.int32)]
    both = tables[1], draws
    ids = np.random.default_rng(0).integers(0, lab.shape.vocab, (2, 60)).tolist()
    plans = [
        StepPlan(
            0, 0.0, (Row("a", tuple(ids[0][:40]), 0, tables[0], draws), Row("b", tuple(ids[1]), 0, tables[1], draws))
        ),
        StepPlan(1, 0.0, (Row("a", tuple(ids[0][40:]), 40, tables[0], draws),)),
        StepPlan(2, 0.0, (Row("a", (7,), 60, tables[0], draws), Row("b", (9,), 60, *both))),
    ]
    found = []
    for ops in (lab.ops, TorchOps()):
        kv = KVTensors(lab.shape, 16, kv_dtype, torch.device("cpu"))
        runner = ModelRunner(lab.model, kv, ops, RunnerLimits(ROWS, SEQUENCES, 2))
        with compute(2):
            found.append([runner.forward(plan).clone() for plan in plans])
    for ours, reference in zip(*found, strict=True):
        assert ours.shape == reference.shape
        # A digit may fall on the other side of a tie, which moves an input by 1 % of the row's largest.
        tolerance = 2e-2 if torch.int8 in (dtype, kv_dtype) else 1e-4
        assert (ours - reference).abs().max() < tolerance * reference.abs().max()
