"""From a model's name and a few settings to a running worker. Library, server and command line start here."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypedDict, Unpack

from ghostkv.config import EngineConfig, parse_bytes
from ghostkv.engine.drafter import drafter
from ghostkv.engine.stats import StepTrace
from ghostkv.errors import ConfigError
from ghostkv.residency import DEFAULT_RESIDENCY, policy
from ghostkv.routing import DEFAULT_ROUTER, router
from ghostkv.session.fit import check_pool
from ghostkv.session.fleet import Fleet
from ghostkv.session.worker import Worker

_DTYPES = ("bfloat16", "float32", "int8")  # that may stand after a model's name


class Settings(TypedDict, total=False):
    """What an engine may be told; absent ones keep the defaults of `EngineConfig`."""

    kv_budget: str | int  # bytes, or text such as "96MiB"
    dtype: str  # "bfloat16", "float32" or "int8"
    kv_dtype: str  # "auto" or "int8"
    threads: int  # 0: every core
    speculation: str  # "lookup" or "off"
    steering: str  # file of the model's control vectors
    default_max_tokens: int
    max_session_tokens: int
    max_sequences: int
    max_waiting: int
    max_wait_s: float  # seconds in line until sessions take turns


def engine_config(**settings: Unpack[Settings]) -> EngineConfig:
    """The configuration with these settings. Raises ConfigError for a size that is none, or what is out of range."""
    given: dict[str, Any] = dict(settings)
    if isinstance(budget := given.get("kv_budget"), str):
        given["kv_budget"] = parse_bytes(budget)
    for name in ("default_max_tokens", "max_session_tokens", "max_sequences", "max_waiting"):
        if given.get(name, 1) < 1:
            raise ConfigError(f"{name} must be at least 1, not {given[name]}")
    if not given.get("max_wait_s", 0.0) >= 0:  # true for NaN as well
        raise ConfigError(f"max_wait_s must be at least 0 seconds, not {given['max_wait_s']}")
    if given.get("threads", 0) < 0:
        raise ConfigError(f"threads must be at least 0, not {given['threads']}")
    config = EngineConfig(**given)
    drafter(config.speculation)  # an unknown name is refused before a model is loaded
    return config


def open_worker(
    model: str,
    config: EngineConfig,
    *,
    residency: str = DEFAULT_RESIDENCY,
    announce: Callable[[str], None] = lambda _: None,
    on_step: Callable[[StepTrace], None] | None = None,
) -> Worker:
    """Load a model by known name, path or org/name of the Hub (downloaded if absent), and start its engine.

    Raises ModelError, ModelNotFound or ConfigError, the latter also where the pool is too small for `residency`.
    """
    from ghostkv.backends.embedded import EmbeddedBackend  # brings torch, which takes seconds
    from ghostkv.model.pull import resolve_model, served_name

    backend = EmbeddedBackend.load(resolve_model(model, announce), config, announce, on_step)
    try:
        check_pool(policy(residency), backend.capabilities())
        return Worker.embedded(backend, config, time.perf_counter, served_name(model))
    except BaseException:
        backend.close()
        raise


def open_upstream(
    urls: list[str] | tuple[str, ...],
    config: EngineConfig,
    *,
    model: str | None = None,
    key: str = "",
    upstream_model: str = "",
    wait_s: float | None = None,
    by: str = DEFAULT_ROUTER,
    announce: Callable[[str], None] = lambda _: None,
) -> Worker:
    """A worker over the OpenAI-compatible servers at `urls`, of one model; `announce` is told what they lack.

    `model` names the checkpoint whose tokenizer and template assemble prompts: a known name or a path; of it no weights
    are read. None: where the upstream says its own files are, if they are here. `upstream_model` chooses among several.
    Where all are away, an answer that has begun waits `wait_s` seconds for one (None: `upstreams.WAIT_S`). The router
    called `by` says which of several gets a segment.
    Raises ModelError, ModelNotFound or ConfigError.
    """
    try:
        from ghostkv.backends.openai_http import OpenAIBackend
        from ghostkv.backends.upstreams import WAIT_S
    except ImportError as error:
        raise ConfigError(f"an upstream needs an extra: pip install 'ghostkv[server]' ({error})") from error
    from ghostkv.model.pull import resolve_model

    if wait_s is not None and not wait_s >= 0:  # true for NaN as well
        raise ConfigError(f"an upstream is waited for at least 0 seconds, not {wait_s}")
    router(by)  # an unknown name is refused before anybody is asked
    announce(f"asking {', '.join(urls)}")
    path = None if model is None else resolve_model(model, announce)
    wait = WAIT_S if wait_s is None else wait_s
    backend = OpenAIBackend.connect(
        urls, path, config, key=key, model=upstream_model, wait_s=wait, by=by, announce=announce
    )
    try:
        return Worker.remote(backend, replace(config, dtype="upstream"), time.perf_counter)
    except BaseException:
        backend.close()
        raise


def open_vllm(
    model: str,
    config: EngineConfig,
    *,
    kv_budget: int | None = None,
    options: str = "",
    announce: Callable[[str], None] = lambda _: None,
) -> Worker:
    """A worker over vLLM in this process; `announce` is told what vLLM lacks.

    `model` is a Hugging Face directory or org/name of the Hub. `kv_budget`: bytes of its KV pool; None: what vLLM takes
    by itself. `options`: more of them, as `vllm serve` takes them. Raises ModelError, ModelNotFound or ConfigError.
    """
    from ghostkv.backends.remote import LACKING
    from ghostkv.backends.vllm import VllmBackend
    from ghostkv.model.pull import resolve_model, served_name

    path = resolve_model(model, announce)
    try:
        chosen = shlex.split(options)
    except ValueError as error:
        raise ConfigError(f"vLLM's options {options!r} cannot be read: {error}") from error
    announce("starting vLLM")
    backend = VllmBackend.start(served_name(model) or path.name, path, config, kv_bytes=kv_budget, options=chosen)
    try:
        for lack in LACKING:
            announce(f"vLLM: {lack}")
        return Worker.remote(backend, config, time.perf_counter)
    except BaseException:
        backend.close()
        raise


def open_fleet(
    model: str,
    config: EngineConfig,
    others: Sequence[str],
    *,
    by: str = DEFAULT_ROUTER,
    announce: Callable[[str], None] = lambda _: None,
    on_step: Callable[[int, StepTrace], None] = lambda worker, trace: None,
) -> Worker:
    """`open_worker` for `model`, and one more for each of `others`: MODEL or MODEL:DTYPE, with a KV budget of its own.

    Their segments are shared out as `Fleet` does, among equal workers by the router called `by`; with no others it is
    the one worker. `on_step` is called on the engines' threads, with the index of the worker. Raises what `open_worker`
    does.
    """
    router(by)  # an unknown name is refused before a model is loaded
    workers = [open_worker(model, config, announce=announce, on_step=partial(on_step, 0))]
    try:
        for index, other in enumerate(others, 1):
            workers.append(_beside(other, config, announce, partial(on_step, index)))
    except BaseException:
        for worker in workers:
            worker.close()
        raise
    return Fleet.of(workers, by)


def _beside(
    other: str, config: EngineConfig, announce: Callable[[str], None], on_step: Callable[[StepTrace], None]
) -> Worker:
    model, colon, dtype = other.rpartition(":")
    if not colon or dtype not in _DTYPES:  # a colon of the model's own path
        model, dtype = other, config.dtype
    # Control vectors belong to one model.
    return open_worker(model, replace(config, dtype=dtype, steering=""), announce=announce, on_step=on_step)
