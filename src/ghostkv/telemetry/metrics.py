"""What the server counts, for Prometheus, under vLLM's names where the meaning is vLLM's.

One registry for each server, none for the process; docs/metrics.md has the table. It decides nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Gauge, Info, generate_latest
from prometheus_client.core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.exposition import ALLOWUTF8  # as they are: the default makes vllm_ of vllm:
from prometheus_client.samples import Sample

from ghostkv.session.worker import Worker
from ghostkv.telemetry.answer_metrics import AnswerMetrics
from ghostkv.telemetry.calls import Watcher
from ghostkv.telemetry.engine_metrics import EngineCollector
from ghostkv.telemetry.http_metrics import HttpMetrics
from ghostkv.telemetry.observe import Observer
from ghostkv.telemetry.tenant_metrics import Alias, TenantMetrics

PLAIN = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_OLD_NAMES = {"vllm:inter_token_latency_seconds": "vllm:time_per_output_token_seconds"}
"""Families that vLLM has under a second, older name, which dashboards still ask for."""


class Metrics:
    """All metrics of one server. Answers come by `observer`, HTTP by `watcher`, the rest is read when asked for."""

    def __init__(self, worker: Worker, alias: Alias, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.registry = CollectorRegistry()
        """What everybody may see; other parts of the server register theirs here."""
        self.tenants = CollectorRegistry()
        """What only the administrator may see."""
        identity = Info("ghostkv_server", "What is served; equal manifests compute equal bits", registry=self.registry)
        identity.info({"model_name": worker.name, "manifest": worker.manifest})
        self.registry.register(EngineCollector(worker))
        per_tenant = TenantMetrics(self.tenants, alias)
        self.observer: Observer = AnswerMetrics(self.registry, worker.name, clock, (per_tenant.ended,))
        self.watcher: Watcher = HttpMetrics(self.registry)

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """One more number of the server, read when somebody asks."""
        Gauge(name, text, registry=self.registry).set_function(read)

    def text(self, accept: str, *, tenants: bool) -> tuple[bytes, str]:
        """(everything, content type), in the format that an Accept header prefers; `tenants`: with theirs."""
        source = _Source((self.registry, self.tenants) if tenants else (self.registry,))
        if wants_openmetrics(accept):
            return openmetrics.generate_latest(source, ALLOWUTF8), OPENMETRICS  # type: ignore[no-untyped-call]
        return generate_latest(source, ALLOWUTF8), PLAIN


def wants_openmetrics(accept: str) -> bool:
    """Whether an Accept header ranks OpenMetrics above plain text. Whatever cannot be read ranks nothing."""
    ranks = dict.fromkeys(("application/openmetrics-text", "text/plain"), 0.0)
    for part in accept.split(","):
        kind, *parameters = (piece.strip().lower() for piece in part.split(";"))
        if kind in ranks:
            ranks[kind] = max(ranks[kind], _quality(parameters))
    return ranks["application/openmetrics-text"] > ranks["text/plain"]


def _quality(parameters: Sequence[str]) -> float:
    given = next((parameter[2:] for parameter in parameters if parameter.startswith("q=")), "1")
    try:
        return float(given)
    except ValueError:
        return 0.0


class _Source:
    """What is written of some registries: without the moments at which series began, with vLLM's older names."""

    def __init__(self, registries: Sequence[CollectorRegistry]) -> None:
        self._registries = registries

    def collect(self) -> Iterator[Metric]:
        """All families."""
        for registry in self._registries:
            for family in registry.collect():
                family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
                yield family
                if family.name in _OLD_NAMES:
                    yield _renamed(family, _OLD_NAMES[family.name])


def _renamed(family: Metric, name: str) -> Metric:
    """The same numbers under another name."""
    twin = Metric(name, family.documentation, family.type)
    twin.samples = [
        Sample(name + sample.name.removeprefix(family.name), sample.labels, sample.value) for sample in family.samples
    ]
    return twin
