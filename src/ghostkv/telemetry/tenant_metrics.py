"""Metrics by tenant, for the administrator's eyes: a registry of their own, and an alias for each name."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter

from ghostkv.telemetry.tally import Tally

MOST_TENANTS = 256
OTHERS = "others"
Alias = Callable[[str], str]
"""A tenant's name -> what it is called where others may look."""


class TenantMetrics:
    """Counters for each of the first `MOST_TENANTS` tenants, and one label for all that come later."""

    def __init__(self, registry: CollectorRegistry, alias: Alias) -> None:
        self._alias = alias
        self._aliases: dict[str, str] = {}
        self._answers = Counter(
            "ghostkv_tenant_answers", "Answers that ended", ["tenant", "finished_reason"], registry=registry
        )
        self._prompt = Counter(
            "ghostkv_tenant_prompt_tokens", "Prompt tokens, each prompt once", ["tenant"], registry=registry
        )
        self._generated = Counter(
            "ghostkv_tenant_generation_tokens", "Output tokens of answers", ["tenant"], registry=registry
        )
        self._queue = Counter("ghostkv_tenant_queue_seconds", "Seconds in line", ["tenant"], registry=registry)

    def ended(self, tally: Tally) -> None:
        """Count an answer that ended."""
        name = self._name(tally.tenant)
        self._answers.labels(name, tally.reason).inc()
        self._generated.labels(name).inc(tally.completion_tokens)
        self._queue.labels(name).inc(tally.queue_s)
        if tally.finished is not None and tally.choice == 0:
            self._prompt.labels(name).inc(tally.finished.prompt_tokens)

    def _name(self, tenant: str) -> str:
        if tenant not in self._aliases:
            if len(self._aliases) >= MOST_TENANTS:
                return OTHERS
            self._aliases[tenant] = self._alias(tenant)
        return self._aliases[tenant]
