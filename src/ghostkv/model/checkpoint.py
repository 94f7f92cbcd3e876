"""A model on disk, whatever its format: what `open_checkpoint` gives, and how it chooses the loader."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch

from ghostkv.errors import ModelError
from ghostkv.model.gguf_loader import open_gguf
from ghostkv.model.safetensors_loader import open_safetensors
from ghostkv.model.shape import ModelShape
from ghostkv.text.tokenizer import Tokenizer


class Checkpoint(Protocol):
    """A checkpoint whose metadata, tokenizer and tensor layout have been read and checked; its weights have not."""

    @property
    def path(self) -> Path:
        """The directory or file."""
        ...

    @property
    def name(self) -> str:
        """The id under which it is served: the directory's name, or the file's without its suffix."""
        ...

    @property
    def shape(self) -> ModelShape:
        """Sizes."""
        ...

    @property
    def digest(self) -> str:
        """32 hex digits over weights, configuration and tokenizer."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer with the model's BOS and end-of-sequence ids."""
        ...

    @property
    def template(self) -> str | None:
        """Source of the chat template; None if the model has none."""
        ...

    def weights(self, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """Contiguous tensors of `dtype` under Hugging Face names, matrices [out, in]; no lm_head.weight if tied.

        Query and key rows are ordered for half-split rotary. The tensors may be mapped from a file: do not write to
        them. Raises ModelError for NaN, infinite or unreadable weights.
        """
        ...


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a Hugging Face directory or a .gguf file. Raises ModelError naming what is wrong with which file."""
    if path.is_dir():
        return open_safetensors(path)
    if not path.exists():
        raise ModelError(f"{path}: no such model file or directory")
    if path.suffix == ".gguf":
        return open_gguf(path)
    raise ModelError(f"{path}: neither a directory with config.json nor a .gguf file")
