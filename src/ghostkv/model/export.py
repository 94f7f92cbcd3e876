"""Writes any checkpoint as a bfloat16 Hugging Face directory, so that peers and oracles compute with equal values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ghostkv.errors import ConfigError
from ghostkv.model.checkpoint import Checkpoint
from ghostkv.model.hf_config import config_of
from ghostkv.text.tokenizer import Tokenizer


def export_hf(checkpoint: Checkpoint, directory: Path) -> Path:
    """Write config, weights, tokenizer and chat template into `directory` and return it.

    The directory is made if it does not exist. Raises ConfigError if it already holds anything, ModelError for what a
    config.json cannot say.
    """
    if directory.exists() and any(directory.iterdir()):
        raise ConfigError(f"{directory}: not empty; export writes into a new directory")
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer, shape = checkpoint.tokenizer, checkpoint.shape
    ids = _id_settings(tokenizer)
    _write_json(directory / "config.json", config_of(shape) | ids)
    _write_json(directory / "generation_config.json", ids)
    (directory / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    _write_json(directory / "tokenizer_config.json", _tokenizer_settings(tokenizer, checkpoint.template, shape.context))
    save_file(checkpoint.weights(torch.bfloat16), directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def _id_settings(tokenizer: Tokenizer) -> dict[str, Any]:
    settings: dict[str, Any] = {"eos_token_id": list(tokenizer.eos_ids)} if tokenizer.eos_ids else {}
    return settings if tokenizer.bos_id is None else settings | {"bos_token_id": tokenizer.bos_id}


def _tokenizer_settings(tokenizer: Tokenizer, template: str | None, context: int) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": tokenizer.add_bos,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
    }
    if tokenizer.bos_id is not None:
        settings["bos_token"] = tokenizer.token_text(tokenizer.bos_id)
    if tokenizer.eos_ids:
        settings["eos_token"] = tokenizer.token_text(tokenizer.eos_ids[0])
    return settings if template is None else settings | {"chat_template": template}


def _write_json(file: Path, value: dict[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
