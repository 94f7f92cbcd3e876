"""What metadata is taken to mean, and what is refused instead of ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

from ghostkv.errors import ModelError
from ghostkv.model.gguf_file import read_gguf
from ghostkv.model.shape import ModelShape, shape_from_config, shape_from_gguf

FILE = Path("some/config.json")
REQUIRED = {
    "model_type": "llama",
    "hidden_size": 192,
    "num_attention_heads": 6,
    "intermediate_size": 500,
    "num_hidden_layers": 2,
    "vocab_size": 1000,
}


def test_absent_keys_mean_what_transformers_takes_them_for() -> None:
    oracle = transformers.LlamaConfig(**{key: value for key, value in REQUIRED.items() if key != "model_type"})
    assert shape_from_config(REQUIRED, FILE) == ModelShape(
        architecture="llama",
        layers=2,
        hidden=192,
        heads=6,
        kv_heads=oracle.num_key_value_heads,
        head_size=oracle.head_dim,
        intermediate=500,
        vocab=1000,
        norm_eps=oracle.rms_norm_eps,
        rope_theta=oracle.rope_parameters["rope_theta"],
        context=oracle.max_position_embeddings,
        tied=oracle.tie_word_embeddings,
    )


def test_rope_theta_in_either_place() -> None:
    assert shape_from_config(REQUIRED | {"rope_theta": 5e5, "rope_scaling": None}, FILE).rope_theta == 5e5
    new = {"rope_parameters": {"rope_type": "default", "rope_theta": 7e5}}
    assert shape_from_config(REQUIRED | new, FILE).rope_theta == 7e5


REFUSED: list[tuple[str, Any, str]] = [
    ("model_type", "qwen3", "'qwen3'"),
    ("hidden_act", "gelu", "'gelu'"),
    ("attention_bias", True, "True"),
    ("mlp_bias", True, "True"),
    ("sliding_window", 4096, "4096"),
    ("quantization_config", {"bits": 4}, "bits"),
    ("rope_scaling", {"type": "linear", "factor": 2.0}, "'linear'"),
    ("rope_parameters", {"rope_type": "llama3", "rope_theta": 5e5}, "'llama3'"),
    ("partial_rotary_factor", 0.5, "0.5"),
    ("hidden_size", "many", "'many'"),
    ("num_hidden_layers", 0, "0"),
    ("num_hidden_layers", 10**9, "layers"),
    ("vocab_size", None, "vocab_size is missing"),
    ("rms_norm_eps", -1.0, "-1.0"),
    ("rms_norm_eps", float("nan"), "nan"),
    ("num_key_value_heads", 4, "6 query heads"),
    ("rope_scaling", [1], "rope_scaling"),
]


@pytest.mark.parametrize(("key", "value", "words"), REFUSED)
def test_refused_by_file_key_and_value(key: str, value: Any, words: str) -> None:
    with pytest.raises(ModelError) as caught:
        shape_from_config(REQUIRED | {key: value}, FILE)
    assert str(FILE) in caught.value.message
    assert words in caught.value.message
    assert key in caught.value.message or words in ("6 query heads", "layers", "'linear'", "'llama3'")


GGUF_REFUSED: list[tuple[str, Any]] = [
    ("general.architecture", "gemma3"),
    ("llama.rope.scaling.type", "yarn"),
    ("llama.rope.scaling.factor", 8.0),
    ("llama.attention.sliding_window", 4096),
    ("llama.expert_count", 8),
    ("llama.attention.value_length", 32),
    ("llama.rope.dimension_count", 32),
    ("llama.attention.head_count_kv", [2, 1]),
    ("llama.block_count", -3),
]


@pytest.mark.parametrize(("key", "value"), GGUF_REFUSED)
def test_gguf_metadata_refused_by_file_key_and_value(small_gguf: Path, key: str, value: Any) -> None:
    metadata = read_gguf(small_gguf).metadata
    shape_from_gguf(metadata, small_gguf, tied=True)
    with pytest.raises(ModelError) as caught:
        shape_from_gguf(metadata | {key: value}, small_gguf, tied=True)
    assert all(part in caught.value.message for part in (str(small_gguf), key, repr(value)))


def test_gguf_without_optional_keys(small_gguf: Path) -> None:
    metadata = read_gguf(small_gguf).metadata
    expected = shape_from_gguf(metadata, small_gguf, tied=True)
    del metadata["llama.vocab_size"]
    assert shape_from_gguf(metadata, small_gguf, tied=True) == expected
    del metadata["llama.attention.layer_norm_rms_epsilon"]
    with pytest.raises(ModelError, match="layer_norm_rms_epsilon is missing"):
        shape_from_gguf(metadata, small_gguf, tied=True)


def test_kv_bytes_per_token_counts_every_key_and_value() -> None:
    shape = shape_from_config(REQUIRED | {"num_key_value_heads": 3}, FILE)
    one_token = [(layer, part, head, i) for layer in range(2) for part in "kv" for head in range(3) for i in range(32)]
    assert shape.kv_bytes_per_token(2) == 2 * len(one_token)
    assert shape.kv_bytes_per_token(4) == 4 * len(one_token)
