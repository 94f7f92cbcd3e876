"""The families of models that can be computed, a few lines each: what each says that Llama does not.

A family is data; `decoder` knows parts, not families. Not here: reading the metadata (`hf_shape`, `gguf_shape`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ghostkv.model.metadata import Keys
from ghostkv.model.shape import LLAMA, Parts

Which = Callable[[Keys, int], bool]
"""Whether a layer, counted from 0, is one of those: by the keys of a config.json, absent ones filled in."""


@dataclass(frozen=True, slots=True)
class Family:
    """One `model_type` of Hugging Face configs. Defaults are what transformers takes absent keys for."""

    architecture: str  # the class in `architectures`
    gguf: str  # general.architecture
    parts: Parts = LLAMA
    sliding: Which | None = None  # layers with a window, where the config asks for windows and does not list them
    rotary: Which = lambda keys, layer: True  # layers whose queries and keys are rotated
    local_theta: str | None = None  # key of the rotary base of layers with a window, where it is another
    interleaved: bool = False  # GGUF files have the rows of rotated pairs side by side
    defaults: Mapping[str, Any] = field(default_factory=dict)


def _of_every(keys: Keys, layer: int, key: str) -> bool:
    """All but each so many-th layer."""
    return (layer + 1) % keys.count(key) != 0


def _rotated(keys: Keys, layer: int) -> bool:
    """By SmolLM3's list, of 1 and 0, else by its interval."""
    marks = keys.values.get("no_rope_layers")
    if marks is None:
        return _of_every(keys, layer, "no_rope_layer_interval")
    return bool(keys.item("no_rope_layers", layer, (0, 1)))


def _late(keys: Keys, layer: int) -> bool:
    return layer >= keys.whole("max_window_layers")


_QWEN = {
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": Family("LlamaForCausalLM", "llama", interleaved=True),
        "mistral": Family(
            "MistralForCausalLM",
            "llama",
            interleaved=True,
            sliding=lambda keys, layer: True,
            defaults={"num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096},
        ),
        "qwen2": Family("Qwen2ForCausalLM", "qwen2", Parts(qkv_bias=True), sliding=_late, defaults=_QWEN),
        "qwen3": Family(
            "Qwen3ForCausalLM", "qwen3", Parts(head_norm=True), sliding=_late, defaults=_QWEN | {"head_dim": 128}
        ),
        "smollm3": Family(
            "SmolLM3ForCausalLM",
            "smollm3",
            interleaved=True,
            rotary=_rotated,
            sliding=lambda keys, layer: not _rotated(keys, layer),
            defaults={
                "num_key_value_heads": 4,
                "max_position_embeddings": 32768,
                "rope_theta": 2000000.0,
                "tie_word_embeddings": True,
                "use_sliding_window": False,
                "no_rope_layer_interval": 4,
            },
        ),
        "gemma3_text": Family(
            "Gemma3ForCausalLM",
            "gemma3",
            Parts(head_norm=True, post_norm=True, norm_offset=1.0, embedding_by_width=True),
            sliding=lambda keys, layer: _of_every(keys, layer, "sliding_window_pattern"),
            local_theta="rope_local_base_freq",
            defaults={
                "num_key_value_heads": 4,
                "head_dim": 256,
                "query_pre_attn_scalar": 256,
                "hidden_activation": "gelu_pytorch_tanh",
                "max_position_embeddings": 131072,
                "rope_theta": 1000000.0,
                "rope_local_base_freq": 10000.0,
                "tie_word_embeddings": True,
                "sliding_window": 4096,
                "sliding_window_pattern": 6,
            },
        ),
    }
)
