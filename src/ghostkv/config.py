"""Frozen configuration and the byte sizes that people type."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from ghostkv.errors import ConfigError

_UNITS = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9}


def parse_bytes(text: str) -> int:
    """Bytes meant by `text`, e.g. "96MiB", "1.5 GB", "4096"."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    if match is None or match[2].lower() not in _UNITS:
        raise ConfigError(f"{text!r} is not a size: write a number and one of KiB, MiB, GiB, KB, MB, GB")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def cache_dir() -> Path:
    """Where pulled models, converted weights and self-checks are kept: $GHOSTKV_CACHE, else ~/.cache/ghostkv."""
    return Path(os.environ.get("GHOSTKV_CACHE") or Path.home() / ".cache" / "ghostkv")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What the engine may use. Sizes in bytes, tokens or sequences as named."""

    kv_budget: int = 512 * 2**20
    """Bytes of the KV pool, allocated once."""
    dtype: str = "bfloat16"
    """Numbers of weights, activations and KV: "bfloat16" or "float32"; "int8": products of integers, KV in bfloat16."""
    device: str = "cpu"
    """Where the model runs: "cpu" (the numeric contract holds), or a torch device such as "cuda" (it does not)."""
    threads: int = 0
    """Compute threads; 0 takes every core this process may run on."""
    steering: str = ""
    """File of the model's control vectors; "" for none."""
    max_sequences: int = 128
    """Requests that may run in one step."""
    step_tokens: int = 512
    """Tokens computed in one step, decodes first, the rest prefill."""
    max_waiting: int = 1024
    """Requests that may wait in line; one more is refused with 429."""
    default_max_tokens: int = 4096
    """Answer length where the request gives none (at most what the context leaves)."""
    max_session_tokens: int = 131_072
    """Output tokens of one session, over all segments."""
