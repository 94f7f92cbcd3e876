"""Runs the application on a socket until a signal or a fault of the engine ends it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from types import FrameType

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp

from ghostkv.config import ServerConfig
from ghostkv.errors import ConfigError, Draining, EngineFault
from ghostkv.server.access import Access
from ghostkv.server.app import build_app
from ghostkv.server.metering import Metering
from ghostkv.server.peer import Peers
from ghostkv.server.serving import Serving
from ghostkv.session.store import Store
from ghostkv.session.worker import Worker
from ghostkv.telemetry.observe import Observer

_log = logging.getLogger(__name__)
_CLOSE_S = 1.0  # for the last bytes, once all answers have ended; then sockets that take nothing are cut
_FAULT_S = 2.0  # between the engine's end and the process's: everybody is told, and probes see that health is red
_HEADER_BYTES = 64 * 2**10  # of a request line and its headers; more is 400
_MOST_DESCRIPTORS = 2**16


def listen(host: str, port: int) -> socket.socket:
    """A bound socket, so that a port in use is known before a model is loaded. Port 0: any free one."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with ExitStack() as unless_bound:
            bound = unless_bound.enter_context(socket.socket(family, kind, protocol))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            unless_bound.pop_all()
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen on {host} port {port}: {error}") from error
    return bound


def serve(
    worker: Worker,
    bound: socket.socket,
    access: Access,
    *,
    config: ServerConfig | None = None,
    store: Store | None = None,
    peers: Peers | None = None,
    observers: tuple[Observer, ...] = (),
    beside: Callable[[FastAPI, Serving], None] = lambda app, serving: None,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGTERM or SIGINT. `ready` is called when requests are accepted.

    `store` is where sessions outlive the process. `beside` may add to the application, before it starts; `observers`
    are told of every answer.
    After the signal new answers are refused, `/health` is red, and running ones have `config.drain_s` seconds to end;
    those that do not are ended with an error. A second signal ends the process at once, with 128 + its number. Raises
    EngineFault where it was not a signal but a fault of the engine that ended it, `_FAULT_S` seconds after it.
    """
    raise_descriptor_limit()
    config = config or ServerConfig()
    watching = (Metering(worker), *observers)
    serving = Serving(worker, watching, access, config, store=store, peers=peers or Peers())
    app = build_app(serving)
    beside(app, serving)
    server = Server(http_config(app, config.drain_s), serving, ready)

    def stop(sig: int, frame: FrameType | None) -> None:
        server.should_exit = True

    # Before uvicorn's own handlers are in place, and after it: it raises the signal again when it has shut down, which
    # would end the process as if nothing had been done in order.
    previous = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        server.run([bound])
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        worker.close()
    if server.faulted:
        raise EngineFault("the engine stopped on an error, so the server ended; its log says on which")


def http_config(app: ASGIApp, drain_s: float) -> uvicorn.Config:
    """How HTTP is spoken."""
    return uvicorn.Config(
        app,
        http="h11",  # the one that bounds the size of headers
        h11_max_incomplete_event_size=_HEADER_BYTES,
        log_config=None,  # what it logs goes where all else does
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=int(drain_s + 2 * _CLOSE_S) + 1,  # not reached: sockets are cut before
    )


def raise_descriptor_limit() -> None:
    """Let this process open as many sockets as it may; does nothing where there is no such limit."""
    try:
        import resource
    except ImportError:  # Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):  # some systems promise more than they give
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class Server(uvicorn.Server):
    """uvicorn, which drains: see `serve`."""

    def __init__(self, config: uvicorn.Config, serving: Serving, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.faulted = False
        """Whether the engine stopped by itself."""
        self.serving = serving
        """What it serves."""
        self._ready = ready
        self._ends_at: float | None = None  # seconds; when answers are ended that still run; None: not to be seen

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then say so."""
        await super().startup(sockets)
        self._ready()

    async def on_tick(self, counter: int) -> bool:
        """Whether to shut down: not before the answers that run at the first signal have ended, or their time has."""
        await super().on_tick(counter)
        now = time.monotonic()
        if not self.faulted and not self.serving.worker.healthy():
            self.faulted = True
            self._ends_at = now + _FAULT_S
            _log.critical("the engine has stopped: everybody is told, and the server ends in %g s", _FAULT_S)
        if not self.should_exit and (left := self.serving.gate.shut_for) is not None:  # its sessions go to a peer
            self.should_exit, self._ends_at = True, now + left
        if self.should_exit and not self.serving.gate.shut:
            self._ends_at = self._ends_at or now + self.serving.config.drain_s
            self.serving.gate.close(self._ends_at - now)
        if self._ends_at is None:
            return False
        return now >= self._ends_at or (self.should_exit and not self.serving.gate.inside)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the port, wait for the last bytes, and end what does not end by itself."""
        ending = asyncio.create_task(self._end_all())
        await super().shutdown(sockets)
        ending.cancel()
        with suppress(asyncio.CancelledError):
            await ending

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, the second ends."""
        if self.should_exit:
            os._exit(128 + sig)
        super().handle_exit(sig, frame)

    async def _end_all(self) -> None:
        await asyncio.sleep(max(0.0, (self._ends_at or 0.0) - time.monotonic()))
        self.serving.gate.end_all(
            lambda: Draining("the answer was ended before it was complete: the server is shutting down")
        )
        await asyncio.sleep(_CLOSE_S)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
