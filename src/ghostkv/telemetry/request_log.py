"""One line of log for each request that ended: ids, route templates, counts and seconds, and never a text or a key."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ghostkv.telemetry.calls import Call

_log = logging.getLogger(__name__)
_QUIET = frozenset({"/health", "/live", "/metrics", "/page", "/ready"})
"""Asked every few seconds by machines, and files of the page: their lines are for --log-level debug."""


class RequestLog:
    """`calls.Watcher`: one line for each call that ended."""

    def __init__(self, model: str, alias: Callable[[str], str]) -> None:
        self._model = model
        self._alias = alias

    def begun(self, call: Call) -> None:
        """Nothing yet."""

    def replied(self, call: Call) -> None:
        """Nothing yet."""

    def ended(self, call: Call) -> None:
        """Write it."""
        level = logging.DEBUG if call.route in _QUIET else logging.INFO
        if _log.isEnabledFor(level):
            message = f"{call.method} {call.route} {call.status or 'cut off'}"
            _log.log(level, message, extra={"fields": self._fields(call)})

    def _fields(self, call: Call) -> dict[str, object]:
        fields: dict[str, object] = {
            "request_id": call.request_id,
            "method": call.method,
            "route": call.route,
            "status": call.status,
            "seconds": round(call.seconds, 6),
        }
        if call.error:
            fields["error"] = call.error
        return fields | self._answers(call) if call.tallies else fields

    def _answers(self, call: Call) -> dict[str, object]:
        tallies = call.tallies
        ends = [tally.finished for tally in tallies if tally.finished is not None]
        errors = sorted({tally.failed for tally in tallies if tally.failed})
        return {
            "tenant": self._alias(tallies[0].tenant),
            "model": self._model,
            "stream": call.streaming,
            "answers": len(tallies),
            "prompt_tokens": sum(t.finished.prompt_tokens for t in tallies if t.finished is not None and t.choice == 0),
            "completion_tokens": sum(tally.completion_tokens for tally in tallies),
            "segments": sum(tally.segments for tally in tallies),
            "queue_s": round(sum(tally.queue_s for tally in tallies), 6),
            "prefill_s": round(sum(tally.prefill_s for tally in tallies), 6),
            "decode_s": round(sum(tally.decode_s for tally in tallies), 6),
            "exact": len(ends) == len(tallies) and all(end.exact for end in ends),
            "finish_reason": ",".join(sorted({tally.reason or "abort" for tally in tallies})),
            **({"error": ",".join(errors)} if errors else {}),
        }
