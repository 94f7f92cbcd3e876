"""Converted weights on disk, so that a second start maps them into memory instead of dequantising again.

One safetensors file per (model digest, dtype) in the cache directory. Not a place of truth: whatever is wrong with a
file here, it is built again.
"""

from __future__ import annotations

import json
import os
import tempfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ghostkv.config import cache_dir
from ghostkv.errors import ModelError
from ghostkv.model.tensors import Shape

_FORMAT = "1"  # raise it when a loader's conversion changes

Tensors = dict[str, torch.Tensor]


def cached_weights(
    digest: str, dtype: torch.dtype, shapes: Mapping[str, Shape], build: Callable[[], Tensors]
) -> Tensors:
    """The tensors named in `shapes`, memory-mapped; `build` makes them where the cache has none that is whole.

    Raises ModelError if the cache directory cannot be written.
    """
    file = cache_dir() / "weights" / f"{digest}-{str(dtype).removeprefix('torch.')}-{_FORMAT}.safetensors"
    weights = _read(file, dtype, shapes)
    if weights is None:
        _write(file, build())
        weights = _read(file, dtype, shapes)
    if weights is None:
        raise ModelError(f"{file}: cached weights differ from what was written; is the disk faulty?")
    return weights


def _read(file: Path, dtype: torch.dtype, shapes: Mapping[str, Shape]) -> Tensors | None:
    """The whole file's tensors, or None if it is absent, damaged or holds something else."""
    weights: Tensors = {}
    try:
        with safe_open(file, framework="pt") as opened:
            sums = json.loads((opened.metadata() or {}).get("crc32", "{}"))
            if set(opened.keys()) != set(shapes):
                return None
            for name, shape in shapes.items():
                tensor = opened.get_tensor(name)
                if tensor.dtype != dtype or tuple(tensor.shape) != shape or _checksum(tensor) != sums.get(name):
                    return None
                weights[name] = tensor
    except (OSError, SafetensorError, ValueError):
        return None
    return weights


def _write(file: Path, weights: Tensors) -> None:
    """Write beside the target, flush, then rename: a reader sees a whole file or none."""
    sums = json.dumps({name: _checksum(tensor) for name, tensor in weights.items()})
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent) as scratch:
            draft = Path(scratch) / file.name
            save_file(weights, draft, metadata={"format": "pt", "crc32": sums})
            with draft.open("rb") as written:
                os.fsync(written.fileno())
            draft.replace(file)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{file}: cannot write converted weights ({error}); set GHOSTKV_CACHE elsewhere") from error


def _checksum(tensor: torch.Tensor) -> int:
    return zlib.crc32(tensor.view(torch.uint8).numpy().data)
