"""What a Hugging Face config says of rotary embeddings, in the forms of transformers 5 and before."""

from __future__ import annotations

import math
from typing import Any

from ghostkv.model.families import Family
from ghostkv.model.metadata import Keys
from ghostkv.model.rope import LinearScaling, Llama3Scaling, Rope, Scaling, YarnScaling

_READ = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": (
        "factor", "attention_factor", "mscale", "mscale_all_dim", "original_max_position_embeddings", "beta_fast",
        "beta_slow", "truncate",
    ),
}  # fmt: skip
_EVERYWHERE = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
_SCALED_BY_CONTEXT = ("original_max_position_embeddings",)  # written beside types that need it not
_THETA = 10000.0


def ropes(keys: Keys, family: Family, context: int) -> tuple[Rope, Rope]:
    """The rotary embedding of layers that see everything, and of layers with a window.

    Transformers 5 writes rope_parameters with theta inside, or one mapping for each kind of layer; before, rope_theta
    stood beside an optional rope_scaling, which is not for layers with a window that have a base of their own.
    """
    given = keys.mapping("rope_parameters")
    full: dict[str, Any] = given
    local: dict[str, Any] = {}
    nested = any(isinstance(value, dict) for value in given.values())
    if nested:
        inner = Keys(given, keys.file, "rope_parameters.")
        full, local = inner.mapping("full_attention"), inner.mapping("sliding_attention")
        unknown = sorted(set(given) - {"full_attention", "sliding_attention"})
        if unknown:
            raise inner.wrong(unknown[0], "of a kind of layer that this build does not know")
    of_full = _rope(keys, full | keys.mapping("rope_scaling"), "rope_theta", context)
    if family.local_theta is None and not nested:
        return of_full, of_full
    return of_full, _rope(keys, local, family.local_theta or "rope_theta", context)


def _rope(keys: Keys, given: dict[str, Any], theta: str, context: int) -> Rope:
    rope = Keys(given, keys.file, "rope_parameters.")
    for key in ("rope_type", "type"):
        rope.only(key, (*_READ, None), absent=True)
    kind = given.get("rope_type") or given.get("type") or "default"
    rope.only("partial_rotary_factor", (1.0, None), absent=True)
    for key, value in given.items():
        if key not in (*_EVERYWHERE, *_READ[kind], *_SCALED_BY_CONTEXT) and value is not None:
            raise rope.wrong(key, f"which this build does not compute beside {kind}")
    base = rope.real("rope_theta") if "rope_theta" in given else keys.real(theta, _THETA)
    original = keys.values.get("original_max_position_embeddings") or given.get("original_max_position_embeddings")
    before = Keys({"original_max_position_embeddings": original}, keys.file, rope.prefix)
    return Rope(base, _scaling(rope, kind, before.count("original_max_position_embeddings", context), context))


def _scaling(rope: Keys, kind: str, original: int, context: int) -> Scaling | None:
    if kind == "linear":
        return LinearScaling(rope.real("factor"))
    if kind == "llama3":
        low, high = rope.real("low_freq_factor"), rope.real("high_freq_factor")
        if not low < high:
            raise rope.wrong("high_freq_factor", f"not more than low_freq_factor ({low})")
        return Llama3Scaling(rope.real("factor"), low, high, original)
    if kind == "yarn":
        factor = rope.real("factor", context / original)
        truncate = rope.values.get("truncate", True)
        fast, slow = rope.real("beta_fast", 32.0), rope.real("beta_slow", 1.0)
        return YarnScaling(factor, original, _magnitude(rope, factor), fast, slow, bool(truncate))
    return None


def _magnitude(rope: Keys, factor: float) -> float:
    """YaRN's factor of queries and keys, 0.1 ln(factor) + 1 (section 3.4), unless the config has its own."""
    if rope.values.get("attention_factor") is not None:
        return rope.real("attention_factor")

    def of(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if rope.values.get("mscale") and rope.values.get("mscale_all_dim"):
        return of(rope.real("mscale")) / of(rope.real("mscale_all_dim"))
    return of(1.0)
