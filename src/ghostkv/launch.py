"""From a model's name and a few settings to a running worker. Library, server and command line start here."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypedDict, Unpack

from ghostkv.config import EngineConfig, parse_bytes
from ghostkv.engine.stats import StepTrace
from ghostkv.errors import ConfigError
from ghostkv.residency import policy
from ghostkv.session.fit import check_pool
from ghostkv.session.worker import Worker

DEFAULT_RESIDENCY = "segment"


class Settings(TypedDict, total=False):
    """What an engine may be told; absent ones keep the defaults of `EngineConfig`."""

    kv_budget: str | int  # bytes, or text such as "96MiB"
    dtype: str  # "bfloat16" or "float32"
    threads: int  # 0: every core
    default_max_tokens: int
    max_session_tokens: int


def engine_config(**settings: Unpack[Settings]) -> EngineConfig:
    """The configuration with these settings. Raises ConfigError for a size that is none, or a number out of range."""
    given: dict[str, Any] = dict(settings)
    if isinstance(budget := given.get("kv_budget"), str):
        given["kv_budget"] = parse_bytes(budget)
    for name in ("default_max_tokens", "max_session_tokens"):
        if given.get(name, 1) < 1:
            raise ConfigError(f"{name} must be at least 1, not {given[name]}")
    if given.get("threads", 0) < 0:
        raise ConfigError(f"threads must be at least 0, not {given['threads']}")
    return EngineConfig(**given)


def open_worker(
    model: str,
    config: EngineConfig,
    *,
    residency: str = DEFAULT_RESIDENCY,
    announce: Callable[[str], None] = lambda _: None,
    on_step: Callable[[StepTrace], None] | None = None,
) -> Worker:
    """Load a model by known name (pulled if absent) or path, and start its engine.

    Raises ModelError, ModelNotFound or ConfigError, the latter also where the pool is too small for `residency`.
    """
    from ghostkv.backends.embedded import EmbeddedBackend  # brings torch, which takes seconds
    from ghostkv.model.pull import KNOWN, resolve_model

    backend = EmbeddedBackend.load(resolve_model(model, announce), config, announce, on_step)
    try:
        check_pool(policy(residency), backend.capabilities())
        return Worker.embedded(backend, config, time.perf_counter, model if model in KNOWN else "")
    except BaseException:
        backend.close()
        raise
