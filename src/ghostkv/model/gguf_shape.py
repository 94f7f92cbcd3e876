"""What GGUF metadata says of a model, by the keys that llama.cpp's converter writes.

Whatever asks for something that this build does not compute is refused by file, key and value, as in `hf_shape`. What
GGUF has no key for, llama.cpp holds to be constants of the family, and so does `families`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ghostkv.errors import ModelError
from ghostkv.model.families import FAMILIES, Family
from ghostkv.model.metadata import Keys, checked, count_layers
from ghostkv.model.rope import Divisors, LinearScaling, Rope, Scaling, YarnScaling
from ghostkv.model.shape import LayerShape, ModelShape

# Parts of keys that ask for mathematics which no family here has: refused unless they ask for nothing.
_SUSPECT = (
    "alibi", "altup", "attention.scale", "clamp", "dense_2", "embedding_scale", "expert", "logit_scale", "nextn",
    "parallel", "residual_scale", "shared_kv", "softcapping", "temperature",
)  # fmt: skip
_UNSCALED_YARN = {"attn_factor": 1.0, "yarn_attn_factor": 1.0, "yarn_ext_factor": 1.0, "yarn_log_multiplier": 0.0}
_WINDOW = "attention.sliding_window"
_BY_WIDTH = 62  # layers of the one Gemma 3 (27B) whose scores are scaled by hidden / heads: llama.cpp knows it so too


def shape_from_gguf(
    metadata: Mapping[str, Any], file: Path, *, tied: bool, rope_divisors: tuple[float, ...] | None = None
) -> ModelShape:
    """The shape in GGUF metadata. GGUF has no key for tied embeddings: `tied` says that there is no output tensor.

    `rope_divisors` are the values of the tensor rope_freqs.weight, if there is one. Raises ModelError.
    """
    known = {family.gguf for family in FAMILIES.values()}
    Keys(metadata, file).only("general.architecture", tuple(sorted(known)))
    prefix = metadata["general.architecture"] + "."
    keys = Keys({k.removeprefix(prefix): v for k, v in metadata.items() if k.startswith(prefix)}, file, prefix)
    name = _family(keys)
    family = FAMILIES[name]
    _check(keys)
    tokens = metadata.get("tokenizer.ggml.tokens")
    heads, hidden = keys.count("attention.head_count"), keys.count("embedding_length")
    layers = count_layers(keys, "block_count")
    head_size = keys.count("attention.key_length", hidden // heads)
    keys.only("attention.value_length", (head_size,), absent=True)
    keys.only("rope.dimension_count", (head_size,), absent=True)
    shape = ModelShape(
        family=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=keys.count("attention.head_count_kv", heads),
        head_size=head_size,
        intermediate=keys.count("feed_forward_length"),
        vocab=keys.count("vocab_size", len(tokens) if isinstance(tokens, list) else None),
        norm_eps=_decimal(keys.real("attention.layer_norm_rms_epsilon")),
        context=keys.count("context_length"),
        tied=tied,
        attention=_attention(keys, family, layers, rope_divisors),
        parts=family.parts,
        activation=family.defaults.get("hidden_activation", "silu"),
        query_scale=(hidden / heads) ** -0.5 if family.gguf == "gemma3" and layers == _BY_WIDTH else None,
    )
    return checked(shape, file)


def _family(keys: Keys) -> str:
    """The family whose files these are: "llama" stands for several, told apart by whether there is a window."""
    same = [name for name, family in FAMILIES.items() if family.gguf == keys.prefix.removesuffix(".")]
    windowed = [name for name in same if _has_windows(FAMILIES[name])]
    return windowed[0] if windowed and keys.values.get(_WINDOW) else same[0]


def _has_windows(family: Family) -> bool:
    """Whether GGUF files of the family say by a number alone which layers have windows."""
    return family.sliding is not None and bool(family.defaults.get("use_sliding_window", True))


def _check(keys: Keys) -> None:
    """Refuse what this build does not compute."""
    for key, value in keys.values.items():
        if any(word in key for word in _SUSPECT) and value not in (0, False, None):
            raise ModelError(
                f"{keys.file}: {keys.prefix}{key} is {value!r}; this build does not compute what that asks for"
            )
    keys.only("attention.causal", (True,), absent=True)


def _attention(keys: Keys, family: Family, layers: int, divisors: tuple[float, ...] | None) -> tuple[LayerShape, ...]:
    full = Rope(_decimal(keys.real("rope.freq_base", 10000.0)), _scaling(keys, divisors))
    local = full
    if family.local_theta is not None:
        local = Rope(_decimal(keys.real("rope.freq_base_swa", family.defaults[family.local_theta])))
    constants = dict(family.defaults)
    pattern = keys.values.get("attention.sliding_window_pattern")
    if isinstance(pattern, int) and not isinstance(pattern, bool):
        constants["sliding_window_pattern"] = pattern
    said = Keys(constants, keys.file)
    found = []
    for layer in range(layers):
        window = _window(keys, said, family, layer) if keys.values.get(_WINDOW) else None
        rope = full if window is None else local
        found.append(LayerShape(rope if family.rotary(said, layer) else None, window))
    return tuple(found)


def _window(keys: Keys, said: Keys, family: Family, layer: int) -> int | None:
    """The layer's window, of metadata that has one."""
    if family.sliding is None or not _has_windows(family):
        raise keys.wrong(_WINDOW, "but the file cannot say in which layers: this build does not compute it")
    if isinstance(keys.values.get("attention.sliding_window_pattern"), list):
        marked = bool(keys.item("attention.sliding_window_pattern", layer, (True, False)))
    else:
        marked = family.sliding(said, layer)
    return keys.count(_WINDOW) if marked else None


def _scaling(keys: Keys, divisors: tuple[float, ...] | None) -> Scaling | None:
    """What changes the frequencies. A factor without a type is a linear one."""
    kind = keys.values.get("rope.scaling.type")
    keys.only("rope.scaling.type", ("none", "linear", "yarn"), absent=True)
    given = next((key for key in ("rope.scaling.factor", "rope.scale_linear") if keys.values.get(key)), None)
    factor = 1.0 if given is None else keys.real(given)
    if kind == "yarn":
        for key, value in _UNSCALED_YARN.items():
            keys.only(f"rope.scaling.{key}", (value,), absent=True)
        fast, slow = keys.real("rope.scaling.yarn_beta_fast", 32.0), keys.real("rope.scaling.yarn_beta_slow", 1.0)
        magnitude = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
        original = keys.count("rope.scaling.original_context_length", keys.count("context_length"))
        return YarnScaling(factor, original, magnitude, fast, slow)
    if divisors is not None:
        return Divisors(divisors)
    return None if factor == 1.0 or kind == "none" else LinearScaling(factor)


def _decimal(value: float) -> float:
    """GGUF stores float32; the shortest decimal of that float32 is what config.json had (1e-5, not 9.99...e-6)."""
    return float(str(np.float32(value)))
