"""What is compared: each engine is a small description.

How it is started with a cell's KV bytes, how it is asked, and what its own metrics tell. Nothing else in this package
knows one from another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ghostkv.pressure.cells import Cell, Job
from ghostkv.pressure.process import Launch
from ghostkv.pressure.wire import Address

Metrics = Mapping[str, float]
"""Samples of a server's /metrics by name, labels added up."""


@dataclass(frozen=True, slots=True)
class Model:
    """The weights that all engines compute with."""

    name: str  # as rows call it
    path: Path  # as ghostkv loads it
    kv_bytes_per_token: int  # in bfloat16
    context: int  # tokens


@dataclass(frozen=True, slots=True)
class Seat:
    """What an engine gets for one cell."""

    cell: Cell
    model: Model
    folder: Path  # for files of its own; it is removed after the cell
    wave: int = 0  # most requests that may run at once; 0: the engine's own default

    @property
    def kv_bytes(self) -> int:
        """Bytes of KV, equal for all engines."""
        return self.cell.pool_tokens * self.model.kv_bytes_per_token


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen, alike everywhere: over the whole vocabulary, for exactly as many tokens as asked."""

    temperature: float = 0.8
    seeded: bool = False
    """Whether requests carry a seed. Without, as most clients ask; ghostkv flushes those with one last."""

    def fields(self, job: Job, prompt: str) -> dict[str, Any]:
        """A raw completion in OpenAI's terms, and `ignore_eos`, which all engines know."""
        seed = {"seed": job.prompt * 100_003 + job.output} if self.seeded else {}
        return {
            "prompt": prompt,
            "max_tokens": job.output,
            "ignore_eos": True,
            "temperature": self.temperature,
            "top_p": 1.0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **seed,
        }


@dataclass(frozen=True, slots=True)
class Gauges:
    """KV bytes that are referenced now; the most there have been, where the engine keeps that."""

    live: float | None = None
    peak: float | None = None


class Engine(Protocol):
    """One engine in one configuration."""

    @property
    def name(self) -> str:
        """As rows and figures call it; it names precision where that is not bfloat16."""
        ...

    @property
    def leads(self) -> bool:
        """Whether it runs cells that not all engines run."""
        ...

    @property
    def weights(self) -> str:
        """Precision of the weights."""
        ...

    @property
    def kv(self) -> str:
        """Precision of the KV."""
        ...

    @property
    def residency(self) -> str:
        """Which quality its output has: a policy of ghostkv, "full" for those that keep everything."""
        ...

    @property
    def attached(self) -> Address | None:
        """A server that runs already, for an engine that starts none."""
        ...

    def settings(self, seat: Seat) -> dict[str, Any]:
        """What a row says of its configuration: everything that makes another measurement of it."""
        ...

    def launches(self, seat: Seat) -> tuple[Launch, ...]:
        """The servers to start, each when the one before answers; clients ask the last one."""
        ...

    def body(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """A request as this engine wants it."""
        ...

    def keys(self, seat: Seat) -> Mapping[str, str]:
        """An API key for each tenant, and for "" one that sees the metrics, where the engine tells tenants apart."""
        ...

    def gauges(self, metrics: Metrics, seat: Seat) -> Gauges:
        """KV bytes, as far as its metrics tell."""
        ...

    def counts(self, before: Metrics, after: Metrics, seat: Seat) -> dict[str, float]:
        """What its own counters say of the time between two readings."""
        ...


def between(before: Metrics, after: Metrics, names: Mapping[str, str]) -> dict[str, float]:
    """Differences of those counters, by the names that rows use, that the server has; none without a first reading."""
    if not before:
        return {}
    return {
        name: round(after[sample] - before.get(sample, 0.0), 3) for name, sample in names.items() if sample in after
    }
