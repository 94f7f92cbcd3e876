"""ghostkv as an engine of the comparison: one residency, one precision; also over another engine's completions."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ghostkv.pressure.engines import Engine, Gauges, Metrics, Seat, between
from ghostkv.pressure.process import Launch, free_port
from ghostkv.pressure.wire import Address

_COUNTERS = {
    "recomputed_tokens": "ghostkv_recomputed_tokens_total",
    "rehydrated_tokens": "ghostkv_rehydrated_tokens_total",
    "carried_tokens": "ghostkv_carried_tokens_total",
    "recalled_tokens": "ghostkv_recalled_tokens_total",
    "segments": "ghostkv_segments_total",
    "prefill_tokens": "ghostkv_prefill_tokens_total",
    "waits_for_memory": "ghostkv_waits_for_memory_total",
    "steps": "ghostkv_engine_steps_total",
    "inference_s": "ghostkv_engine_step_seconds_total",
    "flushes": 'ghostkv_boundaries_total{decision="flush"}',
    "keeps": 'ghostkv_boundaries_total{decision="keep"}',
    "exact_answers": 'ghostkv_answers_total{exact="true"}',
    "inexact_answers": 'ghostkv_answers_total{exact="false"}',
    "payload_bytes": "ghostkv_payload_bytes_sum",
    "payloads": "ghostkv_payload_bytes_count",
}
_TOKENS_IN_LINE = 2**31 - 1
_DEFAULT_WAVE = 128


@dataclass(frozen=True, slots=True)
class Ghost:
    """`ghostkv serve` with SmolLM2's or another model's weights in `weights`, and `kv` for the pool."""

    residency: str = "auto"
    weights: str = "bfloat16"
    kv: str = "auto"
    attached: Address | None = None

    @property
    def name(self) -> str:
        """See Engine."""
        precision = [
            *([self.weights] if self.weights != "bfloat16" else []),
            *(["kv int8"] if self.kv == "int8" else []),
        ]
        return " ".join(["ghostkv", self.residency, *precision])

    @property
    def leads(self) -> bool:
        """See Engine."""
        return self.residency == "auto"

    def settings(self, seat: Seat) -> dict[str, Any]:
        """See Engine."""
        return {
            "engine": "ghostkv",
            "residency": self.residency,
            "dtype": self.weights,
            "kv_dtype": self.kv,
            "kv_bytes": seat.kv_bytes,
            "max_sequences": seat.wave or _DEFAULT_WAVE,
        }

    def launches(self, seat: Seat) -> tuple[Launch, ...]:
        """See Engine."""
        options = ["--model", str(seat.model.path), "--dtype", self.weights, "--kv-dtype", self.kv]
        options += ["--kv-budget", str(seat.kv_bytes)]
        return (launch([*options, "--max-sequences", str(seat.wave or _DEFAULT_WAVE)], seat),)

    def body(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """See Engine."""
        return body(fields, self.residency)

    def keys(self, seat: Seat) -> Mapping[str, str]:
        """One for each tenant, where there are several."""
        return keys(seat)

    def gauges(self, metrics: Metrics, seat: Seat) -> Gauges:
        """See Engine."""
        return Gauges(metrics.get("ghostkv_live_kv_bytes"), metrics.get("ghostkv_peak_live_kv_bytes"))

    def counts(self, before: Metrics, after: Metrics, seat: Seat) -> dict[str, float]:
        """See Engine."""
        return counts(before, after)


@dataclass(frozen=True, slots=True)
class GhostOver:
    """Our loop over another engine: a `ghostkv serve --upstream` in front of it, which computes nothing itself."""

    below: Engine
    residency: str = "segment"
    leads: bool = False
    attached: Address | None = None

    @property
    def name(self) -> str:
        """See Engine."""
        return f"ghostkv {self.residency} over {self.below.name}"

    @property
    def weights(self) -> str:
        """Of the engine below."""
        return self.below.weights

    @property
    def kv(self) -> str:
        """Of the engine below."""
        return self.below.kv

    def settings(self, seat: Seat) -> dict[str, Any]:
        """See Engine."""
        return {"engine": "ghostkv --upstream", "residency": self.residency, "below": self.below.settings(seat)}

    def launches(self, seat: Seat) -> tuple[Launch, ...]:
        """The engine below, then ours."""
        below = self.below.launches(seat)
        upstream = f"http://127.0.0.1:{below[-1].port}/v1"
        return (*below, launch(["--model", str(seat.model.path), "--upstream", upstream], seat))

    def body(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """See Engine."""
        return body(fields, self.residency)

    def keys(self, seat: Seat) -> Mapping[str, str]:
        """One for each tenant, where there are several."""
        return keys(seat)

    def gauges(self, metrics: Metrics, seat: Seat) -> Gauges:
        """Ours holds no KV, and the metrics of the engine below are not read."""
        return Gauges()

    def counts(self, before: Metrics, after: Metrics, seat: Seat) -> dict[str, float]:
        """See Engine."""
        return counts(before, after)


def launch(options: list[str], seat: Seat) -> Launch:
    """`ghostkv serve` with a line that takes every request of the cell, and no page."""
    port = free_port()
    command = [sys.executable, "-m", "ghostkv", "serve", "--port", str(port), "--no-page", "--log-level", "warning"]
    command += ["--max-waiting", str(len(seat.cell.jobs) + 64), "--max-waiting-tokens", str(_TOKENS_IN_LINE), *options]
    if tenants := keys(seat):
        file = seat.folder / "keys.toml"
        entries = [
            f'[[keys]]\ntenant = "{tenant or "watch"}"\nkey = "{key}"\nadmin = {str(not tenant).lower()}\n'
            for tenant, key in tenants.items()
        ]
        file.write_text("\n".join(entries))
        command += ["--api-keys", str(file)]
    return Launch(tuple(command), port, health="/ready")


def keys(seat: Seat) -> Mapping[str, str]:
    """Keys that protect nothing: the server lives for one cell on this machine's own address."""
    if seat.cell.tenants == ("",):
        return {}
    return {tenant: f"of-{tenant}" for tenant in ("", *seat.cell.tenants)}


def body(fields: Mapping[str, Any], residency: str) -> dict[str, Any]:
    """A request under a residency; usage with every event, so that tokens are counted when they come."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    return {**fields, "stream_options": options, "ghostkv": {"residency": residency}}


def counts(before: Metrics, after: Metrics) -> dict[str, float]:
    """Our own counters, with decisions at boundaries and exact answers by kind."""
    return between(before, after, _COUNTERS)
