"""The lower bound of a step, against the sizes of a checkpoint's own tensors."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest

from checkpoints import write_hf_checkpoint
from ghostkv.bench.roofline import Roofline, StepWork
from ghostkv.model.checkpoint import open_checkpoint
from ghostkv.model.peaks import Peaks, measure_peaks


def test_a_step_s_work_is_every_matrix_once_and_the_cache(tmp_path: Path) -> None:
    shape = open_checkpoint(write_hf_checkpoint(tmp_path / "model", hidden=72, heads=6, kv_heads=2)).shape
    matrices = {name: size for name, size in shape.tensor_shapes().items() if len(size) == 2}
    weights = sum(map(prod, matrices.values()))
    if not shape.tied:
        weights -= prod(matrices["model.embed_tokens.weight"])
    work = StepWork.of_decode(shape, 1000, 10.0, sequences=4, context=50.0)
    assert work.bytes == 1000 + 4 * 50 * 10
    scores_and_sums = 2 * shape.layers * shape.heads * shape.head_size * 50
    assert work.macs == 4 * (weights + scores_and_sums)


def test_the_longer_of_the_two_bounds_counts() -> None:
    peaks = Peaks(bytes_per_second=100.0, macs_per_second=1000.0)
    slow = Roofline.of(4.0, StepWork(200.0, 1000.0), peaks)
    assert slow.bound == "memory" and slow.share == pytest.approx(0.5)
    busy = Roofline.of(4.0, StepWork(100.0, 3000.0), peaks)
    assert busy.bound == "compute" and busy.share == pytest.approx(0.75)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "float32"])
def test_peaks_are_measured_for_every_dtype(dtype: str) -> None:
    found = measure_peaks(dtype, 2)
    assert found.bytes_per_second > 1e8 and found.macs_per_second > 1e8
