"""Metrics of answers: an observer that adds up what goes by. What the engine counts itself is in `engine_metrics`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ghostkv.errors import GhostError
from ghostkv.request import FinishReason
from ghostkv.session.chain import Carried
from ghostkv.session.turn import Event, Finished, Output, SegmentRecord, Turn
from ghostkv.telemetry.calls import current
from ghostkv.telemetry.tally import Tally

PHASES = ("recall", "render", "extract", "merge", "schedule", "prefill")
REASONS = ("stop", "length", "abort", "error")
# vLLM's own bounds, so that its dashboards read alike; seconds.
_FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0)
_BETWEEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_WHOLE = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0)
_TOKENS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
_BOUNDARY = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
_BYTES = tuple(float(256 * 2**power) for power in range(11))


class AnswerMetrics:
    """`observe.Observer`; `listeners` are told of every answer that ended."""

    def __init__(
        self,
        registry: CollectorRegistry,
        model: str,
        clock: Callable[[], float],
        listeners: Sequence[Callable[[Tally], None]] = (),
    ) -> None:
        self._clock = clock
        self._listeners = listeners
        self._tallies: dict[int, Tally] = {}  # by identity of the turn, which lives as long as its entry

        def histogram(name: str, text: str, bounds: Sequence[float]) -> Histogram:
            return Histogram(name, text, ["model_name"], registry=registry, buckets=bounds).labels(model)

        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, ["model_name"], registry=registry).labels(model)

        self._prompt_tokens = counter("vllm:prompt_tokens", "Prompt tokens of answers that ended, each prompt once")
        success = Counter(
            "vllm:request_success", "Answers that ended", ["model_name", "finished_reason"], registry=registry
        )
        self._success = {reason: success.labels(model, reason) for reason in REASONS}
        self._first = histogram("vllm:time_to_first_token_seconds", "From the request to its first token", _FIRST)
        self._between = histogram("vllm:inter_token_latency_seconds", "Between two tokens of an answer", _BETWEEN)
        self._mean = histogram(
            "vllm:request_time_per_output_token_seconds", "Mean between the tokens of one answer", _BETWEEN
        )
        self._whole = histogram("vllm:e2e_request_latency_seconds", "From the request to the answer's end", _WHOLE)
        self._queue = histogram("vllm:request_queue_time_seconds", "In line, over all segments", _WHOLE)
        self._prefill = histogram("vllm:request_prefill_time_seconds", "Prefilling, over all segments", _WHOLE)
        self._decode = histogram("vllm:request_decode_time_seconds", "Decoding, over all segments", _WHOLE)
        self._inference = histogram("vllm:request_inference_time_seconds", "Prefilling and decoding", _WHOLE)
        self._prompt = histogram("vllm:request_prompt_tokens", "Prompt tokens of one answer", _TOKENS)
        self._generated = histogram("vllm:request_generation_tokens", "Output tokens of one answer", _TOKENS)

        self._running = Gauge("ghostkv_answers_running", "Answers asked for that have not ended", registry=registry)
        answers = Counter("ghostkv_answers", "Answers that ended by themselves", ["exact"], registry=registry)
        self._exact = {exact: answers.labels(str(exact).lower()) for exact in (True, False)}
        self._segments = Counter("ghostkv_segments", "Segments that ended", registry=registry)
        boundary = Histogram(
            "ghostkv_boundary_seconds",
            "What a flushed boundary costs, by phase",
            ["phase"],
            registry=registry,
            buckets=_BOUNDARY,
        )
        self._boundary = {phase: boundary.labels(phase) for phase in PHASES}
        self._payload = Histogram(
            "ghostkv_payload_bytes", "The payload that crosses a boundary", registry=registry, buckets=_BYTES
        )
        self._moved = {
            name: Counter(f"ghostkv_{name}_tokens", text, registry=registry)
            for name, text in (
                ("rehydrated", "Prompt tokens prefilled because a boundary was flushed"),
                ("recomputed", "Rehydrated tokens that had been computed before for the same answer, at least"),
                ("carried", "Prompt tokens of tails and state blocks"),
                ("recalled", "Prompt tokens of recalled sentences"),
                ("unseen", "Prompt tokens that the last segment did not see"),
                ("discarded", "Output tokens of plan nodes that were not needed"),
            )
        }

    def started(self, turn: Turn) -> None:
        """See Observer."""
        call = current()
        tally = Tally.of(turn, self._clock() if call is None else call.begun)
        self._tallies[id(turn)] = tally
        self._running.inc()
        if call is not None:
            call.tallies.append(tally)

    def event(self, turn: Turn, event: Event) -> None:
        """See Observer."""
        tally, now = self._tallies[id(turn)], self._clock()
        if isinstance(event, Output) and event.tokens:
            if tally.first is None:
                self._first.observe(now - tally.asked)
            else:
                self._between.observe(now - tally.latest)
        elif isinstance(event, SegmentRecord):
            self._segment(event)
        tally.take(event, now)
        if isinstance(event, Finished) and event.reason is not FinishReason.CANCELLED:
            self._finished(tally, event, now)
            self._close(tally)  # before its reply ends, so that who has the reply finds it counted

    def closed(self, turn: Turn, carried: Carried) -> None:
        """Its size is in the segment's record."""

    def ended(self, turn: Turn, error: BaseException | None) -> None:
        """See Observer."""
        tally = self._tallies.pop(id(turn))
        if tally.ended:
            return
        if isinstance(error, Exception):
            tally.failed = error.code if isinstance(error, GhostError) else GhostError.code
        refused = isinstance(error, GhostError) and error.http_status < 500 and tally.first is None
        self._close(tally, counts=not refused)  # one that was never taken is none that ended

    def _close(self, tally: Tally, *, counts: bool = True) -> None:
        tally.ended = True
        self._running.dec()
        if counts:
            self._success[tally.reason].inc()
            for listener in self._listeners:
                listener(tally)

    def _segment(self, record: SegmentRecord) -> None:
        usage, phases = record.usage, record.phases
        self._segments.inc()
        for name, count in (
            ("rehydrated", record.rehydrated),
            ("recomputed", record.recomputed),
            ("carried", record.tail + record.state),
            ("recalled", record.recalled),
        ):
            self._moved[name].inc(count)
        if record.index:  # a boundary is before it
            for phase, seconds in (
                ("recall", phases.recall),
                ("render", phases.render),
                ("schedule", usage.queue_s),
                ("prefill", usage.prefill_s),
            ):
                self._boundary[phase].observe(seconds)
        if record.boundary is not None:
            self._boundary["extract"].observe(phases.extract)
            self._boundary["merge"].observe(phases.merge)
            self._payload.observe(record.payload_bytes)

    def _finished(self, tally: Tally, end: Finished, now: float) -> None:
        self._exact[end.exact].inc()
        self._moved["unseen"].inc(end.unseen_tokens)
        self._moved["discarded"].inc(end.discarded_tokens)
        if tally.choice == 0:
            self._prompt_tokens.inc(end.prompt_tokens)
        self._prompt.observe(end.prompt_tokens)
        self._generated.observe(end.completion_tokens)
        self._whole.observe(now - tally.asked)
        self._queue.observe(tally.queue_s)
        self._prefill.observe(tally.prefill_s)
        self._decode.observe(tally.decode_s)
        self._inference.observe(tally.prefill_s + tally.decode_s)
        if tally.first is not None and end.completion_tokens > 1:
            self._mean.observe((tally.latest - tally.first) / (end.completion_tokens - 1))
