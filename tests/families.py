"""Small random checkpoints of every family, written by transformers itself: names, shapes and config are its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from safetensors.torch import load_file

from checkpoints import VOCAB, permute, small_tokenizer, write_gguf_tokenizer, write_tokenizer

_SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "vocab_size": VOCAB, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None,
}  # fmt: skip
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
_KINDS = {"s": "sliding_attention", "f": "full_attention"}


def _kinds(letters: str) -> list[str]:
    return [_KINDS[letter] for letter in letters]


# By name of the case: the model_type and what its config has beside _SIZES.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-heads-of-80": ("llama", {"head_dim": 80}),
    "llama-linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}}),
    "llama-llama3": ("llama", {"rope_parameters": _LLAMA3}),
    "llama-yarn": ("llama", {"rope_parameters": _YARN, "tie_word_embeddings": True}),
    "mistral": ("mistral", {"sliding_window": None, "head_dim": 64}),
    "mistral-window": ("mistral", {"sliding_window": 21}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True, "head_dim": 16}),
    "qwen2-window": ("qwen2", {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 48}),
    "qwen3-yarn": ("qwen3", {"rope_parameters": _YARN | {"attention_factor": 1.3, "beta_fast": 16.0}}),
    "smollm3": ("smollm3", {"num_hidden_layers": 5, "no_rope_layers": [1, 0, 1, 1, 0], "head_dim": 16}),
    "gemma3": (
        "gemma3_text",
        {
            "num_hidden_layers": 4, "layer_types": _kinds("ssfs"), "sliding_window": 20, "head_dim": 256,
            "query_pre_attn_scalar": 100, "num_attention_heads": 2, "num_key_value_heads": 1,
        },
    ),
    "gemma3-scaled": (
        "gemma3_text",
        {
            "layer_types": _kinds("sfs"), "sliding_window": 48, "tie_word_embeddings": False,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1e5, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
            },
        },
    ),
}  # fmt: skip
FOLDABLE = [case for case, (kind, _) in CASES.items() if kind != "gemma3_text"]
"""Those that int8 weights can be made of."""


def write_family_checkpoint(
    directory: Path, case: str, *, dtype: str = "float32", seed: int = 0, **changes: Any
) -> Path:
    """Write the random model of a case; returns `directory`.

    Its scale is as in `checkpoints`: attention is sharp, and a wrong norm, bias, rotation or window changes greedy ids.
    """
    kind, own = CASES[case]
    config = transformers.AutoConfig.for_model(kind, **_SIZES | own | changes)
    model = transformers.AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(0)
    gemma = kind == "gemma3_text"  # whose embeddings are multiplied, so that layers would hardly show beside them
    with torch.no_grad():
        for name, weight in model.named_parameters():
            values = torch.randn(weight.shape, generator=generator)
            if name.endswith("norm.weight"):
                values = 0.2 * values + (0.0 if gemma else 1.0) + (2.0 if "q_norm" in name else 0.0)
                values += 5.0 if gemma and name == "model.norm.weight" else 0.0
            elif not name.endswith(".bias"):
                values *= (0.5 if gemma and "embed" in name else _gain(name)) / weight.shape[-1] ** 0.5
            weight.copy_(values)
    model.to(getattr(torch, dtype)).save_pretrained(directory)
    write_tokenizer(directory)
    return directory


def _gain(name: str) -> float:
    if "embed_tokens" in name or "lm_head" in name:
        return 3.0
    return 4.0 if "q_proj" in name else 3.0 if "v_proj" in name else 1.0


_OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_INNER = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
_GEMMA = {
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip


def write_family_gguf(path: Path, directory: Path) -> Path:
    """Write a checkpoint of `write_family_checkpoint` as llama.cpp's converter would: its names, rows and keys."""
    config = transformers.AutoConfig.from_pretrained(directory)
    kind = {"mistral": "llama", "gemma3_text": "gemma3"}.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, kind)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    _write_rope(writer, config)
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
        if kind == "gemma3":
            writer.add_sliding_window_pattern([each == _KINDS["s"] for each in config.layer_types])
    write_gguf_tokenizer(writer, small_tokenizer(), config.to_dict() | {"bos_token_id": 1, "eos_token_id": 2})
    for name, tensor in load_file(directory / "model.safetensors").items():
        data = tensor.float().numpy()
        if kind in ("llama", "smollm3") and "q_proj" in name:
            data = permute(data, config.num_attention_heads)
        elif kind in ("llama", "smollm3") and "k_proj" in name:
            data = permute(data, config.num_key_value_heads)
        elif kind == "gemma3" and name.endswith("norm.weight"):
            data = data + np.float32(1)
        writer.add_tensor(_gguf_name(name, _INNER | (_GEMMA if kind == "gemma3" else {})), np.ascontiguousarray(data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _gguf_name(name: str, inner: dict[str, str]) -> str:
    if name in _OUTER:
        return _OUTER[name]
    _, _, layer, rest = name.split(".", 3)
    part, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{inner[part]}.{kind}"


def _write_rope(writer: gguf.GGUFWriter, config: Any) -> None:
    rope = config.rope_parameters
    if "full_attention" in rope:
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
        rope = rope["full_attention"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    elif rope["rope_type"] == "llama3":
        plain = config.rope_parameters["rope_theta"] ** -(torch.arange(0, config.head_dim, 2) / config.head_dim)
        changed, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](config)
        writer.add_tensor("rope_freqs.weight", (plain / changed).float().numpy())
