"""Runs the application on a socket until a signal ends it."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import uvicorn

from ghostkv.errors import ConfigError
from ghostkv.server.app import build_app
from ghostkv.server.serving import Serving
from ghostkv.session.worker import Worker

DRAIN_S = 10.0
"""Seconds that running answers have to end by themselves after the first signal."""
_CLOSE_S = 2.0  # for the last bytes, after the engine has been closed


def listen(host: str, port: int) -> socket.socket:
    """A bound socket, so that a port in use is known before a model is loaded. Port 0: any free one."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen on {host} port {port}: {error}") from error
    return bound


def serve(
    worker: Worker, bound: socket.socket, *, ready: Callable[[], None] = lambda: None, drain_s: float = DRAIN_S
) -> None:
    """Serve until SIGTERM or SIGINT.

    Then no connection is accepted any more; answers have `drain_s` seconds to end, and those that do not are ended
    with an error. A second signal ends the process at once. `ready` is called when requests are accepted.
    """
    config = uvicorn.Config(
        build_app(Serving(worker)),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=int(drain_s + _CLOSE_S) + 1,
    )
    # uvicorn raises the signal again after shutting down; a handler of our own makes that an orderly exit.
    previous = {number: signal.signal(number, _nothing) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        Server(config, worker, ready, drain_s).run([bound])
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        worker.close()


class Server(uvicorn.Server):
    """uvicorn, which drains: see `serve`."""

    def __init__(self, config: uvicorn.Config, worker: Worker, ready: Callable[[], None], drain_s: float) -> None:
        super().__init__(config)
        self._worker = worker
        self._ready = ready
        self._drain_s = drain_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then say so."""
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for answers to end, and end them when their time is up."""
        ending = asyncio.create_task(self._end_answers())
        await super().shutdown(sockets)
        ending.cancel()
        with suppress(asyncio.CancelledError):
            await ending

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, the second ends."""
        self.force_exit = self.should_exit
        super().handle_exit(sig, frame)

    async def _end_answers(self) -> None:
        await asyncio.sleep(self._drain_s)
        await asyncio.to_thread(self._worker.close)


def _nothing(sig: int, frame: FrameType | None) -> None:
    pass
