"""The numeric contract: one request's logits, bit for bit, whatever happens around it."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from checkpoints import write_hf_checkpoint
from ghostkv.errors import ModelError
from ghostkv.model import panels
from ghostkv.model.cpu_ops import CPUOps
from ghostkv.model.gemm import Linear, Product, product
from ghostkv.model.steering import Steerer, SteeringBank
from ghostkv.request import Sampling, SegmentRequest, Steering
from model.lab import Lab, Run, renamed, request, same_bits

TEXT = (
    "The harbour master wrote down 14 ships that morning, three of them from Lisbon. By noon the fog had come in again "
    "and nobody could see the lighthouse from the quay, which is why the fourth ship was not counted until evening."
)
SEEDED = Sampling(temperature=0.9, top_p=0.95, seed=11, repetition_penalty=1.1)

ODD_SHAPES: dict[str, dict[str, Any]] = {
    "odd": {"hidden": 72, "heads": 3, "kv_heads": 3, "intermediate": 100, "layers": 3},
    "wide": {"hidden": 200, "heads": 5, "kv_heads": 1, "intermediate": 1100, "layers": 2, "head_size": 128},
}


# The real model is checked in its serving dtypes, float32 on the small ones. int8 stands for integer products.
MODELS = [
    ("smollm2", torch.bfloat16, None),
    ("smollm2", torch.int8, None),
    ("smollm2", torch.bfloat16, torch.int8),
    *((name, dtype, None) for name in ODD_SHAPES for dtype in (torch.bfloat16, torch.float32, torch.int8)),
    ("odd", torch.float32, torch.int8),
    ("wide", torch.int8, torch.int8),
]
Model = tuple[Path, torch.dtype, torch.dtype | None]  # the last: of KV, None for the model's own


def model_id(param: tuple[str, torch.dtype, torch.dtype | None]) -> str:
    name, dtype, kv_dtype = param
    return f"{name}-{dtype}{'' if kv_dtype is None else f'-kv-{kv_dtype}'}".replace("torch.", "")


@pytest.fixture(scope="module", params=MODELS, ids=model_id)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    name, *dtypes = request.param
    if name == "smollm2":
        return request.getfixturevalue("smollm2_path"), *dtypes
    return write_hf_checkpoint(tmp_path_factory.mktemp("odd") / name, **ODD_SHAPES[name]), *dtypes


@pytest.fixture(scope="module")
def path(model: Model) -> Path:
    return model[0]


@pytest.fixture(scope="module")
def lab(model: Model) -> Lab:
    path, dtype, kv_dtype = model
    return Lab(path, dtype, kv_dtype=kv_dtype)


@pytest.fixture(scope="module")
def subject(lab: Lab) -> SegmentRequest:
    ids = lab.tokenizer.encode(TEXT)
    return request("subject", (ids * 3)[:110], 12, SEEDED)


@pytest.fixture(scope="module")
def alone(lab: Lab, subject: SegmentRequest) -> Run:
    return lab.engine().run([subject])


def others(lab: Lab, count: int) -> list[SegmentRequest]:
    ids = lab.tokenizer.encode(TEXT)
    return [request(f"other{i}", ids[i : i + 3 + 5 * i % 47], 3 + i % 9) for i in range(count)]


def test_the_subject_is_not_trivial(alone: Run) -> None:
    assert len(alone.rows("subject")) == 12
    assert len(set(alone.ids["subject"])) > 3


@pytest.mark.parametrize("every", [0, 1, 2])
def test_among_others_that_join_and_leave(lab: Lab, subject: SegmentRequest, alone: Run, every: int) -> None:
    crowd = others(lab, 16)
    run = lab.engine().run([*crowd[:5], subject, *crowd[5:]], every=every)
    assert same_bits(run.rows("subject"), alone.rows("subject"))
    assert run.ids["subject"] == alone.ids["subject"]


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_prefill_in_chunks(lab: Lab, subject: SegmentRequest, alone: Run, chunk: int) -> None:
    run = lab.engine(step_tokens=chunk, sequences=1).run([subject])
    assert same_bits(run.rows("subject"), alone.rows("subject"))


def test_prefix_hit(lab: Lab, subject: SegmentRequest, alone: Run) -> None:
    engine = lab.engine()
    engine.run([renamed(subject, "warm")])
    run = engine.run([subject])
    assert run.finish["subject"].usage.cached_tokens == 96
    assert same_bits(run.rows("subject"), alone.rows("subject"))


def test_after_eviction_and_recompute(lab: Lab, subject: SegmentRequest, alone: Run) -> None:
    engine = lab.engine(blocks=9)
    engine.run([renamed(subject, "first")])
    for other in others(lab, 12):
        engine.run([other])
    evicted = lab.tokenizer.encode("Something else entirely. " * 40)[:128]
    engine.run([request("flood", evicted, 2)])
    run = engine.run([subject])
    assert run.finish["subject"].usage.cached_tokens == 0
    assert same_bits(run.rows("subject"), alone.rows("subject"))


def test_one_thread(lab: Lab, path: Path, subject: SegmentRequest, alone: Run) -> None:
    single = Lab(path, lab.dtype, kv_dtype=lab.kv_dtype, threads=1)
    run = single.engine().run([subject, *others(single, 4)])
    assert same_bits(run.rows("subject"), alone.rows("subject"))


def test_two_engines_in_one_process(lab: Lab, path: Path, subject: SegmentRequest, alone: Run) -> None:
    labs = [lab, Lab(path, lab.dtype, kv_dtype=lab.kv_dtype, threads=1)]
    runs: list[Run | None] = [None, None]

    def work(index: int) -> None:
        runs[index] = labs[index].engine().run([subject, *others(labs[index], 3)])

    threads = [threading.Thread(target=work, args=(index,)) for index in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for run in runs:
        assert run is not None and same_bits(run.rows("subject"), alone.rows("subject"))


def test_steering_moves_its_own_request_only(lab: Lab, subject: SegmentRequest, alone: Run) -> None:
    """Steered or not, a request's bits do not depend on how its neighbours steer, on chunks or on what was cached."""
    layer, names = lab.shape.layers // 2, ("calm", "formal", "near")
    vectors = torch.randn(3, lab.shape.hidden, generator=torch.Generator().manual_seed(1))
    lab.steerer = Steerer(SteeringBank(lab.digest, names, (layer, layer, 0), vectors), lab.model)
    steered = replace(subject, steering=Steering.of({"calm": 1.0, "near": -0.5}))
    engine, off = lab.engine(), alone.rows("subject")
    on = engine.run([steered]).rows("subject")
    assert not same_bits(on, off)
    again = engine.run([steered])
    assert again.finish["subject"].usage.cached_tokens == 96
    assert same_bits(again.rows("subject"), on)
    plain = engine.run([subject])  # the same tokens are cached, but only as steered
    assert plain.finish["subject"].usage.cached_tokens == 0
    assert same_bits(plain.rows("subject"), off)

    coefficients = [{"formal": 2.0}, {"calm": -1.0}, {}, {"calm": 1.0, "formal": 0.03125}]
    crowd = [replace(r, steering=Steering.of(coefficients[i % 4])) for i, r in enumerate(others(lab, 8))]
    run = lab.engine().run([*crowd[:5], steered, renamed(subject, "plain"), *crowd[5:]], every=1)
    assert same_bits(run.rows("subject"), on)
    assert same_bits(run.rows("plain"), off)
    assert same_bits(lab.engine(step_tokens=33, sequences=1).run([steered]).rows("subject"), on)
    lab.steerer = None


def large_counts_differ(x: torch.Tensor, linear: Linear, row_scales: torch.Tensor | None = None) -> torch.Tensor:
    """A library whose rows depend on their number: above 40 rows every element is some units off."""
    out = product(x, linear, row_scales)
    if x.shape[0] > 40:
        out.view(torch.int16 if out.element_size() == 2 else torch.int32).add_(x.shape[0])
    return out


def small_counts_differ(x: torch.Tensor, linear: Linear, row_scales: torch.Tensor | None = None) -> torch.Tensor:
    """A library with another path for few rows."""
    out = product(x, linear, row_scales)
    if x.shape[0] < 16:
        out.view(torch.int16 if out.element_size() == 2 else torch.int32).add_(1)
    return out


@pytest.mark.parametrize("library", [large_counts_differ, small_counts_differ])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int8])
@pytest.mark.parametrize("name", ODD_SHAPES)
def test_the_forced_fallback_keeps_the_contract(
    name: str, dtype: torch.dtype, library: Product, tmp_path: Path
) -> None:
    path = write_hf_checkpoint(tmp_path / "model", **ODD_SHAPES[name])
    lab = Lab(path, dtype, product=library, cache=tmp_path)
    for check in lab.check.checks:
        if dtype == torch.int8 and library is large_counts_differ and check.name == "head":
            assert not check.differing  # against the true sums, its few rows are right
            continue
        assert check.differing
        if library is large_counts_differ:
            assert check.plan.tile == 32
        else:
            assert check.plan.counts[0] == 16 and check.plan.tile is None
    ids = lab.tokenizer.encode(TEXT)
    subject = request("subject", (ids * 3)[:90], 4)
    alone = lab.engine().run([subject])
    crowd = lab.engine().run([*others(lab, 14), subject], every=1)
    assert same_bits(crowd.rows("subject"), alone.rows("subject"))


def test_without_the_fallback_that_library_breaks_the_contract(tmp_path: Path) -> None:
    """The test above can fail: free products of the same library do differ."""
    path = write_hf_checkpoint(tmp_path / "model", **ODD_SHAPES["odd"])
    lab = Lab(path, torch.bfloat16)
    plans = {shape: replace(plan, free=False) for shape, plan in lab.check.plans.items()}
    lab.ops = CPUOps(lab.shape, plans, lab.threads, large_counts_differ)
    subject = request("subject", (lab.tokenizer.encode(TEXT) * 3)[:90], 4)
    whole = lab.engine().run([subject])
    chunks = lab.engine(step_tokens=7, sequences=1).run([subject])
    assert not same_bits(whole.rows("subject"), chunks.rows("subject"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_the_contract_holds_with_the_library_s_products(
    tmp_path: Path, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a processor without AVX-512 computes with, tiles included where its small counts differ."""
    monkeypatch.setattr(panels, "_features", dict)
    path = write_hf_checkpoint(tmp_path / "model", **ODD_SHAPES["odd"])
    lab = Lab(path, dtype, cache=tmp_path)
    assert {linear.layout for linear in lab.model.products().values()} <= {"library", "oneDNN"}
    assert not any(check.plan.free for check in lab.check.checks)
    subject = request("subject", (lab.tokenizer.encode(TEXT) * 3)[:90], 4)
    alone = lab.engine().run([subject])
    crowd = lab.engine().run([*others(lab, 14), subject], every=1)
    assert same_bits(crowd.rows("subject"), alone.rows("subject"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_batches_that_grow_leave_no_buffers_behind(tmp_path: Path, dtype: torch.dtype) -> None:
    lab = Lab(write_hf_checkpoint(tmp_path / "model", **ODD_SHAPES["odd"]), dtype)
    engine = lab.engine()
    engine.run(others(lab, 1))
    held = len(lab.ops._flat)
    for count in (2, 5, 14):
        engine.run([renamed(each, f"{count}-{each.id}") for each in others(lab, count)])
    assert len(lab.ops._flat) == held


def position_matters(x: torch.Tensor, linear: Linear, row_scales: torch.Tensor | None = None) -> torch.Tensor:
    out = product(x, linear, row_scales)
    out[0] += 1
    return out


def test_a_library_that_no_tile_can_save_is_refused(tmp_path: Path) -> None:
    path = write_hf_checkpoint(tmp_path / "model", **ODD_SHAPES["odd"])
    with pytest.raises(ModelError, match="numeric contract"):
        Lab(path, torch.bfloat16, product=position_matters, cache=tmp_path)
