"""Metrics of the engines: read from their own counters when somebody asks, while they go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from ghostkv.backends.base import Stats, UpstreamState
from ghostkv.session.worker import Worker

_LABELS = ("model_name", "worker")
_UPSTREAM_GAUGES: dict[str, tuple[Callable[[UpstreamState], float], str]] = {
    "ghostkv_upstream_healthy": (lambda each: each.healthy, "Whether an upstream is sent segments"),
    "ghostkv_upstream_since_timestamp_seconds": (lambda each: each.since, "When that changed, in Unix time"),
    "ghostkv_upstream_running": (lambda each: each.running, "Segments that an upstream is asked for"),
}
_GAUGES = {  # name -> (field of Stats, help)
    "vllm:num_requests_running": ("running", "Segments that run"),
    "vllm:num_requests_waiting": ("waiting", "Segments in line"),
    "ghostkv_live_blocks": ("live_blocks", "KV blocks that running segments reference"),
    "ghostkv_cached_blocks": ("cached_blocks", "KV blocks that nothing references and a prompt may find"),
    "ghostkv_paused_blocks": ("paused_blocks", "Cached KV blocks that are kept for sessions that wait for a tool"),
    "ghostkv_free_blocks": ("free_blocks", "KV blocks that hold nothing"),
}
_COUNTERS = {
    "vllm:generation_tokens": ("generated_tokens", "Output tokens chosen"),
    "vllm:prefix_cache_queries": ("prompt_tokens", "Prompt tokens of segments that ended"),
    "vllm:prefix_cache_hits": ("cached_tokens", "Of those, found in the prefix index"),
    "vllm:spec_decode_num_drafts": ("drafts", "Decode rows that guessed tokens"),
    "vllm:spec_decode_num_draft_tokens": ("drafted_tokens", "Guessed tokens computed"),
    "vllm:spec_decode_num_accepted_tokens": ("accepted_tokens", "Of those, right and used"),
    "ghostkv_prefill_tokens": ("prefill_tokens", "Prompt tokens computed"),
    "ghostkv_waits_for_memory": ("waits_for_memory", "Segments that were first in line and lacked KV blocks"),
    "ghostkv_pauses_kept": ("pauses_kept", "Answers that ended in tool calls and whose blocks were kept"),
    "ghostkv_pauses_dropped": ("pauses_dropped", "Likewise, whose blocks were left to eviction"),
    "ghostkv_pauses_resumed": ("pauses_resumed", "Kept ones whose session came back in time"),
    "ghostkv_dropped_tokens": ("dropped_tokens", "Output tokens that an upstream sent after a boundary or an end"),
    "ghostkv_engine_refused": ("refused", "Segments refused before any generation"),
    "ghostkv_engine_steps": ("steps", "Steps"),
    "ghostkv_engine_step_seconds": ("step_seconds", "Seconds of forward passes"),
}


class EngineCollector:
    """A collector over the members of a worker; one that does not say what it counts has no samples."""

    def __init__(self, worker: Worker) -> None:
        self._model = worker.name
        self._members: Mapping[str, Worker] = worker.members()

    def describe(self) -> list[Metric]:
        """None: nothing is read for registering."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Every number of every member, each member read once."""
        read = {name: (member, member.stats()) for name, member in self._members.items() if member.stats is not None}
        for family, (field, text) in _GAUGES.items():
            yield self._gauge(family, text, {name: getattr(stats, field) for name, (_, stats) in read.items()})
        for family, (field, text) in _COUNTERS.items():
            counter = CounterMetricFamily(family, text, labels=_LABELS)
            for name, (_, stats) in read.items():
                counter.add_metric((self._model, name), getattr(stats, field))
            yield counter
        yield _boundaries(self._model, {name: stats for name, (_, stats) in read.items()})
        usage = {name: stats.live_blocks / max(1, stats.blocks) for name, (_, stats) in read.items()}
        yield self._gauge("vllm:kv_cache_usage_perc", "Share of KV blocks that are referenced, 0 to 1", usage)
        live = {name: stats.live_blocks * _block_bytes(member) for name, (member, stats) in read.items()}
        yield self._gauge("ghostkv_live_kv_bytes", "Bytes of referenced KV blocks", live)
        peak = {name: stats.peak_live_blocks * _block_bytes(member) for name, (member, stats) in read.items()}
        yield self._gauge("ghostkv_peak_live_kv_bytes", "The most there have been in any step", peak)
        budget = {name: stats.blocks * _block_bytes(member) for name, (member, stats) in read.items()}
        yield self._gauge("ghostkv_kv_budget_bytes", "Bytes of all KV blocks", budget)
        yield from self._upstreams({name: stats.upstreams for name, (_, stats) in read.items() if stats.upstreams})
        yield self._configuration({name: stats.blocks for name, (_, stats) in read.items()})

    def _gauge(self, name: str, text: str, values: Mapping[str, float]) -> Metric:
        gauge = GaugeMetricFamily(name, text, labels=_LABELS)
        for member, value in values.items():
            gauge.add_metric((self._model, member), value)
        return gauge

    def _upstreams(self, read: Mapping[str, tuple[UpstreamState, ...]]) -> Iterator[Metric]:
        """Those of workers over other servers, by their address."""
        labels = (*_LABELS, "upstream")
        listed = [((self._model, name, each.address), each) for name, states in read.items() for each in states]
        for family, (value, text) in _UPSTREAM_GAUGES.items():
            gauge = GaugeMetricFamily(family, text, labels=labels)
            for names, each in listed:
                gauge.add_metric(names, value(each))
            yield gauge
        counter = CounterMetricFamily("ghostkv_upstream_failovers", "Segments that left an upstream", labels=labels)
        for names, each in listed:
            counter.add_metric(names, each.failovers)
        yield counter

    def _configuration(self, blocks: Mapping[str, int]) -> Metric:
        info = InfoMetricFamily("vllm:cache_config", "The KV pool", labels=_LABELS)
        for name, count in blocks.items():
            member = self._members[name]
            info.add_metric(
                (self._model, name),
                {
                    "block_size": str(member.backend.capabilities().block_tokens),
                    "num_gpu_blocks": str(count),
                    "enable_prefix_caching": "True",
                },
            )
        return info


def _boundaries(model: str, read: Mapping[str, Stats]) -> Metric:
    family = CounterMetricFamily("ghostkv_boundaries", "Decisions at boundaries", labels=(*_LABELS, "decision"))
    for name, stats in read.items():
        family.add_metric((model, name, "keep"), stats.kept)
        family.add_metric((model, name, "flush"), stats.flushed)
    return family


def _block_bytes(worker: Worker) -> int:
    capabilities = worker.backend.capabilities()
    return capabilities.block_tokens * capabilities.kv_bytes_per_token
