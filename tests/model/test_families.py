"""Every family against transformers, in both formats, and under the numeric contract."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from families import CASES, FOLDABLE, write_family_checkpoint, write_family_gguf
from ghostkv.errors import ModelError
from ghostkv.model import int8
from ghostkv.model.checkpoint import open_checkpoint
from ghostkv.model.decoder import Decoder
from ghostkv.model.export import export_hf
from ghostkv.model.kv_tensors import KVTensors
from ghostkv.model.runner import ModelRunner, RunnerLimits
from ghostkv.model.threads import compute
from ghostkv.model.torch_ops import TorchOps
from ghostkv.step import Draw, Row, StepPlan
from model.lab import GREEDY, ROWS, SEQUENCES, Lab, renamed, request, same_bits, teacher_forced
from model.oracle import all_logits, greedy_agrees, kl, oracle


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("families")
    return {case: write_family_checkpoint(folder / case, case) for case in CASES}


def some_ids(count: int, seed: int = 0) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(3, 267, count).tolist()
    return ids


@pytest.mark.parametrize("case", CASES)
def test_weights_are_those_transformers_loads(paths: dict[str, Path], case: str) -> None:
    weights = open_checkpoint(paths[case]).weights(torch.float32)
    expected = dict(oracle(paths[case], torch.float32).named_parameters())
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


@pytest.mark.parametrize("case", CASES)
def test_float32_greedy_ids_equal_transformers(paths: dict[str, Path], case: str) -> None:
    prompts = [some_ids(length, length) for length in (1, 2, 15, 17, 100)]
    found = greedy_agrees(Lab(paths[case], torch.float32), oracle(paths[case], torch.float32), prompts, 24)
    assert len(set().union(*found)) > 20  # not one loop, which a wrong model might share


@pytest.mark.parametrize("case", CASES)
def test_bfloat16_is_as_close_to_float32_as_transformers_is(paths: dict[str, Path], case: str, tmp_path: Path) -> None:
    path = write_family_checkpoint(tmp_path / case, case, dtype="bfloat16")
    lab, ids, table = Lab(path, torch.bfloat16), some_ids(150), np.arange(10, dtype=np.int32)
    truth = all_logits(oracle(path, torch.float32), ids).log_softmax(-1)
    ours = float(kl(truth, teacher_forced(lab.runner(10), ids, table)).mean())
    theirs = float(kl(truth, all_logits(oracle(path, torch.bfloat16), ids)).mean())
    print(f"{case}: mean KL to float32: ghostkv {ours:.2e}, transformers {theirs:.2e}")
    assert ours <= 1.2 * theirs


@pytest.mark.parametrize("case", FOLDABLE)
def test_int8_weights_are_nearly_the_model(paths: dict[str, Path], case: str) -> None:
    """Digits cost these models more than real ones, whose attention is not as sharp."""
    ids, table = some_ids(100), np.arange(7, dtype=np.int32)
    truth = all_logits(oracle(paths[case], torch.float32), ids).log_softmax(-1)
    found = teacher_forced(Lab(paths[case], torch.int8).runner(7), ids, table)
    assert kl(truth, found).mean() < 0.1


@pytest.mark.parametrize("case", FOLDABLE)
def test_rotations_fold_past_biases_and_norms_of_heads(paths: dict[str, Path], case: str) -> None:
    """Float32 products with the rotated weights, without digits, against those of the checkpoint."""
    lab, turned = Lab(paths[case], torch.float32), Lab(paths[case], torch.float32)
    checkpoint = open_checkpoint(paths[case])
    read = int8.rotated(checkpoint.shape, checkpoint.weights(torch.float32))
    names = checkpoint.shape.tensor_shapes() | {"lm_head.weight": ()}
    untied = replace(checkpoint.shape, tied=False)
    turned.model = Decoder(untied, {name: read(name) for name in names}, torch.device("cpu"))
    ids, table = some_ids(60), np.arange(4, dtype=np.int32)
    expected, found = (teacher_forced(each.runner(4), ids, table) for each in (lab, turned))
    assert (expected - found).abs().max() < 1e-4 * expected.abs().max()


def test_int8_is_refused_where_norms_stand_in_the_way(paths: dict[str, Path]) -> None:
    with pytest.raises(ModelError, match=r"'int8'.*gemma3_text.*norms"):
        Lab(paths["gemma3"], torch.int8)


CONTRACT = [
    ("mistral-window", torch.bfloat16, None),
    ("qwen2", torch.int8, None),
    ("qwen2-window", torch.float32, torch.int8),
    ("qwen3", torch.bfloat16, torch.int8),
    ("smollm3", torch.bfloat16, None),
    ("smollm3", torch.int8, torch.int8),
    ("gemma3", torch.bfloat16, None),
    ("gemma3", torch.float32, torch.int8),
]


@pytest.mark.parametrize(("case", "dtype", "kv_dtype"), CONTRACT)
def test_a_row_is_the_same_alone_in_chunks_among_others_and_after_a_hit(
    paths: dict[str, Path], case: str, dtype: torch.dtype, kv_dtype: torch.dtype | None
) -> None:
    lab = Lab(paths[case], dtype, kv_dtype=kv_dtype)
    subject = request("subject", some_ids(110), 12)
    alone = lab.engine().run([subject]).rows("subject")
    crowd = [request(f"other{i}", some_ids(3 + 5 * i % 47, i), 3 + i % 9) for i in range(14)]
    for every in (0, 1):
        assert same_bits(lab.engine().run([*crowd[:5], subject, *crowd[5:]], every=every).rows("subject"), alone)
    for chunk in (1, 7, 64):
        assert same_bits(lab.engine(step_tokens=chunk, sequences=1).run([subject]).rows("subject"), alone)
    engine = lab.engine(blocks=9)
    engine.run([renamed(subject, "warm")])
    hit = engine.run([subject])
    assert hit.finish["subject"].usage.cached_tokens == 96
    assert same_bits(hit.rows("subject"), alone)
    engine.run([request("flood", some_ids(128, 9), 2)])
    evicted = engine.run([subject])
    assert evicted.finish["subject"].usage.cached_tokens < 96
    assert same_bits(evicted.rows("subject"), alone)
    single = Lab(paths[case], dtype, kv_dtype=kv_dtype, threads=1)
    assert same_bits(single.engine().run([*crowd, subject]).rows("subject"), alone)


@pytest.mark.parametrize("case", ["qwen2-window", "qwen3-yarn", "smollm3", "gemma3"])
def test_the_plain_operators_agree(paths: dict[str, Path], case: str) -> None:
    lab, table = Lab(paths[case], torch.float32), np.arange(8, dtype=np.int32)
    plans = [
        StepPlan(0, 0.0, (Row("a", tuple(some_ids(60)), 0, table, (Draw(GREEDY, 0.0),)),)),
        StepPlan(1, 0.0, (Row("a", (7,), 60, table, (Draw(GREEDY, 0.0),)),)),
    ]
    found = []
    for ops in (lab.ops, TorchOps()):
        kv = KVTensors(lab.shape, 8, torch.float32, torch.device("cpu"))
        runner = ModelRunner(lab.model, kv, ops, RunnerLimits(ROWS, SEQUENCES, 2))
        with compute(2):
            found.append(torch.cat([runner.forward(plan).clone() for plan in plans]))
    assert (found[0] - found[1]).abs().max() < 1e-4 * found[1].abs().max()


IN_GGUF = [case for case in CASES if case not in ("qwen2-window", "qwen3-yarn")]
"""GGUF has no words for the others: which layers have windows, magnitudes beside YaRN's own."""


@pytest.mark.parametrize("case", IN_GGUF)
def test_gguf_is_the_same_model(paths: dict[str, Path], case: str, tmp_path: Path, private_cache: Path) -> None:
    changes: dict[str, Any] = {}
    if case == "smollm3":  # llama.cpp knows one interval only
        changes = {"no_rope_layers": [1, 1, 1, 0, 1]}
    elif case == "gemma3":  # and one scale of scores
        changes = {"query_pre_attn_scalar": 256}
    elif case == "gemma3-scaled":
        changes = {"query_pre_attn_scalar": 32}
    directory = write_family_checkpoint(tmp_path / case, case, dtype="bfloat16", **changes) if changes else paths[case]
    first, second = open_checkpoint(directory), open_checkpoint(write_family_gguf(tmp_path / "m.gguf", directory))
    if case != "llama-llama3":
        assert second.shape.attention == first.shape.attention
    if case not in ("llama-llama3", "mistral"):  # a file of Mistral without windows is one of Llama
        assert second.shape == first.shape
    a, b = first.weights(torch.float32), second.weights(torch.float32)
    assert a.keys() == b.keys()
    assert all(torch.allclose(a[name], b[name], rtol=0, atol=1e-6 if "norm" in name else 0) for name in a)
    for one, other in zip(first.shape.attention, second.shape.attention):
        if one.rope is not None and other.rope is not None:  # of Llama 3 the file has only what comes of its numbers
            tables = [rope.tables(first.shape.head_size, 512, torch.device("cpu")) for rope in (one.rope, other.rope)]
            assert all(torch.allclose(ours, theirs, atol=1e-4) for ours, theirs in zip(*tables))


@pytest.mark.parametrize("case", CASES)
def test_an_export_is_the_same_model(paths: dict[str, Path], case: str, tmp_path: Path) -> None:
    source = open_checkpoint(paths[case])
    copy = export_hf(source, tmp_path / "exported")
    assert open_checkpoint(copy).shape == source.shape
    ids = some_ids(90)
    theirs = [all_logits(oracle(path, torch.bfloat16).float(), ids) for path in (paths[case], copy)]
    assert torch.equal(*theirs)
