"""What metadata is taken to mean, and what is refused instead of ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from ghostkv.errors import ModelError
from ghostkv.model.gguf_file import read_gguf
from ghostkv.model.gguf_shape import shape_from_gguf
from ghostkv.model.hf_shape import shape_from_config
from ghostkv.model.rope import Divisors, LinearScaling, Llama3Scaling, Rope, YarnScaling
from ghostkv.model.shape import LayerShape, ModelShape

FILE = Path("some/config.json")
REQUIRED = {
    "model_type": "llama",
    "hidden_size": 192,
    "num_attention_heads": 6,
    "intermediate_size": 500,
    "num_hidden_layers": 2,
    "vocab_size": 1000,
}


EQUAL_HEADS = REQUIRED | {"num_key_value_heads": 6}  # other families take an absent number for one of their own


def test_absent_keys_mean_what_transformers_takes_them_for() -> None:
    oracle = transformers.LlamaConfig(**{key: value for key, value in REQUIRED.items() if key != "model_type"})
    assert shape_from_config(REQUIRED, FILE) == ModelShape(
        family="llama",
        layers=2,
        hidden=192,
        heads=6,
        kv_heads=oracle.num_key_value_heads,
        head_size=oracle.head_dim,
        intermediate=500,
        vocab=1000,
        norm_eps=oracle.rms_norm_eps,
        context=oracle.max_position_embeddings,
        tied=oracle.tie_word_embeddings,
        attention=(LayerShape(Rope(oracle.rope_parameters["rope_theta"])),) * 2,
    )


def rope_of(**config: Any) -> Rope:
    rope = shape_from_config(REQUIRED | config, FILE).attention[0].rope
    assert rope is not None
    return rope


def test_rope_theta_in_either_place() -> None:
    assert rope_of(rope_theta=5e5, rope_scaling=None) == Rope(5e5)
    assert rope_of(rope_parameters={"rope_type": "default", "rope_theta": 7e5}) == Rope(7e5)


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


def test_scaled_frequencies_in_either_form() -> None:
    assert rope_of(rope_scaling={"type": "linear", "factor": 2.0}) == Rope(scaling=LinearScaling(2.0))
    llama3 = Rope(5e5, Llama3Scaling(8.0, 1.0, 4.0, 64))
    assert rope_of(rope_scaling=LLAMA3 | {"rope_type": "llama3"}, rope_theta=5e5) == llama3
    assert rope_of(rope_parameters=LLAMA3 | {"rope_type": "llama3", "rope_theta": 5e5}) == llama3
    yarn = rope_of(rope_scaling={"type": "yarn", "factor": 4.0}, original_max_position_embeddings=512)
    assert isinstance(yarn.scaling, YarnScaling)
    assert (yarn.scaling.factor, yarn.scaling.original) == (4.0, 512)
    assert yarn.score_scale == pytest.approx(1.1386294**2)


SCALINGS = [
    {"rope_type": "linear", "factor": 2.5},
    LLAMA3 | {"rope_type": "llama3"},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 50, "mscale": 0.7, "mscale_all_dim": 1.2},
    {
        "rope_type": "yarn",
        "factor": 8.0,
        "attention_factor": 0.8,
        "beta_fast": 8.0,
        "beta_slow": 2.0,
        "truncate": False,
    },
]


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("size", [32, 48, 128])
def test_frequencies_equal_those_of_transformers(scaling: dict[str, Any], size: int) -> None:
    config = {"head_dim": size, "rope_parameters": scaling | {"rope_theta": 50000.0}, "max_position_embeddings": 400}
    oracle = transformers.LlamaConfig(**{k: v for k, v in (REQUIRED | config).items() if k != "model_type"})
    functions = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS
    frequencies, magnitude = functions[scaling["rope_type"]](oracle)
    rope = rope_of(**config)
    cosines, sines = rope.tables(size, 400, torch.device("cpu"))
    angles = torch.outer(torch.arange(400.0), frequencies)
    assert torch.allclose(cosines, angles.cos(), atol=1e-4) and torch.allclose(sines, angles.sin(), atol=1e-4)
    assert rope.score_scale == pytest.approx(magnitude**2)


def test_which_layers_have_windows() -> None:
    def windows(kind: str, **config: Any) -> list[int | None]:
        given = EQUAL_HEADS | {"model_type": kind, "num_hidden_layers": 4, "sliding_window": 9} | config
        return [layer.window for layer in shape_from_config(given, FILE).attention]

    assert windows("mistral") == [9] * 4
    assert windows("mistral", sliding_window=None) == [None] * 4
    assert windows("qwen2") == windows("qwen3") == [None] * 4
    assert windows("qwen3", use_sliding_window=True, max_window_layers=3) == [None] * 3 + [9]
    kinds = ["sliding_attention", "full_attention"] * 2
    assert windows("qwen2", use_sliding_window=True, layer_types=kinds) == [9, None] * 2
    assert windows("gemma3_text", sliding_window_pattern=2) == [9, None] * 2
    assert windows("gemma3_text", sliding_window_pattern=2, layer_types=kinds[::-1]) == [None, 9] * 2
    assert windows("smollm3", use_sliding_window=True, no_rope_layer_interval=2) == [None, 9] * 2


def test_which_layers_rotate_and_by_what() -> None:
    smol = shape_from_config(EQUAL_HEADS | {"model_type": "smollm3", "num_hidden_layers": 5}, FILE)
    assert [layer.rope for layer in smol.attention] == [Rope(2e6)] * 3 + [None, Rope(2e6)]
    gemma = {"model_type": "gemma3_text", "num_hidden_layers": 2, "sliding_window_pattern": 2}
    assert [layer.rope for layer in shape_from_config(EQUAL_HEADS | gemma, FILE).attention] == [Rope(1e4), Rope(1e6)]
    old = gemma | {
        "rope_theta": 5e5,
        "rope_local_base_freq": 7e3,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    local, whole = (layer.rope for layer in shape_from_config(EQUAL_HEADS | old, FILE).attention)
    assert (local, whole) == (Rope(7e3), Rope(5e5, LinearScaling(8.0)))


REFUSED: list[tuple[str, Any, str]] = [
    ("model_type", "qwen3_moe", "'qwen3_moe'"),
    ("model_type", "gemma3", "'gemma3'"),
    ("final_logit_softcapping", 30.0, "30.0"),
    ("num_local_experts", 1, "1"),
    ("use_bidirectional_attention", True, "True"),
    ("residual_multiplier", 0.2, "0.2"),
    ("layer_types", ["full_attention", "sliding_attention"], "'sliding_attention'"),
    ("layer_types", ["full_attention"], "entry for layer 1"),
    ("hidden_act", "gelu", "'gelu'"),
    ("attention_bias", True, "True"),
    ("mlp_bias", True, "True"),
    ("sliding_window", 4096, "4096"),
    ("quantization_config", {"bits": 4}, "bits"),
    ("rope_scaling", {"type": "dynamic", "factor": 2.0}, "'dynamic'"),
    ("rope_scaling", {"type": "linear", "factor": -2.0}, "-2.0"),
    ("rope_parameters", {"rope_type": "llama3", "factor": 8.0}, "low_freq_factor is missing"),
    ("rope_parameters", {"rope_type": "default", "mrope_section": [1, 2]}, "mrope_section"),
    ("rope_parameters", {"chunked_attention": {"rope_theta": 1e4}}, "chunked_attention"),
    ("head_dim", 33, "33 channels"),
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
    assert key in caught.value.message or key.startswith(("rope_", "num_", "head_dim"))


GGUF_REFUSED: list[tuple[str, Any]] = [
    ("general.architecture", "gemma2"),
    ("llama.rope.scaling.type", "longrope"),
    ("llama.rope.scaling.factor", -8.0),
    ("llama.attention.scale", 0.5),
    ("llama.attention.causal", False),
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


def test_gguf_metadata_of_windows_and_ropes(small_gguf: Path) -> None:
    metadata = read_gguf(small_gguf).metadata

    def of(changes: dict[str, Any], **options: Any) -> ModelShape:
        return shape_from_gguf(metadata | changes, small_gguf, tied=True, **options)

    windowed = of({"llama.attention.sliding_window": 99})
    assert (windowed.family, [layer.window for layer in windowed.attention]) == ("mistral", [99, 99])
    assert of({"llama.rope.scaling.factor": 8.0}).attention[0].rope == Rope(scaling=LinearScaling(8.0))
    assert of({"llama.rope.scaling.factor": 8.0, "llama.rope.scaling.type": "none"}).attention[0].rope == Rope()
    assert of({}, rope_divisors=(1.0, 2.0)).attention[0].rope == Rope(scaling=Divisors((1.0, 2.0)))
    with pytest.raises(ModelError, match=r"yarn_attn_factor is 2\.0"):
        of({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.yarn_attn_factor": 2.0})
    qwen = {key.replace("llama.", "qwen2."): value for key, value in metadata.items()}
    with pytest.raises(ModelError, match=r"qwen2\.attention\.sliding_window is 9, but the file cannot say"):
        shape_from_gguf(
            qwen | {"general.architecture": "qwen2", "qwen2.attention.sliding_window": 9}, small_gguf, tied=True
        )


def test_the_scores_of_gemma_3_of_62_layers(small_gguf: Path) -> None:
    """GGUF has no key for what its config says: query_pre_attn_scalar 168, with heads of 128."""
    values = {key.replace("llama.", "gemma3."): value for key, value in read_gguf(small_gguf).metadata.items()}
    values |= {"general.architecture": "gemma3", "gemma3.embedding_length": 5376, "gemma3.attention.head_count": 32}
    large = shape_from_gguf(values | {"gemma3.block_count": 62}, small_gguf, tied=True)
    assert large.score_scale == pytest.approx(168**-0.5)
    assert shape_from_gguf(values | {"gemma3.block_count": 48}, small_gguf, tied=True).score_scale == 64**-0.5


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
