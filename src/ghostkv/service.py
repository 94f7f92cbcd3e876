"""The command `ghostkv serve`: from options to a running server. What is heavy is imported inside, as in `cli`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ghostkv.config import EngineConfig, ServerConfig, SessionLimits, parse_bytes
from ghostkv.errors import ConfigError
from ghostkv.options import DEFAULTS, SERVER_DEFAULTS, Dtype, KVDtype, Speculation, Threads
from ghostkv.routing import DEFAULT_ROUTER, names
from ghostkv.startup import Phases, process_start
from ghostkv.telemetry.logs import LogFormat, LogLevel, configure

if TYPE_CHECKING:
    from fastapi import FastAPI

    from ghostkv.page.live import Live
    from ghostkv.server.access import Access
    from ghostkv.server.serving import Serving
    from ghostkv.session.store import Store
    from ghostkv.session.worker import Worker


class Engine(StrEnum):
    """What computes."""

    EMBEDDED = "embedded"
    VLLM = "vllm"


_log = logging.getLogger(__name__)
_MODEL = "smollm2"
"""The model that is served where none is named."""
_KEPT_S = 30 * 86_400.0
"""Seconds that a session is kept in a store after its last use."""


def serve(
    model: Annotated[
        str | None,
        typer.Option(
            help="A known name (pulled if absent), a .gguf file or a Hugging Face directory. With --upstream: "
            "where its tokenizer is, if not where it says itself.",
            show_default=_MODEL,
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port, which is printed.")] = 8000,
    kv_budget: Annotated[
        str | None,
        typer.Option(
            help="Size of the KV pool, e.g. 96MiB. With --backend vllm: by default what vLLM takes by itself.",
            show_default="512MiB",
        ),
    ] = None,
    default_max_tokens: Annotated[
        int, typer.Option(min=1, help="Answer length where a request gives none.")
    ] = DEFAULTS.default_max_tokens,
    max_session_tokens: Annotated[
        int, typer.Option(min=1, help="Most output tokens of one session.")
    ] = DEFAULTS.max_session_tokens,
    dtype: Dtype = DEFAULTS.dtype,
    kv_dtype: KVDtype = DEFAULTS.kv_dtype,
    threads: Threads = DEFAULTS.threads,
    speculation: Speculation = DEFAULTS.speculation,
    worker: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL[:DTYPE]",
            help="One more model, or precision, to share the segments with; repeatable. Dense segments go to the "
            "strongest with room, light ones to the weakest. Each takes a KV budget of its own.",
        ),
    ] = None,
    backend: Annotated[
        Engine, typer.Option(help="What computes: ghostkv's own engine, or vLLM in this process (an extra).")
    ] = Engine.EMBEDDED,
    vllm_options: Annotated[
        str, typer.Option(metavar="OPTIONS", help="More for vLLM, as `vllm serve` takes them, in one string.")
    ] = "",
    router: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"Which of equal workers, or of several upstreams, gets a segment: {', '.join(names())}.",
            show_default=DEFAULT_ROUTER,
        ),
    ] = None,
    upstream: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="An OpenAI-compatible server to use in place of the own engine; repeatable, for servers of one model.",
        ),
    ] = None,
    upstream_key: Annotated[
        str, typer.Option(metavar="KEY", envvar="GHOSTKV_UPSTREAM_KEY", help="Its API key.", show_envvar=True)
    ] = "",
    upstream_model: Annotated[
        str, typer.Option(metavar="ID", help="Its model's id; needed where it serves several.")
    ] = "",
    upstream_wait: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="While all upstreams are away, an answer that has begun waits so long for one to come back.",
            show_default="60",
        ),
    ] = None,
    api_keys: Annotated[
        Path | None,
        typer.Option(help="TOML file of API keys and tenants. Keys may also stand in $GHOSTKV_API_KEY. None: open."),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="Origin whose web pages may ask, or *; repeatable. Default: * where API keys are needed, else none.",
        ),
    ] = None,
    max_sequences: Annotated[
        int, typer.Option(min=1, help="Answers that may be decoded in one step; others wait for their turn.")
    ] = DEFAULTS.max_sequences,
    max_waiting: Annotated[
        int, typer.Option(min=1, help="Answers that may wait for their first token; more are refused with 429.")
    ] = DEFAULTS.max_waiting,
    max_waiting_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens of their prompts and longest answers together; more are refused too.")
    ] = SERVER_DEFAULTS.max_waiting_tokens,
    max_wait: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", help="Whoever waits so long gets a turn: residency auto then flushes at boundaries."
        ),
    ] = DEFAULTS.max_wait_s,
    max_deadline: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Most that an answer may take; also where it names no deadline."),
    ] = SERVER_DEFAULTS.max_deadline_s,
    keep_alive: Annotated[
        float, typer.Option(metavar="SECONDS", help="A stream that is silent for so long says that it lives.")
    ] = SERVER_DEFAULTS.keep_alive_s,
    max_sessions: Annotated[
        int, typer.Option(min=1, help="Sessions that a tenant may have; more are refused with 429.")
    ] = SERVER_DEFAULTS.sessions.count,
    session_memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory of a tenant's sessions; what may exceed it is refused.")
    ] = "256MiB",
    session_idle: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="A session that nobody uses for so long is forgotten. Default: 1 h; 30 d in a store.",
        ),
    ] = None,
    session_grace: Annotated[
        float, typer.Option(metavar="SECONDS", help="A session's answer that nobody reads goes on for so long.")
    ] = SERVER_DEFAULTS.sessions.grace_s,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|URL",
            envvar="GHOSTKV_STORE",
            help="File in which sessions outlive this process, made if absent; or postgresql://…, which several "
            "servers may share.",
        ),
    ] = None,
    store_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Most that the file may take.", show_default="4GiB")
    ] = None,
    store_lease: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Of a shared store: a server that is not heard of for so long loses its sessions to others.",
            show_default="15",
        ),
    ] = None,
    resume_after: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="After so long a start answers go on that broke off and nobody reads."),
    ] = SERVER_DEFAULTS.resume_s,
    peer: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="A server that `ghostkv drain` may hand the sessions over to; repeatable."),
    ] = None,
    capsule_secret_file: Annotated[
        Path | None, typer.Option(help="File of the secret that servers share which hand sessions over.")
    ] = None,
    drain_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="What running answers have to end by themselves after SIGTERM.")
    ] = SERVER_DEFAULTS.drain_s,
    ray: Annotated[  # noqa: FBT002
        bool, typer.Option("--ray", help="Serve by replicas on Ray; needs a --store that is a database.")
    ] = False,
    replicas: Annotated[
        str | None,
        typer.Option(
            metavar="N|MIN:MAX",
            help="With --ray: how many, each of --threads cores (1 if not said); MIN:MAX follows the load.",
            show_default="1",
        ),
    ] = None,
    log_format: Annotated[LogFormat, typer.Option(help="How the log on standard error is written.")] = LogFormat.TEXT,
    log_level: Annotated[LogLevel, typer.Option(help="The least that is logged; info: each request.")] = LogLevel.INFO,
    page: Annotated[bool, typer.Option(help="A page at / that shows all this live; for admins, if any.")] = True,  # noqa: FBT002
) -> None:
    """Serve an OpenAI-compatible API."""
    phases = Phases(process_start())
    try:
        from ghostkv.page.live import Live
        from ghostkv.server.key_file import read_access
        from ghostkv.server.peer import Peers
        from ghostkv.server.secret import read_secret
        from ghostkv.server.serve import listen
        from ghostkv.server.serve import serve as run
    except ImportError as error:
        raise ConfigError(f"the server needs an extra: pip install 'ghostkv[server]' ({error})") from error
    from ghostkv.launch import engine_config, open_fleet, open_vllm
    from ghostkv.tables import size
    from ghostkv.terminal import Progress

    config = engine_config(
        **({} if kv_budget is None else {"kv_budget": kv_budget}),
        dtype=dtype,
        kv_dtype=kv_dtype,
        threads=threads,
        speculation=speculation,
        default_max_tokens=default_max_tokens,
        max_session_tokens=max_session_tokens,
        max_sequences=max_sequences,
        max_waiting=max_waiting,
        max_wait_s=max_wait,
    )
    limits = ServerConfig(
        max_waiting_tokens=max_waiting_tokens,
        keep_alive_s=keep_alive,
        max_deadline_s=max_deadline,
        sessions=SessionLimits(max_sessions, parse_bytes(session_memory), _idle(session_idle, store), session_grace),
        drain_s=drain_timeout,
        resume_s=resume_after,
    )
    _check_one_engine(upstream, worker, backend, vllm_options)
    if router is not None and not worker and len(upstream or ()) < 2:
        raise ConfigError("--router chooses among workers or upstreams: it needs --worker, or --upstream twice")
    peers = Peers(tuple(peer or ()), read_secret(capsule_secret_file))
    access = read_access(api_keys, os.environ, cors_origin or ())
    configure(log_format, log_level)
    phases.end("imports")
    if ray:
        _refuse_beside_ray(
            {
                "--worker": worker,
                "--peer": peer,
                "--store-size": store_size,
                "--backend": backend is not Engine.EMBEDDED,
                "--router": router,
            }
        )
        servers = (tuple(upstream), upstream_key, upstream_model, upstream_wait) if upstream else None
        stored, log, address = (store, store_lease), (log_format, log_level), (host, port)
        return _on_ray(model, config, limits, access, stored, servers, log, replicas, address)
    if replicas is not None:
        raise ConfigError("--replicas is for --ray: without it there is one server")
    with (
        listen(host, port) as bound,
        _opened(store, store_size, store_lease, worker) as kept,
        Progress() as progress,
    ):
        _warn(host, keys=bool(access.keys), inexact_store=bool(store and (upstream or backend is Engine.VLLM)))
        live = Live()
        stepped = live.stepped if page else lambda worker, trace: None
        if upstream:
            serving = _over(
                upstream,
                model,
                config,
                key=upstream_key,
                upstream_model=upstream_model,
                wait_s=upstream_wait,
                by=router or DEFAULT_ROUTER,
            )
        elif backend is Engine.VLLM:
            bytes_ = None if kv_budget is None else config.kv_budget
            serving = open_vllm(model or _MODEL, config, kv_budget=bytes_, options=vllm_options, announce=_say)
        else:
            serving = open_fleet(
                model or _MODEL, config, worker or (), by=router or DEFAULT_ROUTER, announce=progress, on_step=stepped
            )
        progress.done()
        phases.end("models")
        url = f"http://{f'[{host}]' if ':' in host else host}:{bound.getsockname()[1]}/v1"
        budget = f"KV budget {size(serving.backend.capabilities().kv_budget)}"
        more = f" for each of {1 + len(worker)} workers" if worker else ""
        over = f"over {', '.join(upstream)}" if upstream else ""
        line = f"serving {serving.name} at {url} ({over or f'{budget}{more}'})"
        beside = _page(live) if page else lambda app, serving: None
        run(
            serving,
            bound,
            access,
            config=limits,
            store=kept,
            peers=peers,
            observers=(live,) if page else (),
            beside=beside,
            ready=lambda: _ready(line, phases),
        )


def _warn(host: str, *, keys: bool, inexact_store: bool) -> None:
    if not keys and host not in ("127.0.0.1", "::1", "localhost"):
        _say(f"warning: there are no API keys, so whoever reaches {host} may use this server")
    if inexact_store:
        _say(
            "warning: over another engine an answer that broke off goes on from what is stored, but what follows "
            "may be other tokens than those that its client has read: no answer there is exact"
        )


def _refuse_beside_ray(given: dict[str, object]) -> None:
    for name, value in given.items():
        if value:
            raise ConfigError(f"{name} is for one server: it cannot be had with --ray")


def _on_ray(
    model: str | None,
    config: EngineConfig,
    limits: ServerConfig,
    access: Access,
    store: tuple[str | None, float | None],
    upstream: tuple[tuple[str, ...], str, str, float | None] | None,
    log: tuple[LogFormat, LogLevel],
    replicas: str | None,
    address: tuple[str, int],
) -> None:
    """Have all that be served by replicas, each over its own engine or over the same upstreams."""
    from ghostkv.replicas.command import serve_on_ray
    from ghostkv.replicas.settings import Scale, Settings, Upstream
    from ghostkv.session.store import LEASE_S

    where, lease_s = store
    settings = Settings(
        model=model or (_MODEL if upstream is None else None),
        engine=replace(config, threads=config.threads or 1),
        server=limits,
        access=access,
        store=where or "",
        lease_s=LEASE_S if lease_s is None else lease_s,
        upstream=None if upstream is None else Upstream(*upstream),
        log_format=log[0],
        log_level=log[1],
    )
    serve_on_ray(settings, Scale.of(replicas or "1"), *address)


def _over(urls: list[str], model: str | None, config: EngineConfig, **more: Any) -> Worker:
    """A worker over upstreams; what it costs stands on standard error and stays there."""
    from ghostkv.launch import open_upstream

    return open_upstream(urls, config, model=model, announce=_say, **more)


def _say(said: str) -> None:
    """On standard error, where it stays."""
    typer.echo(said, err=True)


def _check_one_engine(upstream: list[str] | None, workers: list[str] | None, backend: Engine, options: str) -> None:
    """Raises ConfigError for options of several engines."""
    others = {"--worker": bool(workers), "--backend vllm": backend is Engine.VLLM, "--upstream": bool(upstream)}
    named = [name for name, asked in others.items() if asked]
    if len(named) > 1:
        raise ConfigError(f"{named[-1]} is one engine: it cannot be had with {named[0]}")
    if options and backend is not Engine.VLLM:
        raise ConfigError("--vllm-options are for --backend vllm")


def drain(
    to: Annotated[str, typer.Option(metavar="URL", help="The peer that takes the sessions over.")],
    server: Annotated[
        str, typer.Option(metavar="URL", help="The server that hands them over.")
    ] = "http://127.0.0.1:8000",
) -> None:
    """Hand every session of a server over to one of its peers; it ends once nobody reads from it any more.

    An admin's key is taken from $GHOSTKV_API_KEY.
    """
    import json
    import urllib.error
    import urllib.request

    headers = {"content-type": "application/json"}
    if key := os.environ.get("GHOSTKV_API_KEY"):
        headers["authorization"] = f"Bearer {key}"
    if not server.startswith(("http://", "https://")):
        raise ConfigError(f"{server!r} is no address such as http://host:8000")
    asked = urllib.request.Request(f"{server}/v1/admin/drain", json.dumps({"to": to}).encode(), headers)
    try:
        with urllib.request.urlopen(asked, timeout=60) as reply:
            typer.echo(f"{json.load(reply)['left']} sessions are on their way to {to}")
    except urllib.error.HTTPError as error:
        raise ConfigError(f"{server}: {error.code} {error.read().decode(errors='replace')}") from error
    except OSError as error:
        raise ConfigError(f"{server} cannot be reached: {error}") from error


def _idle(seconds: float | None, store: str | None) -> float:
    """How long a session is kept that nobody uses."""
    if seconds is not None:
        return seconds
    return SERVER_DEFAULTS.sessions.idle_s if store is None else _KEPT_S


@contextmanager
def _opened(
    store: str | None, most: str | None, lease_s: float | None, others: list[str] | None
) -> Iterator[Store | None]:
    """The store, before a model is loaded; closed after everything else. Raises ConfigError."""
    if store is None:
        yield None
        return
    if others:
        raise ConfigError(
            "--store cannot be had with --worker: which worker a segment goes to depends on load and is not committed "
            "before its tokens are said, so that after a crash other tokens could follow those"
        )
    from ghostkv.session.stores import open_store

    kept = open_store(store, most=most, lease_s=lease_s)
    try:
        yield kept
    finally:
        kept.close()


def _ready(line: str, phases: Phases) -> None:
    print(line, flush=True)
    phases.end("server")
    _log.info("ready", extra={"fields": phases.fields()})


def _page(live: Live) -> Callable[[FastAPI, Serving], None]:
    """The live page, mounted beside the API."""
    from ghostkv.page.mount import mount_page  # takes a second to import

    return lambda app, serving: mount_page(app, serving, live)
