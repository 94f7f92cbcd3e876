"""Replicas and their relay as an application of Ray Serve, which places, watches, restarts and scales them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.config import RequestRouterConfig

from ghostkv.errors import ConfigError
from ghostkv.launch import open_upstream, open_worker
from ghostkv.replicas.asked import Asked, Message, ReplicaGone
from ghostkv.replicas.relay import Relay
from ghostkv.replicas.replica import Replica
from ghostkv.replicas.routing import hear
from ghostkv.replicas.settings import Scale, Settings
from ghostkv.session.store import SharedStore
from ghostkv.session.stores import open_shared
from ghostkv.session.worker import Worker
from ghostkv.telemetry.logs import configure

RELAY, REPLICAS = "ghostkv", "ghostkv-replicas"
"""Two applications, since Ray Serve replaces all of one that is deployed again, and the relay has clients."""
_ENGINE = "replica"
_ONGOING = 1_000_000  # requests that Ray lets through to one replica: ours has a line of its own, and says 429
_PATIENCE_S = 60.0  # beyond a lease: until a request that no replica answers is given up
_END_S = 10.0  # beyond draining: until Ray kills a replica that does not end
_LOOK_S = 0.2  # between two looks whether a replica that drains is empty
_HEALTH_S = 2.0
_UP_S, _DOWN_S = 10.0, 60.0  # that more, or fewer, must have been wanted; a session that has to move loses little
_LOGGING = {"enable_access_log": False}  # each replica has a log of its own, which counts and names more


class Engine:
    """A replica as Ray Serve runs it."""

    async def __init__(self, settings: Settings) -> None:  # type: ignore[misc]  # Ray awaits it
        configure(settings.log_format, settings.log_level)
        store = await asyncio.to_thread(open_shared, settings.store, settings.lease_s)
        try:
            worker = await asyncio.to_thread(_worker, settings)
        except BaseException:
            store.close()
            raise
        self._replica = await _started(worker, store, settings)
        self._watching = asyncio.create_task(self._watch())

    async def ask(self, asked: Asked) -> AsyncGenerator[str | list[Message]]:
        """See Replicas."""
        async with aclosing(self._replica.ask(asked)) as replies:
            async for each in replies:
                yield each

    async def here(self) -> None:
        """Answer."""

    async def check_health(self) -> None:
        """Called by Ray; raises what has it replace this one."""
        self._replica.check()

    async def __del__(self) -> None:
        """Called by Ray once nothing is under way."""
        await self._replica.close()

    async def _watch(self) -> None:
        """Drain once no more requests are sent here. Ray tells those that route, not the replica that is to stop."""
        context, loop, been = serve.get_replica_context(), asyncio.get_running_loop(), False
        own = context.replica_id.unique_id

        def told(there: frozenset[str]) -> None:
            nonlocal been
            if been and own not in there:
                loop.call_soon_threadsafe(self._replica.drain)
            been = own in there

        hear(told)
        await serve.get_deployment_handle(context.deployment, context.app_name).here.remote()  # from here on it hears


class Ingress:
    """The relay as Ray Serve runs it."""

    def __init__(self, patience_s: float, keep_alive_s: float) -> None:
        self._relay = Relay(_OnRay(serve.get_deployment_handle(_ENGINE, REPLICAS)), patience_s, keep_alive_s)

    def __serve_build_asgi_app__(self) -> Relay:
        return self._relay


class _OnRay:
    """`Replicas` by a handle of Ray Serve's."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle.options(stream=True)

    async def ask(self, asked: Asked, route: str) -> AsyncGenerator[str | list[Message]]:
        """See Replicas."""
        response = self._handle.options(session_id=route).ask.remote(asked)
        try:
            async for each in response:
                yield each if isinstance(each, str) else [_without_id(message) for message in each]
        except RayActorError as error:
            raise ReplicaGone from error
        finally:
            response.cancel()


def _without_id(message: Message) -> Message:
    """Ray's proxy puts the request's id on every reply itself."""
    if message["type"] != "http.response.start":
        return message
    return {**message, "headers": [header for header in message["headers"] if header[0] != b"x-request-id"]}


def start(host: str, port: int) -> bool:
    """Join the cluster of $RAY_ADDRESS or of this machine, else start one here; whether that was so."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a server that is asked to serve tells nobody about it
    try:
        ray.init(address="auto")
        own = False
    except ConnectionError:
        ray.init(include_dashboard=False)
        own = True
    serve.start(proxy_location="EveryNode", http_options={"host": host, "port": port})
    return own


def deploy(settings: Settings, scale: Scale) -> None:
    """Have replicas of these settings, in place of those of others, one after another; returns when they serve.

    Raises ConfigError where they do not start.
    """
    try:
        serve.run(_replicas(settings, scale), name=REPLICAS, route_prefix=None)
        if RELAY not in serve.status().applications:
            serve.run(_relay(settings), name=RELAY, route_prefix="/")
    except RuntimeError as error:
        raise ConfigError(f"Ray cannot start the replicas: {error}") from error


def end() -> None:
    """Drain and end all replicas, and the cluster that `start` started."""
    serve.delete(RELAY)
    serve.delete(REPLICAS)
    serve.shutdown()
    ray.shutdown()


def _replicas(settings: Settings, scale: Scale) -> Any:
    if scale.least == scale.most:
        count: dict[str, Any] = {"num_replicas": scale.least}
    else:
        aim = {"min_replicas": scale.least, "max_replicas": scale.most, "target_ongoing_requests": scale.answers}
        count = {"autoscaling_config": {**aim, "upscale_delay_s": _UP_S, "downscale_delay_s": _DOWN_S}}
    deployment = serve.deployment(
        name=_ENGINE,
        max_ongoing_requests=_ONGOING,
        logging_config=_LOGGING,
        graceful_shutdown_timeout_s=settings.server.drain_s + _END_S,
        graceful_shutdown_wait_loop_s=_LOOK_S,
        health_check_period_s=_HEALTH_S,
        ray_actor_options={"num_cpus": settings.cores},
        request_router_config=RequestRouterConfig(request_router_class="ghostkv.replicas.routing.Router"),
        **count,
    )
    return deployment(Engine).bind(settings)


def _relay(settings: Settings) -> Any:
    deployment = serve.deployment(
        name="relay",
        max_ongoing_requests=_ONGOING,
        logging_config=_LOGGING,
        graceful_shutdown_timeout_s=settings.server.drain_s + _END_S,
        ray_actor_options={"num_cpus": 0},
    )
    patience_s = _PATIENCE_S + settings.lease_s
    return deployment(serve.ingress()(Ingress)).bind(patience_s, settings.server.keep_alive_s)


def _worker(settings: Settings) -> Worker:
    upstream = settings.upstream
    if upstream is None:
        return open_worker(settings.model or "", settings.engine)
    return open_upstream(
        upstream.urls,
        settings.engine,
        model=settings.model,
        key=upstream.key,
        upstream_model=upstream.model,
        wait_s=upstream.wait_s,
    )


async def _started(worker: Worker, store: SharedStore, settings: Settings) -> Replica:
    replica = Replica(worker, store, settings.access, settings.server)
    try:
        await replica.start()
    except BaseException:
        worker.close()
        store.close()
        raise
    return replica
