"""Prepared weights on disk, so that a second start maps them into memory instead of computing them again.

One safetensors file per (model digest, form) in the cache directory, the last few that were used. Not a place of truth:
whatever is wrong with a file here, it is built again.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
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
_KEPT = 8  # files; one more, and the one that was not used for longest goes
_ABANDONED_S = 86_400.0  # a draft so old was left by a process that was killed

Tensors = dict[str, torch.Tensor]
Layout = Mapping[str, tuple[torch.dtype, Shape]]


def cached_weights(digest: str, form: str, layout: Layout, build: Callable[[], Tensors]) -> Tensors:
    """The tensors named in `layout`, memory-mapped; `build` makes them where the cache has none that is whole.

    `digest` covers what they are made from, `form` says what was made. Raises ModelError if the cache directory cannot
    be written.
    """
    file = cache_dir() / "weights" / f"{digest}-{form}-{_FORMAT}.safetensors"
    weights = _read(file, layout)
    if weights is None:
        _write(file, build())
        weights = _read(file, layout)
    if weights is None:
        raise ModelError(f"{file}: cached weights differ from what was written; is the disk faulty?")
    return weights


def _read(file: Path, layout: Layout) -> Tensors | None:
    """The whole file's tensors, or None if it is absent, damaged or holds something else."""
    weights: Tensors = {}
    try:
        with safe_open(file, framework="pt") as opened:
            sums = json.loads((opened.metadata() or {}).get("crc32", "{}"))
            if set(opened.keys()) != set(layout):
                return None
            for name, expected in layout.items():
                tensor = opened.get_tensor(name)
                if (tensor.dtype, tuple(tensor.shape)) != expected or _checksum(tensor) != sums.get(name):
                    return None
                weights[name] = tensor
    except (OSError, SafetensorError, ValueError):
        return None
    with contextlib.suppress(OSError):  # a cache that is only read keeps what it has
        os.utime(file)
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
        raise ModelError(f"{file}: cannot write prepared weights ({error}); set GHOSTKV_CACHE elsewhere") from error
    _prune(file.parent)


def _prune(directory: Path) -> None:
    """Keep the files used last. Who has a removed one mapped keeps what it reads."""
    with contextlib.suppress(OSError):  # another process may do the same
        used = {file: file.stat().st_mtime for file in directory.iterdir()}
        files = sorted((file for file in used if file.suffix == ".safetensors"), key=lambda file: used[file])
        for file in files[:-_KEPT]:
            file.unlink()
        for draft, since in used.items():
            if draft.is_dir() and since < time.time() - _ABANDONED_S:
                shutil.rmtree(draft)


def _checksum(tensor: torch.Tensor) -> int:
    return zlib.crc32(tensor.view(torch.uint8).numpy().data)
