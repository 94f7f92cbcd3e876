"""Frozen configuration and the byte sizes that people type."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
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
    kv_dtype: str = "auto"
    """Numbers of KV: "auto", as `dtype` says; "int8": digits with a scale per token and head, about half the bytes."""
    device: str = "cpu"
    """Where the model runs: "cpu" (the numeric contract holds), or a torch device such as "cuda" (it does not)."""
    threads: int = 0
    """Compute threads; 0 takes every core this process may run on."""
    steering: str = ""
    """File of the model's control vectors; "" for none."""
    speculation: str = "lookup"
    """Guesses several tokens at once where that pays, never changes an output: "lookup" or "off"."""
    max_sequences: int = 128
    """Requests that may run in one step, and tokens that may be chosen in one."""
    step_tokens: int = 512
    """Tokens computed in one step, decodes first, the rest prefill."""
    max_waiting: int = 1024
    """Requests that may wait in line; one more is refused with 429."""
    max_wait_s: float = 10.0
    """Seconds that a request waits in line before sessions take turns, segment by segment (residency `auto`)."""
    default_max_tokens: int = 4096
    """Answer length where the request gives none (at most what the context leaves)."""
    max_session_tokens: int = 131_072
    """Output tokens of one session, over all segments."""


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """How much the sessions of each tenant may take, and how long they are kept."""

    count: int = 1000
    """Sessions; one more is refused with 429."""
    memory: int = 256 * 2**20
    """Bytes, about, of conversations and all outputs with their log-probabilities; what may exceed it is refused."""
    idle_s: float = 3600.0
    """Seconds after which a session that nobody uses is forgotten."""
    grace_s: float = 60.0
    """Seconds for which a session's answer goes on that nobody reads."""

    def __post_init__(self) -> None:
        for name, least in (("count", 1), ("memory", 1), ("idle_s", 0), ("grace_s", 0)):
            if not getattr(self, name) >= least:  # true for NaN as well
                raise ConfigError(f"sessions: {name} must be at least {least}, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """What a server allows its clients, besides what the engine may use."""

    max_waiting_tokens: int = 2**22
    """Tokens in line, prompts and longest answers together; a request that would make them more is refused with 429."""
    keep_alive_s: float = 5.0
    """A stream that was silent for so long says that it still lives."""
    max_deadline_s: float | None = None
    """Longest that an answer may take, and the deadline of requests that name none; None: no limit."""
    sessions: SessionLimits = field(default_factory=SessionLimits)
    drain_s: float = 10.0
    """What running answers have to end by themselves after the first signal."""
    resume_s: float = 30.0
    """With a store: after so long a start goes on with answers that broke off and that nobody has come back to."""

    def __post_init__(self) -> None:
        if self.max_waiting_tokens < 1:
            raise ConfigError(f"max_waiting_tokens must be at least 1, not {self.max_waiting_tokens}")
        for name in ("keep_alive_s", "max_deadline_s"):
            seconds = getattr(self, name)
            if seconds is not None and not seconds > 0:  # true for NaN as well
                raise ConfigError(f"{name} must be more than 0 seconds, not {seconds}")
        for name in ("drain_s", "resume_s"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} must be at least 0 seconds, not {getattr(self, name)}")
