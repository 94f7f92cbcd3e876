"""Metrics of HTTP: requests by route and status, those that are open, and what was refused."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ghostkv.telemetry.calls import OTHER, Call

_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)


class HttpMetrics:
    """`calls.Watcher`. Routes are templates and unknown paths one label, so nobody can add series at will."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "ghostkv_http_requests", "Replies, whole or cut off", ["method", "route", "status"], registry=registry
        )
        self._seconds = Histogram(
            "ghostkv_http_seconds",
            "From a request to the last byte of its reply",
            ["route"],
            registry=registry,
            buckets=_SECONDS,
        )
        self._open = Gauge("ghostkv_http_requests_open", "Requests without their last byte", registry=registry)
        self._streams = Gauge("ghostkv_http_streams_open", "Streams of events that are open", registry=registry)
        self._refused = Counter("ghostkv_refused", "Requests answered with 4xx", ["code"], registry=registry)

    def begun(self, call: Call) -> None:
        """See Watcher."""
        self._open.inc()

    def replied(self, call: Call) -> None:
        """See Watcher."""
        if call.streaming:
            self._streams.inc()

    def ended(self, call: Call) -> None:
        """See Watcher."""
        self._open.dec()
        if call.streaming:
            self._streams.dec()
        self._requests.labels(call.method, call.route, str(call.status)).inc()
        self._seconds.labels(call.route).observe(call.seconds)
        if 400 <= call.status < 500:
            self._refused.labels(call.error or OTHER).inc()
