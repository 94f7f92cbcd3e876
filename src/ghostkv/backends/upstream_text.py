"""The text side of a model whose weights are elsewhere: tokenizer, template, sizes. Without weights and torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ghostkv.errors import ModelError
from ghostkv.model.gguf_file import read_gguf
from ghostkv.model.hf_text import read_template, read_tokenizer
from ghostkv.model.json_file import read_json
from ghostkv.text.gguf_tokenizer import tokenizer_from_gguf
from ghostkv.text.tokenizer import Tokenizer

KV_NUMBER_BYTES = 2
"""Of a number of KV, where nothing else is said."""


@dataclass(frozen=True, slots=True)
class ModelText:
    """What assembling prompts for a model needs."""

    name: str
    tokenizer: Tokenizer
    template: str | None
    """Source of the chat template; None if the model has none."""
    context: int
    """Tokens; 0 where the files do not say."""
    kv_bytes_per_token: int
    """In 16-bit numbers; 0 where the files do not say."""


def read_text(path: Path) -> ModelText:
    """Of a Hugging Face directory (weights may be absent) or a .gguf file. Raises ModelError naming the file."""
    if path.is_dir():
        return _of_directory(path)
    if path.suffix == ".gguf" and path.is_file():
        return _of_gguf(path)
    raise ModelError(f"{path}: neither a directory with tokenizer.json and config.json nor a .gguf file")


def _of_directory(path: Path) -> ModelText:
    config = read_json(path / "config.json")
    text = config.get("text_config")
    sizes = text if isinstance(text, dict) else config
    heads = _count(sizes, "num_attention_heads")
    head = _count(sizes, "head_dim") or (_count(sizes, "hidden_size") // heads if heads else 0)
    kv_heads = _count(sizes, "num_key_value_heads") or heads
    return ModelText(
        name=path.resolve().name,
        tokenizer=read_tokenizer(path, config),
        template=read_template(path),
        context=_count(sizes, "max_position_embeddings"),
        kv_bytes_per_token=2 * KV_NUMBER_BYTES * _count(sizes, "num_hidden_layers") * kv_heads * head,
    )


def _of_gguf(path: Path) -> ModelText:
    metadata = read_gguf(path).metadata
    kind = str(metadata.get("general.architecture", ""))
    sizes = {name.removeprefix(f"{kind}."): value for name, value in metadata.items()}
    heads = _count(sizes, "attention.head_count")
    head = _count(sizes, "attention.key_length") or (_count(sizes, "embedding_length") // heads if heads else 0)
    kv_heads = _count(sizes, "attention.head_count_kv") or heads
    template = metadata.get("tokenizer.chat_template")
    return ModelText(
        name=path.stem,
        tokenizer=tokenizer_from_gguf(metadata, str(path)),
        template=template if isinstance(template, str) else None,
        context=_count(sizes, "context_length"),
        kv_bytes_per_token=2 * KV_NUMBER_BYTES * _count(sizes, "block_count") * kv_heads * head,
    )


def _count(values: Mapping[str, Any], name: str) -> int:
    value = values.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
