"""vLLM and llama.cpp as engines of the comparison, and any server that runs already."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ghostkv.errors import ConfigError
from ghostkv.pressure.cells import POOL_STEP
from ghostkv.pressure.engines import Gauges, Metrics, Seat, between
from ghostkv.pressure.process import Launch, free_port
from ghostkv.pressure.wire import Address

_VLLM_COUNTERS = {
    "preemptions": "vllm:num_preemptions_total",
    "prefill_tokens": "vllm:prompt_tokens_total",
    "inference_s": "vllm:request_inference_time_seconds_sum",
}
_LLAMA_COUNTERS = {
    "prefill_tokens": "llamacpp:prompt_tokens_total",
    "prompt_s": "llamacpp:prompt_seconds_total",
    "predicted_s": "llamacpp:tokens_predicted_seconds_total",
}
_VLLM_WAVE = 256
_LLAMA_PART = 256
"""llama.cpp rounds the tokens of a slot up to a multiple of this."""


@dataclass(frozen=True, slots=True)
class Vllm:
    """vLLM's CPU build from an environment of its own, on a checkpoint that was exported in bfloat16."""

    environment: Path  # as benchmarks/vllm_environment.py makes it
    checkpoint: Path  # Hugging Face directory
    name: str = "vllm"
    leads: bool = True
    weights: str = "bfloat16"
    kv: str = "auto"
    residency: str = "full"
    attached: Address | None = None

    def settings(self, seat: Seat) -> dict[str, Any]:
        """See Engine."""
        return {
            "engine": "vllm",
            "version": _version(self.environment, "vllm"),
            "dtype": self.weights,
            "kv_cache_memory_bytes": seat.kv_bytes,
            "block_size": POOL_STEP,
            "max_model_len": self._context(seat),
            "max_num_seqs": seat.wave or _VLLM_WAVE,
            "environment": sorted(self._variables()),
        }

    def launches(self, seat: Seat) -> tuple[Launch, ...]:
        """Its OpenAI server, with every core for its kernels (by default it keeps one) and its own OpenMP."""
        python = self.environment / "bin" / "python"
        if not python.exists():
            raise ConfigError(f"{self.environment}: no vLLM there; benchmarks/vllm_environment.py makes it")
        port = free_port()
        options = ["--model", str(self.checkpoint), "--port", str(port), "--host", "127.0.0.1", "--dtype", self.weights]
        options += ["--kv-cache-memory-bytes", str(seat.kv_bytes), "--block-size", str(POOL_STEP)]
        options += ["--max-model-len", str(self._context(seat)), "--max-num-seqs", str(seat.wave or _VLLM_WAVE)]
        command = (str(python), "-m", "vllm.entrypoints.openai.api_server", *options)
        return (Launch(command, port, environment=self._variables()),)

    def body(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """With usage in every event."""
        return {**fields, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}

    def keys(self, seat: Seat) -> Mapping[str, str]:
        """It knows no tenants."""
        return {}

    def gauges(self, metrics: Metrics, seat: Seat) -> Gauges:
        """Its share of blocks in use, of the pool."""
        share = metrics.get("vllm:kv_cache_usage_perc")
        return Gauges(None if share is None else share * seat.kv_bytes)

    def counts(self, before: Metrics, after: Metrics, seat: Seat) -> dict[str, float]:
        """Seconds of inference are summed over requests, so they mean something only for one user."""
        found = between(before, after, _VLLM_COUNTERS)
        if len(seat.cell.jobs) > 1:
            found.pop("inference_s", None)
        return found

    def _context(self, seat: Seat) -> int:
        """It does not start with a context that the pool does not hold, of which it keeps one block empty."""
        return min(seat.model.context, seat.cell.pool_tokens - POOL_STEP)

    def _variables(self) -> dict[str, str]:
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        found = {"VLLM_CPU_OMP_THREADS_BIND": cores, "VLLM_ENGINE_READY_TIMEOUT_S": "1200"}
        if openmp := next(iter(self.environment.glob("lib/libiomp5.so")), None):
            found["LD_PRELOAD"] = str(openmp)
        return found


@dataclass(frozen=True, slots=True)
class LlamaServer:
    """llama.cpp's server, its KV divided among slots beforehand; `shift`: a full slot drops its oldest half."""

    environment: Path  # as benchmarks/llama_environment.py makes it
    gguf: Path
    weights: str
    shift: bool = False
    leads: bool = False
    kv: str = "f16"
    attached: Address | None = None

    @property
    def name(self) -> str:
        """See Engine."""
        return f"llama.cpp {self.weights}" + (" context shift" if self.shift else "")

    @property
    def residency(self) -> str:
        """What left a shifted context is gone; that was not evaluated."""
        return "context shift" if self.shift else "full"

    def settings(self, seat: Seat) -> dict[str, Any]:
        """See Engine."""
        slots, tokens = self._slots(seat)
        return {"engine": "llama.cpp", "weights": self.weights, "slots": slots, "c": tokens, "options": self._options()}

    def launches(self, seat: Seat) -> tuple[Launch, ...]:
        """See Engine."""
        program = self.environment / "build" / "bin" / "llama-server"
        if not program.exists():
            raise ConfigError(f"{self.environment}: no llama-server there; benchmarks/llama_environment.py builds it")
        port, (slots, tokens) = free_port(), self._slots(seat)
        command = [str(program), "-m", str(self.gguf), "--port", str(port), "-c", str(tokens), "-np", str(slots)]
        command += ["-t", str(len(os.sched_getaffinity(0))), *self._options()]
        command += ["--threads-http", str(len(seat.cell.jobs) + 16)]  # each request holds one while it is in line
        return (Launch(tuple(command), port),)

    def body(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Its own filters off, so that it chooses from the same probabilities."""
        return {**fields, "top_k": 0, "min_p": 0.0, "cache_prompt": False}

    def keys(self, seat: Seat) -> Mapping[str, str]:
        """It knows no tenants."""
        return {}

    def gauges(self, metrics: Metrics, seat: Seat) -> Gauges:
        """Its slots are allocated once and it does not tell what is filled."""
        return Gauges()

    def counts(self, before: Metrics, after: Metrics, seat: Seat) -> dict[str, float]:
        """Its own seconds, for one user; with several they overlap."""
        found = between(before, after, _LLAMA_COUNTERS)
        seconds = found.pop("prompt_s", 0.0) + found.pop("predicted_s", 0.0)
        return {**found, "inference_s": round(seconds, 3)} if len(seat.cell.jobs) == 1 else found

    def _slots(self, seat: Seat) -> tuple[int, int]:
        """(slots, tokens of all): as many as hold the longest answer, or with shifting the least that a slot may have.

        A pool that does not hold the longest answer makes one slot of what there is.
        """
        pool = seat.cell.pool_tokens
        whole = -(-seat.cell.longest // _LLAMA_PART) * _LLAMA_PART
        prompt = max(job.prompt for job in seat.cell.jobs)
        least = max(1, -(-2 * prompt // _LLAMA_PART)) * _LLAMA_PART
        size = min(least if self.shift else whole, whole)
        size = min(size, max(_LLAMA_PART, pool // _LLAMA_PART * _LLAMA_PART))
        slots = max(1, min(pool // size, len(seat.cell.jobs), seat.wave or _VLLM_WAVE))
        return slots, slots * size

    def _options(self) -> list[str]:
        options = ["--no-kv-unified", "-ctk", "f16", "-ctv", "f16", "--cache-ram", "0", "--no-cache-idle-slots"]
        options += ["--fit", "off", "--metrics"]
        return [*options, *(["--context-shift", "--keep", "4"] if self.shift else ["--no-context-shift"])]


@dataclass(frozen=True, slots=True)
class Running:
    """A server that runs already, at a URL. Nothing is known of it but what clients see."""

    url: str
    leads: bool = True
    weights: str = "unknown"
    kv: str = "unknown"
    residency: str = "unknown"

    @property
    def name(self) -> str:
        """Its URL."""
        return self.url

    @property
    def attached(self) -> Address:
        """Raises ConfigError for a URL that is not http://127.0.0.1:PORT."""
        parts = urlsplit(self.url)
        if parts.scheme != "http" or parts.hostname not in ("127.0.0.1", "localhost") or not parts.port:
            raise ConfigError(f"{self.url}: a running server is given as http://127.0.0.1:PORT")
        return Address(parts.port)

    def settings(self, seat: Seat) -> dict[str, Any]:
        """See Engine."""
        return {"engine": "running", "url": self.url}

    def launches(self, seat: Seat) -> tuple[Launch, ...]:
        """Nothing is started."""
        return ()

    def body(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """As it is."""
        return dict(fields)

    def keys(self, seat: Seat) -> Mapping[str, str]:
        """It is asked without."""
        return {}

    def gauges(self, metrics: Metrics, seat: Seat) -> Gauges:
        """Unknown."""
        return Gauges()

    def counts(self, before: Metrics, after: Metrics, seat: Seat) -> dict[str, float]:
        """Unknown."""
        return {}


def _version(environment: Path, package: str) -> str:
    found = sorted(environment.glob(f"lib/python*/site-packages/{package}*.dist-info/METADATA"))
    lines = found[0].read_text(encoding="utf-8").splitlines() if found else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("Version:")), "")
