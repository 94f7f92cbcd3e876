"""Engines by name: `auto:int8:int8` is residency auto with int8 weights and int8 KV; peers need a place on disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ghostkv.errors import ConfigError
from ghostkv.pressure.engines import Engine
from ghostkv.pressure.ghost import Ghost, GhostOver
from ghostkv.pressure.peers import LlamaServer, Running, Vllm

OWN = ("auto", "segment", "full", "sink_window")
PEERS = ("vllm", "llama", "llama-shift", "segment-over-vllm")
_WEIGHTS = ("bfloat16", "float32", "int8")
_KV = ("auto", "int8")


@dataclass(frozen=True, slots=True)
class Places:
    """Where the peers are."""

    vllm: Path
    """vLLM's environment."""
    checkpoint: Callable[[], Path]
    """Gives the model in bfloat16 as a Hugging Face directory, made on first use."""
    llama: Path
    """llama.cpp's directory, with `build` in it."""
    gguf: Path
    """The model for llama.cpp."""


def engine(name: str, places: Places) -> Engine:
    """By name, or the URL of a server that runs. Raises ConfigError."""
    if name.startswith("http://"):
        running = Running(name)
        _ = running.attached  # refuses a URL of another form
        return running
    kind, *precision = name.split(":")
    if kind in OWN:
        weights, kv = _precision(name, precision)
        return Ghost(kind, weights, kv)
    if precision or kind not in PEERS:
        raise ConfigError(
            f"there is no engine {name!r}: choose among {', '.join(OWN)} (each also as NAME:WEIGHTS[:KV], such as "
            f"auto:int8:int8), {', '.join(PEERS)}, or the URL of a server that runs"
        )
    if kind in ("llama", "llama-shift"):
        return LlamaServer(places.llama, places.gguf, _quantization(places.gguf), shift=kind == "llama-shift")
    peer = Vllm(places.vllm, places.checkpoint())
    return peer if kind == "vllm" else GhostOver(peer)


def _precision(name: str, parts: list[str]) -> tuple[str, str]:
    """Of weights and KV."""
    for part, known in zip(parts, (_WEIGHTS, _KV)):
        if part not in known:
            raise ConfigError(f"engine {name!r}: {part!r} is none of {', '.join(known)}")
    if len(parts) > 2:
        raise ConfigError(f"engine {name!r}: write NAME:WEIGHTS:KV")
    return parts[0] if parts else _WEIGHTS[0], parts[1] if parts[1:] else _KV[0]


def _quantization(gguf: Path) -> str:
    """The type that llama.cpp's files end in: "Q8_0" of "model-Q8_0.gguf"."""
    return gguf.stem.replace(".", "-").rpartition("-")[2]
