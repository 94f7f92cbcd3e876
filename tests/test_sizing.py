"""`ghostkv size`: what models of any family take, by hand-computed numbers, and what is said of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from typer.testing import CliRunner

from ghostkv.cli import app
from ghostkv.errors import ModelError
from ghostkv.model.checkpoint import open_checkpoint
from ghostkv.model.outline import outline
from hub_server import Hub, serving_hub

QWEN_72B: dict[str, Any] = {
    "model_type": "qwen2", "hidden_size": 8192, "intermediate_size": 29568, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 152064, "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": False, "hidden_act": "silu",
    "use_sliding_window": False, "max_window_layers": 70, "sliding_window": 131072,
}  # fmt: skip
OTHERS = 2 * 152064 * 8192
IN_4_BITS = ((72_706_203_648 - OTHERS) * (4 + 20 / 128) + OTHERS * 16) / 8  # 72.7 G parameters, says its publisher


def silent(_: str) -> None: ...


def written(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def asked(*arguments: str) -> Any:
    ran = CliRunner().invoke(app, ["size", *arguments, "--json"])
    assert ran.exit_code == 0, ran.output
    return json.loads(ran.output)


def test_a_72b_in_4_bit_on_192_gb(tmp_path: Path) -> None:
    """The source's largest cell: by its own formulas a fifth of the memory that is there."""
    model = ["--model", str(written(tmp_path / "Qwen2.5-72B", QWEN_72B)), "--weights", "4bit", "--memory", "192GB"]
    found = asked(*model, "--users", "256", "--tokens", "250")
    assert found["weights"] == IN_4_BITS
    assert found["token_bytes"] == 2 * 80 * 8 * 128 * 2
    assert found["pool"] == int((192e9 * 0.9 - found["weights"] - 0.02 * 192e9) / (16 * 327_680)) * 16
    assert found["whole_tokens"] == 304 and not found["bound"]
    assert found["demand"] == 256 * 304 / found["pool"]
    longest = found["longest"]
    assert asked(*model, "--users", "256", "--tokens", str(longest))["demand"] <= 1
    bound = asked(*model, "--users", "256", "--tokens", str(longest + 1))
    assert bound["bound"] and bound["segment_demand"] < 0.3 and "With segments all fit" in bound["says"][-1]


def test_users_that_fit_are_as_many_as_fit(tmp_path: Path) -> None:
    model = ["--model", str(written(tmp_path, QWEN_72B)), "--weights", "41GB", "--memory", "64GB", "--tokens", "4000"]
    found = asked(*model, "--users", "100", "--sessions", "500", "--payload", "1MB")
    free = found["pool"] * found["token_bytes"]
    whole, segment = (found[f"{name}_tokens"] * found["token_bytes"] for name in ("whole", "segment"))
    assert found["whole_users"] * whole <= free < (found["whole_users"] + 1) * whole
    assert found["segment_users"] * segment + 500e6 <= free < (found["segment_users"] + 1) * segment + 500e6
    assert found["segment_tokens"] == 16 * -(-(48 + 132 + 192) // 16)
    assert found["segment_bytes"] == found["weights"] + found["runtime"] + 100 * segment + 500e6


def test_int8_kv_is_what_the_pool_takes() -> None:
    numbers = ["--layers", "30", "--kv-heads", "3", "--head-size", "64", "--weights", "100MB", "--memory", "1GB"]
    assert asked(*numbers, "--kv-dtype", "int8")["token_bytes"] == 2 * 30 * 3 * (64 + 2)


@pytest.mark.parametrize(
    ("config", "layers", "kv_heads", "head_size"),
    [
        ({"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024}, 12, 12, 64),
        ({"n_layer": 32, "n_head": 71, "d_model": 4544, "n_positions": 2048, "multi_query": True}, 32, 1, 64),
        ({"text_config": QWEN_72B | {"model_type": "of a model that also sees"}}, 80, 8, 128),
        (
            QWEN_72B
            | {
                "model_type": "hybrid",
                "num_hidden_layers": 4,
                "layer_types": ["linear_attention"] * 3 + ["full_attention"],
            },
            1,
            8,
            128,
        ),
        (QWEN_72B | {"num_local_experts": 8, "model_type": "mixtral"}, 80, 8, 128),
    ],
)
def test_families_that_this_build_does_not_compute(
    tmp_path: Path, config: dict[str, Any], layers: int, kv_heads: int, head_size: int
) -> None:
    found = outline(str(written(tmp_path, config)), silent)
    assert (found.layers, found.kv_heads, found.head_size, found.weights) == (layers, kv_heads, head_size, None)
    ran = CliRunner().invoke(app, ["size", "--model", str(tmp_path), "--memory", "1GB"])
    assert ran.exit_code == 1 and "--weights" in ran.output


def test_stored_weights_count_as_they_are(small_hf: Path, small_gguf: Path) -> None:
    assert asked("--model", str(small_hf), "--memory", "1GB")["weights"] == sum(
        file.stat().st_size for file in small_hf.glob("*.safetensors")
    )
    shape, found = open_checkpoint(small_gguf).shape, outline(str(small_gguf), silent)
    assert (found.layers, found.kv_heads, found.head_size) == (shape.layers, shape.kv_heads, shape.head_size)


def test_quantised_configs_say_their_bits(tmp_path: Path) -> None:
    quantised = QWEN_72B | {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}
    found = asked("--model", str(written(tmp_path, quantised)), "--memory", "192GB")
    assert found["weights"] == IN_4_BITS


def test_of_the_hub_no_weights_are_fetched(small_hf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {file.name: file.read_bytes() for file in sorted(small_hf.iterdir())}
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with serving_hub(Hub(files)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        found = outline("org/small", silent)
    assert found.name == "org/small" and found.weights is not None and found.stored_bytes is None
    assert not [line for line in hub.asked if "safetensors" in line and not line.endswith("index.json")]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_hidden_layers": "many"}, "num_hidden_layers is 'many', not a positive whole number"),
        ({"num_attention_heads": None}, "num_attention_heads is missing"),
        ({"kv_lora_rank": 512}, "kv_lora_rank is 512, which compresses keys and values"),
        ({"layer_types": ["full_attention"] * 79 + ["hyena"]}, "layer_types has 'hyena'"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder"),
    ],
)
def test_what_cannot_be_counted_is_refused_by_key(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        outline(str(written(tmp_path, QWEN_72B | change)), silent)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--memory", "much"], "'much' is not a size"),
        (["--memory", "1GB", "--layers", "3"], "there is no --kv-heads, --head-size"),
        (["--memory", "1GB", "--model", "smollm2", "--layers", "3"], "give one of both"),
        (["--memory", "1GB", "--share", "0"], "--share must be above 0"),
        (["--memory", "1GB", "--kv-dtype", "int4"], "--kv-dtype 'int4'"),
        (
            ["--memory", "1GB", "--layers", "3", "--kv-heads", "2", "--head-size", "64", "--weights", "3bit"],
            "--weights",
        ),
        (["--memory", "1GB", "--layers", "3", "--kv-heads", "2", "--head-size", "64", "--weights", "1GB"], "no memory"),
    ],
)
def test_bad_options(arguments: list[str], says: str) -> None:
    ran = CliRunner().invoke(app, ["size", *arguments])
    assert ran.exit_code == 1 and says in ran.output.replace("\n", " ")
