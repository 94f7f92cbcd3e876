"""Loads a Hugging Face directory: config.json, safetensors in one file or shards, tokenizer.json, chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ghostkv.errors import ModelError
from ghostkv.model.digest import content_digest
from ghostkv.model.hf_shape import shape_from_config
from ghostkv.model.hf_text import read_template, read_tokenizer
from ghostkv.model.json_file import read_json, read_optional_json
from ghostkv.model.shape import ModelShape
from ghostkv.model.tensors import Shape, check_finite, check_layout
from ghostkv.text.tokenizer import Tokenizer

_READABLE = ("F32", "F16", "BF16")
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class SafetensorsCheckpoint:
    """A Checkpoint read from a Hugging Face directory."""

    path: Path
    name: str
    shape: ModelShape
    digest: str
    tokenizer: Tokenizer
    template: str | None
    files: Mapping[str, Path]  # tensor -> the file that holds it

    def weights(self, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """See Checkpoint.weights. Tensors already of `dtype` are mapped, others converted in memory."""
        weights = {}
        for file in sorted(set(self.files.values())):
            names = [name for name, holder in self.files.items() if holder == file]
            try:
                with safe_open(file, framework="pt") as opened:
                    for name in names:
                        weights[name] = opened.get_tensor(name).to(dtype).contiguous()
            except (OSError, SafetensorError) as error:
                raise ModelError(f"{file}: cannot be read: {error}") from error
            for name in names:
                check_finite(file, name, weights[name])
        return {name: weights[name] for name in self.files}


def open_safetensors(directory: Path) -> SafetensorsCheckpoint:
    """Read and check everything but the weights' values."""
    config_file = directory / "config.json"
    config = read_json(config_file)
    shape = shape_from_config(config, config_file)
    tokenizer = read_tokenizer(directory, config)
    if tokenizer.vocab_size > shape.vocab:
        raise ModelError(
            f"{directory / 'tokenizer.json'}: {tokenizer.vocab_size} token ids, but the model embeds {shape.vocab}"
        )
    files = _places(directory, shape)
    return SafetensorsCheckpoint(
        path=directory,
        name=directory.resolve().name,
        shape=shape,
        digest=content_digest({config_file, directory / "tokenizer.json", *files.values()}),
        tokenizer=tokenizer,
        template=read_template(directory),
        files=files,
    )


def _places(directory: Path, shape: ModelShape) -> dict[str, Path]:
    """The file of every tensor that the model needs, layout checked."""
    found: dict[str, Shape] = {}
    places: dict[str, Path] = {}
    for file in _weight_files(directory):
        for name, entry in _header(file).items():
            if name in places:
                raise ModelError(f"{file}: tensor {name} is in {places[name].name} as well")
            found[name], places[name] = entry, file
    for name in list(found):
        # Old conversions stored the rotary table; some tied models store the head, which transformers ignores.
        if name.endswith(".rotary_emb.inv_freq") or (shape.tied and name == "lm_head.weight"):
            del found[name]
    expected = shape.tensor_shapes()
    check_layout(expected, found, lambda name: places.get(name) or _intended(directory, name))
    return {name: places[name] for name in expected}


def _weight_files(directory: Path) -> list[Path]:
    index = directory / _INDEX
    if index.is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ModelError(f"{index}: weight_map is missing or empty")
        for tensor, name in weight_map.items():
            if not isinstance(name, str) or Path(name).name != name:
                raise ModelError(f"{index}: tensor {tensor} is placed in {name!r}, not a file of this directory")
            if not (directory / name).is_file():
                raise ModelError(f"{directory / name}: shard is missing (it holds {tensor}, says {_INDEX})")
        return [directory / name for name in sorted(set(weight_map.values()))]
    files = [directory / "model.safetensors"]
    if not files[0].is_file():
        files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{directory}: no *.safetensors file")
    return files


def _intended(directory: Path, tensor: str) -> Path:
    """The file in which a missing tensor should have been."""
    weight_map = read_optional_json(directory / _INDEX).get("weight_map", {})
    return directory / str(weight_map[tensor]) if tensor in weight_map else _weight_files(directory)[0]


def _header(file: Path) -> dict[str, Shape]:
    """Shapes by tensor name. Refuses another dtype, and a tensor that reaches beyond the end of the file."""
    size = file.stat().st_size
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if size < 8 or length > size - 8:
                raise ModelError(
                    f"{file}: truncated: the header goes on at byte {8 + length}, the file has {size} bytes"
                )
            header: dict[str, Any] = json.loads(opened.read(length))
        header.pop("__metadata__", None)
        shapes = {}
        for name, entry in header.items():
            dtype, shape, end = str(entry["dtype"]), tuple(map(int, entry["shape"])), int(entry["data_offsets"][1])
            if dtype not in _READABLE:
                raise ModelError(f"{file}: tensor {name} has type {dtype}; readable are {', '.join(_READABLE)}")
            if 8 + length + end > size:
                raise ModelError(
                    f"{file}: truncated: tensor {name} ends at byte {8 + length + end}, the file has {size} bytes"
                )
            shapes[name] = shape
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise ModelError(f"{file}: not a readable safetensors file: {error}") from error
    return shapes
