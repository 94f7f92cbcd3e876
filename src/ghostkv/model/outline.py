"""What sizing needs to know of a model of any family: what its keys and values take, and its weights where it says so.

Of models that this build cannot compute as well; what computing them takes is `hf_shape`'s and `gguf_shape`'s business.
Where keys and values are not what TGP's F1 counts (compressed ones, an encoder's), the model is refused by key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ghostkv.errors import ModelError
from ghostkv.model.gguf_file import read_gguf
from ghostkv.model.hf_shape import shape_from_config
from ghostkv.model.hub import Progress, fetch_config
from ghostkv.model.json_file import read_json
from ghostkv.model.metadata import Keys
from ghostkv.model.pull import resolve_model, served_name

# What older configs call the same.
_NAMES = {
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads"),
    "num_key_value_heads": ("num_kv_heads", "n_head_kv"),
    "hidden_size": ("n_embd", "d_model"),
    "max_position_embeddings": ("n_positions", "max_seq_len", "seq_length"),
}
_KEEPING = ("full_attention", "sliding_attention", "chunked_attention", "attention")
_STATEFUL = ("linear_attention", "mamba", "mamba2", "conv", "recurrent")  # what they hold does not grow with the text
_COMPRESSED = "which compresses keys and values: F1 does not count them"
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class Weights:
    """How many weights a model has."""

    matrices: int  # inside layers
    others: int  # embeddings and head, which formats of few bits leave in 16


@dataclass(frozen=True, slots=True)
class Outline:
    """One model."""

    name: str
    layers: int  # whose keys and values grow with the text
    kv_heads: int
    head_size: int
    context: int  # tokens
    weights: Weights | None = None  # None: not told by the metadata of this family
    stored_bytes: int | None = None  # of the weights as they are on disk
    bits: float | None = None  # of a stored weight, where the metadata say that they were quantised


def outline(model: str, progress: Progress) -> Outline:
    """Of a known name, a Hugging Face directory, its config.json, a .gguf file, or org/name[@revision] of the Hub.

    Of the Hub only the config is fetched, no weights. Raises ModelError naming file and key, ModelNotFound.
    """
    path = resolve_model(model, progress, fetch_config)
    if path.suffix == ".gguf":
        return _of_gguf(path)
    file = path / "config.json" if path.is_dir() else path
    return _of_config(read_json(file), file, served_name(model) or file.parent.resolve().name)


def _of_config(config: Mapping[str, Any], file: Path, name: str) -> Outline:
    text = config.get("text_config")
    whole, config = config, text if isinstance(text, dict) else config
    keys = Keys(dict(config) | _renamed(config), file)
    keys.only("is_encoder_decoder", (False, None), absent=True)
    if keys.values.get("kv_lora_rank"):
        raise keys.wrong("kv_lora_rank", _COMPRESSED)
    heads = keys.count("num_attention_heads")
    one = keys.values.get("multi_query") is True and not keys.values.get("new_decoder_architecture")
    quantised = whole.get("quantization_config")
    return Outline(
        name=name,
        layers=_layers(keys),
        kv_heads=1 if one else keys.count("num_key_value_heads", heads),
        head_size=keys.count("head_dim", keys.count("hidden_size") // heads),
        context=keys.count("max_position_embeddings"),
        weights=_weights(config, file) if config is whole else None,
        stored_bytes=_stored(file.parent),
        bits=_bits(Keys(quantised, file, "quantization_config.")) if isinstance(quantised, dict) else None,
    )


def _renamed(config: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, others in _NAMES.items():
        value = next((config[other] for other in others if config.get(other) is not None), None)
        if value is not None and config.get(name) is None:
            found[name] = value
    return found


def _layers(keys: Keys) -> int:
    """Those with keys and values: a list of kinds may say that others hold a state of fixed size."""
    layers = keys.count("num_hidden_layers")
    kinds = next((name for name in ("layer_types", "layers_block_type") if keys.values.get(name)), None)
    if kinds is None:
        return layers
    listed = [keys.item(kinds, layer, (*_KEEPING, *_STATEFUL)) for layer in range(layers)]
    return sum(kind in _KEEPING for kind in listed)


def _weights(config: Mapping[str, Any], file: Path) -> Weights | None:
    """By the shape, where the family is one of those that can be computed."""
    plain = {key: value for key, value in config.items() if not key.startswith("quantization")}
    try:
        shape = shape_from_config(plain, file)
    except ModelError:
        return None
    others = shape.vocab * shape.hidden * (1 if shape.tied else 2)
    return Weights(shape.parameters - others, others)


def _stored(folder: Path) -> int | None:
    """By the index of the checkpoint's parts, else by the parts that are there."""
    index = folder / _INDEX
    if index.exists():
        total = Keys(read_json(index), index).mapping("metadata").get("total_size")
        if isinstance(total, int | float):
            return int(total)
    return sum(part.stat().st_size for part in folder.glob("*.safetensors")) or None


def _bits(keys: Keys) -> float | None:
    """Bits of a weight: AWQ, GPTQ and others say `bits`, and share a scale and a zero in groups."""
    if "bits" not in keys.values:
        return None
    bits = keys.real("bits")
    group = keys.values.get("group_size")
    return bits + ((16 + bits) / group if isinstance(group, int) and group > 0 else 0.0)


def _of_gguf(path: Path) -> Outline:
    file = read_gguf(path)
    prefix = f"{file.metadata.get('general.architecture')}."
    found = {key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)}
    keys = Keys(found, path, prefix)
    if keys.values.get("attention.kv_lora_rank"):
        raise keys.wrong("attention.kv_lora_rank", _COMPRESSED)
    heads = keys.count("attention.head_count")
    return Outline(
        name=path.stem,
        layers=keys.count("block_count"),
        kv_heads=keys.count("attention.head_count_kv", heads),
        head_size=keys.count("attention.key_length", keys.count("embedding_length") // heads),
        context=keys.count("context_length"),
        stored_bytes=path.stat().st_size - min(tensor.offset for tensor in file.tensors.values()),
    )
