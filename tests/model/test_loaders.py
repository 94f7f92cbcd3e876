"""Both loaders against transformers, against each other, and against block formats decoded by hand."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from checkpoints import CHATML, VOCAB, random_tensors, write_gguf_checkpoint, write_hf_checkpoint
from ghostkv.model.checkpoint import open_checkpoint
from ghostkv.model.export import export_hf
from ghostkv.model.gguf_file import read_gguf
from ghostkv.model.inspect import inspect_model
from ghostkv.model.rope import Rope
from ghostkv.model.shape import LayerShape

pytestmark = pytest.mark.usefixtures("private_cache")

SHAPES: list[dict[str, Any]] = [
    {},
    {"tied": False, "shards": 3, "vocab": VOCAB + 5, "hidden": 96, "heads": 3, "kv_heads": 3, "rope_theta": 500000.0},
    {"hidden": 96, "heads": 2, "kv_heads": 1, "head_size": 128, "intermediate": 160, "layers": 3, "dtype": "bfloat16"},
]


def ids_of(directory: Path) -> list[list[int]]:
    """Greedy ids of transformers in float32: the oracle."""
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    prompts = torch.tensor([[5, 17, 99, 42, 7, 120, 3, 64], [200, 33, 33, 8, 61, 150, 90, 12]])
    return model.generate(prompts, max_new_tokens=24, min_new_tokens=24, do_sample=False).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("options", SHAPES)
def test_safetensors_weights_are_those_transformers_loads(tmp_path: Path, options: dict[str, Any]) -> None:
    checkpoint = open_checkpoint(write_hf_checkpoint(tmp_path / "m", **options))
    oracle = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.float32)
    expected = dict(oracle.named_parameters())  # a tied head is listed once
    weights = checkpoint.weights(torch.float32)
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    assert all(tensor.is_contiguous() for tensor in weights.values())
    assert checkpoint.shape.parameters == sum(p.numel() for p in expected.values())


@pytest.mark.parametrize("options", SHAPES)
def test_gguf_equals_safetensors(tmp_path: Path, options: dict[str, Any]) -> None:
    directory = write_hf_checkpoint(tmp_path / "m", **options)
    first, second = open_checkpoint(directory), open_checkpoint(write_gguf_checkpoint(tmp_path / "m.gguf", directory))
    assert first.shape == second.shape
    assert first.template == second.template == CHATML
    for dtype in (torch.float32, torch.bfloat16):
        a, b = first.weights(dtype), second.weights(dtype)
        assert a.keys() == b.keys() == first.shape.tensor_shapes().keys()
        assert all(torch.equal(a[name], b[name]) and b[name].dtype == dtype for name in a)


@pytest.mark.parametrize("kind", ["F16", "Q4_1"])
def test_weights_equal_another_reader_of_the_file(tmp_path: Path, kind: str) -> None:
    """transformers reads GGUF by code of its own: names, dequantisation, rotary row order."""
    directory = write_hf_checkpoint(tmp_path / "m", hidden=256)  # it ignores a head size other than hidden / heads
    file = write_gguf_checkpoint(tmp_path / "m.gguf", directory, kind)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory)
    expected = load_gguf_checkpoint(file, return_tensors=True, model_to_load=model)["tensors"]
    weights = open_checkpoint(file).weights(torch.float32)
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name].float()) for name in weights)


def test_gguf_exports_to_a_model_with_the_same_ids(tmp_path: Path) -> None:
    directory = write_hf_checkpoint(tmp_path / "m", dtype="bfloat16")
    file = write_gguf_checkpoint(tmp_path / "m.gguf", directory, "BF16")
    expected = ids_of(directory)
    assert ids_of(export_hf(open_checkpoint(file), tmp_path / "exported")) == expected
    assert all(len(set(ids[8:])) > 12 for ids in expected)  # not a loop, which a wrong model might share


def test_export_is_a_whole_checkpoint(tmp_path: Path, small_gguf: Path) -> None:
    source = open_checkpoint(small_gguf)
    copy = open_checkpoint(export_hf(source, tmp_path / "exported"))
    assert (copy.shape, copy.template) == (source.shape, source.template)
    assert (copy.tokenizer.eos_ids, copy.tokenizer.bos_id, copy.tokenizer.add_bos) == ((2, 0), 1, False)
    a, b = source.weights(torch.bfloat16), copy.weights(torch.bfloat16)
    assert all(torch.equal(a[name], b[name]) for name in a)
    generation = transformers.GenerationConfig.from_pretrained(tmp_path / "exported")
    assert generation.eos_token_id == [2, 0]


def test_tokenizers_of_all_three_readings_agree(tmp_path: Path, small_hf: Path, small_gguf: Path) -> None:
    oracle = transformers.AutoTokenizer.from_pretrained(small_hf)
    exported = transformers.AutoTokenizer.from_pretrained(export_hf(open_checkpoint(small_gguf), tmp_path / "exported"))
    for text in ("the other in 2026", " he  ran\n\n", "émigré 火星 🚀", "a+=1;\tif(x){}", ""):
        expected = oracle(text).input_ids
        assert open_checkpoint(small_hf).tokenizer.encode(text) == expected
        assert open_checkpoint(small_gguf).tokenizer.encode(text) == expected
        assert exported(text).input_ids == expected
    messages = [{"role": "user", "content": "hi"}]
    assert exported.apply_chat_template(messages, tokenize=False) == oracle.apply_chat_template(
        messages, tokenize=False
    )


def by_hand(raw: bytes, kind: str) -> list[np.float32]:
    """Q8_0 block: f16 scale, 32 int8. Q4_1 block: f16 scale, f16 minimum, 16 bytes of low then high nibbles."""
    values: list[np.float32] = []
    if kind == "Q8_0":
        for at in range(0, len(raw), 34):
            scale, *codes = struct.unpack_from("<e32b", raw, at)
            values += [np.float32(scale) * np.float32(code) for code in codes]
    else:
        for at in range(0, len(raw), 20):
            scale, low, *pairs = struct.unpack_from("<2e16B", raw, at)
            codes = [pair & 15 for pair in pairs] + [pair >> 4 for pair in pairs]
            values += [np.float32(scale) * np.float32(code) + np.float32(low) for code in codes]
    return values


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1"])
def test_quantised_blocks(tmp_path: Path, small_hf: Path, kind: str) -> None:
    file = read_gguf(write_gguf_checkpoint(tmp_path / "q.gguf", small_hf, kind))
    for name in ("token_embd.weight", "blk.1.ffn_down.weight"):
        tensor = file.tensors[name]
        assert tensor.type_name == kind
        values = file.read(tensor)
        count = values.size // 32 * {"Q8_0": 34, "Q4_1": 20}[kind]
        raw = file.path.read_bytes()[tensor.offset : tensor.offset + count]
        assert values.ravel().tolist() == by_hand(raw, kind)


QUANTISED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")


@pytest.mark.parametrize("kind", QUANTISED)
def test_every_type_is_read_as_the_gguf_package_reads_it(tmp_path: Path, kind: str) -> None:
    """Random bytes are valid blocks but for scales that are no numbers; the package writes only some types itself."""
    number = gguf.GGMLQuantizationType[kind]
    block, size = gguf.GGML_QUANT_SIZES[number]
    raw = np.random.default_rng(0).integers(0, 60, (6, 2 * size), dtype=np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "q.gguf", "llama")
    writer.add_tensor("t", raw, raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = read_gguf(tmp_path / "q.gguf")
    found = file.read(file.tensors["t"])
    assert found.shape == (6, 2 * block) and np.isfinite(found).all() and len(np.unique(found)) > 20
    assert np.array_equal(found, gguf.dequantize(raw, number))


@pytest.mark.parametrize(("kind", "dtype"), [("F16", torch.float16), ("BF16", torch.bfloat16)])
def test_half_precision(tmp_path: Path, small_hf: Path, kind: str, dtype: torch.dtype) -> None:
    weights = open_checkpoint(write_gguf_checkpoint(tmp_path / "h.gguf", small_hf, kind)).weights(torch.float32)
    source = random_tensors(json.loads((small_hf / "config.json").read_text()), seed=0)
    for name, tensor in source.items():
        assert torch.equal(weights[name], tensor.to(dtype).float() if tensor.dim() == 2 else tensor)


def test_header_equals_the_gguf_package(small_gguf: Path) -> None:
    reader = gguf.GGUFReader(small_gguf)
    file = read_gguf(small_gguf)
    expected = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert file.metadata == expected
    assert list(file.tensors) == [tensor.name for tensor in reader.tensors]
    for tensor in reader.tensors:
        mine = file.tensors[tensor.name]
        assert (mine.offset, mine.shape[::-1]) == (tensor.data_offset, tuple(tensor.shape.tolist()))


def test_digest_follows_content_only(tmp_path: Path, small_gguf: Path, small_hf: Path) -> None:
    moved = tmp_path / "elsewhere.gguf"
    moved.write_bytes(small_gguf.read_bytes())
    assert open_checkpoint(moved).digest == open_checkpoint(small_gguf).digest
    raw = bytearray(moved.read_bytes())
    raw[-1] ^= 1
    moved.write_bytes(raw)
    assert open_checkpoint(moved).digest != open_checkpoint(small_gguf).digest
    digests = {open_checkpoint(write_hf_checkpoint(tmp_path / str(seed), seed=seed)).digest for seed in (0, 1)}
    assert len(digests) == 2
    assert open_checkpoint(small_hf).digest in digests


def test_inspection_of_the_real_model(smollm2_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GHOSTKV_CACHE")  # dequantising it again would take seconds
    seen = inspect_model(smollm2_path)
    shape = seen.shape
    assert (shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.head_size) == (30, 576, 9, 3, 64)
    assert (shape.vocab, shape.context, shape.norm_eps) == (49152, 8192, 1e-5)
    assert shape.attention == (LayerShape(Rope(100000.0)),) * 30
    assert seen.kv_bytes_per_token == 2 * 30 * 3 * 64 * 2 == 23040
    assert seen.kv_bytes_per_token_float32 == 46080
    assert seen.parameters == 134_515_008
    assert seen.weight_bytes == 2 * seen.parameters
    assert seen.peak_rss_bytes > seen.weight_bytes
