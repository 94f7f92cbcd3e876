"""One replica: a worker, the shared store, and the application, which is asked without a socket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, MutableMapping
from contextlib import AsyncExitStack, suppress
from typing import Any

from fastapi.responses import JSONResponse
from starlette.types import Scope

from ghostkv.config import ServerConfig
from ghostkv.errors import Draining, EngineFault, GhostError, StoreError
from ghostkv.replicas.asked import Asked, Message
from ghostkv.server.access import Access
from ghostkv.server.app import build_app
from ghostkv.server.errors import error_body, headers_of
from ghostkv.server.metering import Metering
from ghostkv.server.once import HEADER, known_by
from ghostkv.server.release import release_all
from ghostkv.server.serving import Serving
from ghostkv.session.store import SharedStore
from ghostkv.session.worker import Worker

_log = logging.getLogger(__name__)
_CLOSE_S = 1.0  # for answers that were ended to say so


class Replica:
    """Of one event loop."""

    def __init__(self, worker: Worker, store: SharedStore, access: Access, config: ServerConfig) -> None:
        self._store = store
        self._serving = Serving(worker, (Metering(worker),), access, config, store=store)
        self._app = build_app(self._serving)
        self._open = AsyncExitStack()
        self._drained: asyncio.Task[None] | None = None
        self._answers: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Take in what the store has. Raises StoreError."""
        await self._open.enter_async_context(self._app.router.lifespan_context(self._app))

    def check(self) -> None:
        """Raises EngineFault or Draining once nothing is answered here any more."""
        self._serving.gate.check_open()  # one that is to stop is not asked: then it was told so by mistake
        if not self._serving.worker.healthy():
            raise EngineFault("the engine has stopped")

    async def ask(self, asked: Asked) -> AsyncGenerator[str | list[Message]]:
        """See Replicas. An answer that nobody reads any more ends as if its client had hung up."""
        if asked.gone:
            with suppress(StoreError):  # then their leases have to run out
                await asyncio.wrap_future(self._store.gone(asked.gone))
        reply = _Reply(asked)
        task = asyncio.create_task(self._answer(reply))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)
        task.add_done_callback(lambda _: reply.moved.set())
        try:
            yield self._store.server
            while True:
                await reply.moved.wait()
                ended = task.done()
                if messages := reply.taken():
                    yield messages
                if ended:
                    task.result()
                    return
        finally:
            reply.left.set()

    def drain(self) -> None:
        """Let nothing in any more, and every session go at its next boundary; then end what still runs."""
        if self._drained is None:
            self._drained = asyncio.create_task(self._drain(), name="drain")

    async def close(self) -> None:
        """Drain, and let go of worker and store."""
        self.drain()
        if self._drained is not None:
            await self._drained
        await self._open.aclose()
        await asyncio.to_thread(self._serving.worker.close)
        await asyncio.to_thread(self._store.close)

    async def _drain(self) -> None:
        config, gate = self._serving.config, self._serving.gate
        loop = asyncio.get_running_loop()
        until = loop.time() + config.drain_s
        await release_all(self._serving, self._store, config.drain_s)
        while self._answers and loop.time() < until:
            await asyncio.wait(self._answers, timeout=until - loop.time())
        gate.end_all(lambda: Draining("the answer was ended before it was complete: the replica is shutting down"))
        if self._answers:
            await asyncio.wait(self._answers, timeout=_CLOSE_S)

    async def _answer(self, reply: _Reply) -> None:
        scope: Scope = {**reply.asked.scope, "state": {}}
        try:
            if self._serving.gate.shut:
                self._serving.gate.check_open()
        except GhostError as error:  # a session is not taken back that others may have by now
            response = JSONResponse(error_body(error), error.http_status, headers_of(error))
            await response(scope, reply.receive, reply.send)
            return
        if HEADER.encode() not in [name for name, _ in scope["headers"]]:
            known_by(scope, reply.asked.ticket, reply.asked.body)
        await self._app(scope, reply.receive, reply.send)


class _Reply:
    """One request's two ends of ASGI."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.moved = asyncio.Event()
        """There is something to take, or nothing follows."""
        self.left = asyncio.Event()
        """Nobody takes anything any more."""
        self._messages: list[Message] = []
        self._read = False

    def taken(self) -> list[Message]:
        """What has come since."""
        messages, self._messages = self._messages, []
        self.moved.clear()
        return messages

    async def receive(self) -> MutableMapping[str, Any]:
        """The body, then that the client has gone."""
        if not self._read:
            self._read = True
            return {"type": "http.request", "body": self.asked.body, "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Keep it until it is taken."""
        self._messages.append(message)
        self.moved.set()
