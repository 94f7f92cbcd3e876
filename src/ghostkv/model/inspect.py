"""The figures of `ghostkv models inspect`. Measures; does not print."""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from ghostkv.model.checkpoint import open_checkpoint
from ghostkv.model.kv_tensors import block_bytes
from ghostkv.model.shape import ModelShape
from ghostkv.step import BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a model is and what it costs to hold."""

    name: str
    path: Path
    digest: str
    shape: ModelShape
    parameters: int  # a tied head counts once
    kv_bytes_per_token: int  # bfloat16 pool
    kv_bytes_per_token_float32: int
    kv_bytes_per_token_int8: int  # digits and their scales
    weight_bytes: int  # in bfloat16
    open_s: float  # metadata, tokenizer, digest
    load_s: float  # weights as bfloat16, every page read; the first time this includes dequantising
    peak_rss_bytes: int  # largest resident set of this process so far


def inspect_model(path: Path) -> Inspection:
    """Open and load the model at `path` as bfloat16. Raises ModelError as loading does."""
    started = time.perf_counter()
    checkpoint = open_checkpoint(path)
    opened = time.perf_counter()
    weights = checkpoint.weights(torch.bfloat16)
    loaded = time.perf_counter()
    shape = checkpoint.shape
    return Inspection(
        name=checkpoint.name,
        path=path,
        digest=checkpoint.digest,
        shape=shape,
        parameters=shape.parameters,
        kv_bytes_per_token=shape.kv_bytes_per_token(2),
        kv_bytes_per_token_float32=shape.kv_bytes_per_token(4),
        kv_bytes_per_token_int8=block_bytes(shape, torch.int8) // BLOCK_TOKENS,
        weight_bytes=sum(tensor.nbytes for tensor in weights.values()),
        open_s=opened - started,
        load_s=loaded - opened,
        peak_rss_bytes=_peak_rss(),
    )


def _peak_rss() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # kernel units: bytes on macOS, KiB on Linux
