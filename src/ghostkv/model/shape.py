"""What a model's metadata says about its tensors: sizes, rotary base, context.

Not the tensors (loaders), not what the kernels can compute (runner). Metadata that asks for anything this build does
not compute is refused here, by file, key and value, because ignoring it would still produce fluent text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ghostkv.errors import ModelError

_MOST_LAYERS = 4096


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a decoder-only transformer."""

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    vocab: int
    norm_eps: float
    rope_theta: float
    context: int  # positions the model was trained for
    tied: bool  # the output head is the embedding

    def kv_bytes_per_token(self, dtype_bytes: int) -> int:
        """Bytes of keys and values of one token: 2 * layers * kv_heads * head_size * dtype_bytes (TGP F1)."""
        return 2 * self.layers * self.kv_heads * self.head_size * dtype_bytes

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every weight under its Hugging Face name; matrices are [out, in]."""
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab, self.hidden)}
        for layer in range(self.layers):
            base = f"model.layers.{layer}."
            shapes |= {
                base + "input_layernorm.weight": (self.hidden,),
                base + "self_attn.q_proj.weight": (queries, self.hidden),
                base + "self_attn.k_proj.weight": (keys, self.hidden),
                base + "self_attn.v_proj.weight": (keys, self.hidden),
                base + "self_attn.o_proj.weight": (self.hidden, queries),
                base + "post_attention_layernorm.weight": (self.hidden,),
                base + "mlp.gate_proj.weight": (self.intermediate, self.hidden),
                base + "mlp.up_proj.weight": (self.intermediate, self.hidden),
                base + "mlp.down_proj.weight": (self.hidden, self.intermediate),
            }
        shapes["model.norm.weight"] = (self.hidden,)
        if not self.tied:
            shapes["lm_head.weight"] = (self.vocab, self.hidden)
        return shapes

    @property
    def parameters(self) -> int:
        """Number of weights; a tied head counts once."""
        total = 0
        for shape in self.tensor_shapes().values():
            size = 1
            for length in shape:
                size *= length
            total += size
        return total


def shape_from_config(config: Mapping[str, Any], file: Path) -> ModelShape:
    """The shape in a Hugging Face config.json; `file` is named in errors. Absent keys mean what they mean there."""
    keys = _Keys(config, file)
    keys.only("model_type", ("llama",))
    keys.only("hidden_act", ("silu",), absent=True)
    for key in ("attention_bias", "mlp_bias", "sliding_window", "quantization_config"):
        keys.only(key, (False, None), absent=True)
    # Transformers 5 writes rope_parameters with theta inside; before, rope_theta stood beside an optional rope_scaling.
    rope = keys.mapping("rope_parameters") | keys.mapping("rope_scaling")
    rope_keys = _Keys(rope, file, "rope_parameters.")
    for key in ("rope_type", "type"):
        rope_keys.only(key, ("default", None), absent=True)
    for partial in (rope_keys, keys):
        partial.only("partial_rotary_factor", (1.0, None), absent=True)
    heads, hidden = keys.count("num_attention_heads"), keys.count("hidden_size")
    theta = rope_keys if "rope_theta" in rope else keys
    shape = ModelShape(
        architecture="llama",
        layers=keys.count("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=keys.count("num_key_value_heads", heads),
        head_size=keys.count("head_dim", hidden // heads),
        intermediate=keys.count("intermediate_size"),
        vocab=keys.count("vocab_size"),
        norm_eps=keys.real("rms_norm_eps", 1e-6),
        rope_theta=theta.real("rope_theta", 10000.0),
        context=keys.count("max_position_embeddings", 2048),
        tied=bool(config.get("tie_word_embeddings", False)),
    )
    return _checked(shape, file)


def shape_from_gguf(metadata: Mapping[str, Any], file: Path, *, tied: bool) -> ModelShape:
    """The shape in GGUF metadata. GGUF has no key for tied embeddings: `tied` says that there is no output tensor."""
    _Keys(metadata, file).only("general.architecture", ("llama",))
    prefix = "llama."
    keys = _Keys({k.removeprefix(prefix): v for k, v in metadata.items() if k.startswith(prefix)}, file, prefix)
    keys.only("rope.scaling.type", ("none",), absent=True)
    keys.only("rope.scaling.factor", (0.0, 1.0), absent=True)
    keys.only("rope.scale_linear", (0.0, 1.0), absent=True)
    for key in ("expert_count", "attention.sliding_window"):
        keys.only(key, (0,), absent=True)
    tokens = metadata.get("tokenizer.ggml.tokens")
    heads, hidden = keys.count("attention.head_count"), keys.count("embedding_length")
    head_size = keys.count("attention.key_length", hidden // heads)
    keys.only("attention.value_length", (head_size,), absent=True)
    keys.only("rope.dimension_count", (head_size,), absent=True)
    shape = ModelShape(
        architecture="llama",
        layers=keys.count("block_count"),
        hidden=hidden,
        heads=heads,
        kv_heads=keys.count("attention.head_count_kv", heads),
        head_size=head_size,
        intermediate=keys.count("feed_forward_length"),
        vocab=keys.count("vocab_size", len(tokens) if isinstance(tokens, list) else None),
        norm_eps=_decimal(keys.real("attention.layer_norm_rms_epsilon")),
        rope_theta=_decimal(keys.real("rope.freq_base", 10000.0)),
        context=keys.count("context_length"),
        tied=tied,
    )
    return _checked(shape, file)


@dataclass(frozen=True, slots=True)
class _Keys:
    """Typed access to metadata; every failure names file, key and value."""

    values: Mapping[str, Any]
    file: Path
    prefix: str = ""

    def only(self, key: str, accepted: tuple[object, ...], *, absent: bool = False) -> None:
        if key not in self.values:
            if not absent:
                raise ModelError(f"{self.file}: {self.prefix}{key} is missing")
        elif self.values[key] not in accepted:
            raise ModelError(
                f"{self.file}: {self.prefix}{key} is {self.values[key]!r}; this build computes only "
                + " or ".join(repr(value) for value in accepted if value is not None)
            )

    def mapping(self, key: str) -> dict[str, Any]:
        value = self.values.get(key) or {}
        if not isinstance(value, dict):
            raise ModelError(f"{self.file}: {self.prefix}{key} is {value!r}, not a mapping")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        value = self.values.get(key)
        value = default if value is None else value
        if value is None:
            raise ModelError(f"{self.file}: {self.prefix}{key} is missing")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ModelError(f"{self.file}: {self.prefix}{key} is {value!r}, not a positive whole number")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        value = self.values.get(key)
        value = default if value is None else value
        if value is None:
            raise ModelError(f"{self.file}: {self.prefix}{key} is missing")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise ModelError(f"{self.file}: {self.prefix}{key} is {value!r}, not a positive number")
        return float(value)


def _decimal(value: float) -> float:
    """GGUF stores float32; the shortest decimal of that float32 is what config.json had (1e-5, not 9.99...e-6)."""
    return float(str(np.float32(value)))


def _checked(shape: ModelShape, file: Path) -> ModelShape:
    if shape.layers > _MOST_LAYERS:  # damaged metadata must not make tensor_shapes run for hours
        raise ModelError(f"{file}: {shape.layers} layers; at most {_MOST_LAYERS} are expected")
    if shape.heads % shape.kv_heads:
        raise ModelError(f"{file}: {shape.heads} query heads do not divide into {shape.kv_heads} key-value heads")
    return shape
