"""A model's shape as a Hugging Face config.json: what `hf_shape` reads, written."""

from __future__ import annotations

from typing import Any

from ghostkv.errors import ModelError
from ghostkv.model.families import FAMILIES
from ghostkv.model.rope import LinearScaling, Llama3Scaling, Rope, YarnScaling
from ghostkv.model.shape import ModelShape


def config_of(shape: ModelShape) -> dict[str, Any]:
    """The config of bfloat16 weights of that shape. Raises ModelError for frequencies that it has no words for."""
    config: dict[str, Any] = {
        "architectures": [FAMILIES[shape.family].architecture],
        "model_type": shape.family,
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "intermediate_size": shape.intermediate,
        "vocab_size": shape.vocab,
        "rms_norm_eps": shape.norm_eps,
        "max_position_embeddings": shape.context,
        "tie_word_embeddings": shape.tied,
        "attention_bias": False,
        "pad_token_id": None,  # some families' own would be outside the vocabulary of a small model
        "torch_dtype": "bfloat16",
    }
    return config | _family_config(shape) | _rope_config(shape) | _window_config(shape)


def _family_config(shape: ModelShape) -> dict[str, Any]:
    """What only some families' configs have keys for."""
    defaults = FAMILIES[shape.family].defaults
    config: dict[str, Any] = {}
    if "hidden_activation" in defaults:
        config["hidden_activation"] = shape.activation
    else:
        config |= {"hidden_act": shape.activation, "mlp_bias": False}
    if "query_pre_attn_scalar" in defaults:
        config["query_pre_attn_scalar"] = round(shape.score_scale**-2)
    if "no_rope_layer_interval" in defaults:
        config["no_rope_layers"] = [int(layer.rope is not None) for layer in shape.attention]
    return config


def _window_config(shape: ModelShape) -> dict[str, Any]:
    family = FAMILIES[shape.family]
    if family.sliding is None:
        return {}
    windows = [layer.window for layer in shape.attention]
    widest = max((window for window in windows if window is not None), default=None)
    config: dict[str, Any] = {"sliding_window": widest}
    if "use_sliding_window" in family.defaults:
        config["use_sliding_window"] = widest is not None
    if None in windows and widest is not None:
        kinds = {True: "full_attention", False: "sliding_attention"}
        config["layer_types"] = [kinds[window is None] for window in windows]
    return config


def _rope_config(shape: ModelShape) -> dict[str, Any]:
    family = FAMILIES[shape.family]
    full = [layer.rope for layer in shape.attention if layer.rope and not (family.local_theta and layer.window)]
    local = [layer.rope for layer in shape.attention if layer.rope and layer.window]
    config: dict[str, Any] = {}
    if full:
        config |= {"rope_theta": full[0].theta} | _scaling_config(full[0])
    if family.local_theta is not None and local:
        config[family.local_theta] = local[0].theta
    return config


def _scaling_config(rope: Rope) -> dict[str, Any]:
    match rope.scaling:
        case None:
            return {}
        case LinearScaling(factor=factor):
            said: dict[str, Any] = {"rope_type": "linear", "factor": factor}
        case Llama3Scaling(factor=factor, low=low, high=high, original=original):
            said = {"rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high}
            said["original_max_position_embeddings"] = original
        case YarnScaling(factor=factor, original=original, magnitude=magnitude, fast=fast, slow=slow):
            said = {"rope_type": "yarn", "factor": factor, "attention_factor": magnitude, "beta_fast": fast}
            said |= {"beta_slow": slow, "original_max_position_embeddings": original}
            said["truncate"] = rope.scaling.truncate
        case other:
            raise ModelError(f"rotary frequencies with {type(other).__name__.lower()} have no words in a config.json")
    return {"rope_scaling": said}
