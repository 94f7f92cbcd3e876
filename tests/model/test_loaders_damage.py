"""Broken checkpoints: one clear error each, naming the file and, where there is one, the tensor."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from checkpoints import VOCAB, write_gguf_checkpoint, write_hf_checkpoint
from ghostkv.errors import ModelError
from ghostkv.model.checkpoint import open_checkpoint
from ghostkv.model.gguf_file import read_gguf

pytestmark = pytest.mark.usefixtures("private_cache")

QUERY = "model.layers.1.self_attn.q_proj.weight"
Tensors = dict[str, torch.Tensor]


def edit_tensors(file: Path, change: Callable[[Tensors], object]) -> None:
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    change(tensors)
    save_file(tensors, file)


def edit_json(file: Path, **values: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def refusal(path: Path, dtype: torch.dtype = torch.float32) -> str:
    with pytest.raises(ModelError) as caught:
        open_checkpoint(path).weights(dtype)
    return caught.value.message


@pytest.fixture
def broken(tmp_path: Path, small_hf: Path) -> Path:
    """A copy to break."""
    return shutil.copytree(small_hf, tmp_path / "broken")


def spoil(tensors: Tensors, value: float) -> None:
    tensors[QUERY][7, 11] = value


TENSOR_DAMAGE: list[tuple[Callable[[Tensors], object], str]] = [
    (lambda tensors: tensors.pop(QUERY), "is missing"),
    (lambda tensors: tensors.update({QUERY: tensors[QUERY].T.contiguous()}), "(128, 256)"),
    (lambda tensors: spoil(tensors, float("nan")), "NaN"),
    (lambda tensors: spoil(tensors, float("-inf")), "infinite"),
    (lambda tensors: tensors.update({QUERY: tensors[QUERY].to(torch.float64)}), "type F64"),
]


@pytest.mark.parametrize(("change", "words"), TENSOR_DAMAGE)
def test_damaged_tensor(broken: Path, change: Callable[[Tensors], object], words: str) -> None:
    edit_tensors(broken / "model.safetensors", change)
    message = refusal(broken)
    assert str(broken / "model.safetensors") in message
    assert QUERY in message
    assert words in message


def test_a_head_that_is_not_tied_must_be_there(broken: Path) -> None:
    """D19; that a tied one is the embedding is in test_loaders and test_oracle, that nothing starts in test_cli."""
    edit_json(broken / "config.json", tie_word_embeddings=False)
    assert "lm_head.weight is missing" in refusal(broken)


def test_overflow_in_a_narrower_dtype(broken: Path) -> None:
    edit_tensors(broken / "model.safetensors", lambda tensors: spoil(tensors, 3.4e38))  # rounds to bfloat16 infinity
    open_checkpoint(broken).weights(torch.float32)
    assert QUERY in refusal(broken, torch.bfloat16)


def test_unknown_tensor_is_refused_but_what_transformers_ignores_is_not(broken: Path) -> None:
    file = broken / "model.safetensors"
    rotary = "model.layers.0.self_attn.rotary_emb.inv_freq"
    edit_tensors(file, lambda t: t.update({rotary: torch.ones(32), "lm_head.weight": torch.ones(VOCAB, 128)}))
    assert "lm_head.weight" not in open_checkpoint(broken).weights(torch.float32)
    bias = "model.layers.0.self_attn.q_proj.bias"
    edit_tensors(file, lambda tensors: tensors.update({bias: torch.ones(256)}))
    assert f"{file}: tensor {bias}" in refusal(broken)


def test_missing_files(broken: Path, tmp_path: Path) -> None:
    for name, words in [("tokenizer.json", "tokenizer.json"), ("model.safetensors", "no *.safetensors file")]:
        kept = (broken / name).rename(tmp_path / name)
        assert words in refusal(broken)
        kept.rename(broken / name)
    (broken / "config.json").unlink()
    assert str(broken / "config.json") in refusal(broken)
    assert str(tmp_path / "nowhere") in refusal(tmp_path / "nowhere")
    other = tmp_path / "model.bin"
    other.touch()
    assert "model.bin: neither" in refusal(other)


def test_shards(tmp_path: Path) -> None:
    directory = write_hf_checkpoint(tmp_path / "m", shards=3)
    index = directory / "model.safetensors.index.json"
    lost = directory / json.loads(index.read_text())["weight_map"][QUERY]
    edit_tensors(lost, lambda tensors: tensors.pop(QUERY))
    assert f"{lost}: tensor {QUERY} is missing" in refusal(directory)
    lost.unlink()
    assert str(lost) in refusal(directory)
    assert "shard is missing" in refusal(directory)
    edit_json(index, weight_map={QUERY: "../outside.safetensors"})
    assert "../outside.safetensors" in refusal(directory)
    edit_json(index, weight_map=[])
    assert str(index) in refusal(directory)


def test_one_tensor_in_two_files(broken: Path) -> None:
    (broken / "model.safetensors").rename(broken / "a.safetensors")
    shutil.copy(broken / "a.safetensors", broken / "b.safetensors")
    message = refusal(broken)
    assert "b.safetensors" in message
    assert "a.safetensors" in message


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "generation_config.json", "tokenizer.json"])
@pytest.mark.parametrize("content", ["{", "[]", '{"model_type": "llama", "eos_token_id": "x", "added_tokens": [1]}'])
def test_malformed_json(broken: Path, name: str, content: str) -> None:
    if name == "tokenizer_config.json" and "eos" in content:
        content = '{"chat_template": 7}'
    (broken / name).write_text(content)
    assert str(broken / name) in refusal(broken)


def test_vocabulary_beyond_the_embedding(broken: Path) -> None:
    edit_json(broken / "config.json", vocab_size=VOCAB - 1)
    assert "tokenizer.json" in refusal(broken)


@pytest.mark.parametrize("kept", [0, 5, 8, 400, -1, -70_000])
def test_truncated_safetensors(broken: Path, kept: int) -> None:
    file = broken / "model.safetensors"
    raw = file.read_bytes()
    file.write_bytes(raw[:kept])
    message = refusal(broken)
    assert str(file) in message
    if kept < 0:
        assert "tensor model." in message


def test_truncated_gguf(tmp_path: Path, small_gguf: Path) -> None:
    raw, file = small_gguf.read_bytes(), tmp_path / "cut.gguf"
    tensors = read_gguf(small_gguf).tensors.values()
    data = min(tensor.offset for tensor in tensors)
    for kept in [*range(64), *range(64, data, 97)]:
        file.write_bytes(raw[:kept])
        assert str(file) in refusal(file)
    last = max(tensors, key=lambda tensor: tensor.offset)
    for kept in (len(raw) - 64, last.offset):
        file.write_bytes(raw[:kept])
        assert f"{file}: truncated: tensor {last.name}" in refusal(file)


def test_gguf_type_and_missing_tensor_are_named(tmp_path: Path, small_hf: Path) -> None:
    file = write_gguf_checkpoint(tmp_path / "q.gguf", small_hf, "MXFP4")
    message = refusal(file)
    assert all(part in message for part in (str(file), "tensor token_embd.weight", "MXFP4"))
    edited = shutil.copytree(small_hf, tmp_path / "edited")
    edit_tensors(edited / "model.safetensors", lambda tensors: tensors.pop(QUERY))
    file = write_gguf_checkpoint(tmp_path / "less.gguf", edited)
    assert f"{file}: tensor blk.1.attn_q.weight is missing" in refusal(file)


def test_gguf_with_nan(tmp_path: Path, small_hf: Path) -> None:
    edited = shutil.copytree(small_hf, tmp_path / "edited")
    edit_tensors(edited / "model.safetensors", lambda tensors: spoil(tensors, float("nan")))
    file = write_gguf_checkpoint(tmp_path / "nan.gguf", edited)
    assert f"{file}: tensor blk.1.attn_q.weight holds NaN" in refusal(file)


def test_gguf_without_a_tokenizer(tmp_path: Path) -> None:
    file = tmp_path / "bare.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert str(file) in refusal(file)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_flipped_header_byte_is_loaded_or_refused(tmp_path: Path, small_gguf: Path, data: st.DataObject) -> None:
    raw = bytearray(small_gguf.read_bytes())
    header = min(tensor.offset for tensor in read_gguf(small_gguf).tensors.values())
    raw[data.draw(st.integers(0, header - 1))] = data.draw(st.integers(0, 255))
    file = tmp_path / "flipped.gguf"
    file.write_bytes(raw)
    try:
        open_checkpoint(file)
    except ModelError as error:
        assert str(file) in error.message
