"""What a Hugging Face config.json says of a model. Absent keys mean what transformers takes them for.

Whatever asks for something that this build does not compute is refused by file, key and value, because ignoring it
would still produce fluent text.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ghostkv.errors import ModelError
from ghostkv.model.activations import ACTIVATIONS
from ghostkv.model.families import FAMILIES, Family
from ghostkv.model.hf_rope import ropes
from ghostkv.model.metadata import Keys, checked, count_layers
from ghostkv.model.shape import LayerShape, ModelShape

# Parts of names under which configs ask for other mathematics. One that is not read here is refused unless it asks for
# nothing.
_SUSPECT = (
    "adapter", "alibi", "bias", "bidirectional", "clip", "expert", "logit_scal", "logits_scal", "lora", "moe",
    "multiplier", "mup", "parallel", "partial_rotary", "qk_norm", "quantization", "residual_scal", "rope_interleaved",
    "scale_attn", "scale_depth", "scale_emb", "sinks", "softcap", "sparse", "temperature_tuning",
)  # fmt: skip
_FACTORS = ("multiplier", "partial_rotary", "scal")  # of which 1 is nothing
_HARMLESS = ("pretraining_tp", "base_model_tp_plan")
_SLIDING, _FULL = "sliding_attention", "full_attention"


def shape_from_config(config: Mapping[str, Any], file: Path) -> ModelShape:
    """The shape that `config` describes; `file` is named in errors. Raises ModelError."""
    Keys(config, file).only("model_type", tuple(FAMILIES))
    name = config["model_type"]
    family = FAMILIES[name]
    keys = Keys({**family.defaults, **config}, file)
    _check(keys)
    heads, hidden = keys.count("num_attention_heads"), keys.count("hidden_size")
    head_size, context = keys.count("head_dim", hidden // heads), keys.count("max_position_embeddings", 2048)
    activation = "hidden_activation" if "hidden_activation" in family.defaults else "hidden_act"
    keys.only(activation, tuple(ACTIVATIONS), absent=True)
    layers = count_layers(keys, "num_hidden_layers")
    shape = ModelShape(
        family=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=keys.count("num_key_value_heads", heads),
        head_size=head_size,
        intermediate=keys.count("intermediate_size"),
        vocab=keys.count("vocab_size"),
        norm_eps=keys.real("rms_norm_eps", 1e-6),
        context=context,
        tied=bool(keys.values.get("tie_word_embeddings", False)),
        attention=_attention(keys, family, layers, context),
        parts=family.parts,
        activation=keys.values.get(activation, "silu"),
        query_scale=_query_scale(keys, family, head_size),
    )
    return checked(shape, file)


def _check(keys: Keys) -> None:
    """Refuse what this build does not compute."""
    for key, value in keys.values.items():
        if key not in _HARMLESS and any(word in key for word in _SUSPECT) and not _asks_nothing(key, value):
            raise ModelError(f"{keys.file}: {key} is {value!r}; this build does not compute what that asks for")
    keys.only("is_causal", (True, None), absent=True)


def _asks_nothing(key: str, value: object) -> bool:
    return not value or (value == 1 and value is not True and any(word in key for word in _FACTORS))


def _query_scale(keys: Keys, family: Family, head_size: int) -> float | None:
    """Factor of scores; None for the usual one."""
    key = "query_pre_attn_scalar"
    if key not in family.defaults:
        keys.only(key, (None, head_size), absent=True)
        return None
    scalar = keys.real(key)
    return None if scalar == head_size else scalar**-0.5


def _attention(keys: Keys, family: Family, layers: int, context: int) -> tuple[LayerShape, ...]:
    full, local = ropes(keys, family, context)
    windows = _windows(keys, family, layers)
    found = []
    for layer, window in enumerate(windows):
        rope = full if window is None else local
        found.append(LayerShape(rope if family.rotary(keys, layer) else None, window))
    return tuple(found)


def _windows(keys: Keys, family: Family, layers: int) -> list[int | None]:
    """Each layer's window."""
    if family.sliding is None:
        keys.only("sliding_window", (None, False), absent=True)
        for layer in range(layers if keys.values.get("layer_types") else 0):
            keys.item("layer_types", layer, (_FULL,))
        return [None] * layers
    window = keys.values.get("sliding_window")
    if window is None or not keys.values.get("use_sliding_window", True):
        return [None] * layers
    size = keys.count("sliding_window")
    if keys.values.get("layer_types") is None:
        marks = [family.sliding(keys, layer) for layer in range(layers)]
    else:
        marks = [keys.item("layer_types", layer, (_FULL, _SLIDING)) == _SLIDING for layer in range(layers)]
    return [size if mark else None for mark in marks]
