"""The relay over two plain servers with one store: real processes, real sockets, a real kill."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator

import httpx2
import pytest

from databases import Cluster
from ghostkv.replicas.asked import Asked, Message, ReplicaGone
from replicas.test_replica import after, asked, frames_of, text_of
from server.test_process import Running, Start, start
from server.test_stored_sessions import LONG, RAW, body

__all__ = ["start"]  # a fixture

pytestmark = pytest.mark.postgres


class Processes:
    """`Replicas` by HTTP, of which nobody says that one is dead: its lease has to run out."""

    def __init__(self, servers: list[Running]) -> None:
        self._servers = servers
        self.refusals = 0

    async def ask(self, asked: Asked, route: str) -> AsyncGenerator[str | list[Message]]:
        url, path = self._servers[0].url, asked.scope["path"]
        headers = {"idempotency-key": asked.ticket} if path == RAW else {}
        try:
            async with (
                httpx2.AsyncClient(timeout=20) as client,
                client.stream(asked.scope["method"], url + path, content=asked.body, headers=headers) as reply,
            ):
                self.refusals += int(reply.status_code == 409)
                kind = reply.headers["content-type"].encode()
                head = {
                    "type": "http.response.start",
                    "status": reply.status_code,
                    "headers": [(b"content-type", kind)],
                }
                yield [head]
                held = b""
                async for part in reply.aiter_bytes():
                    whole, end, held = (held + part).rpartition(b"\n\n")
                    if end:
                        yield [{"type": "http.response.body", "body": whole + end, "more_body": True}]
                yield [{"type": "http.response.body", "body": held, "more_body": False}]
        except httpx2.HTTPError:
            self._servers.append(self._servers.pop(0))
            raise ReplicaGone from None


def test_a_kill_is_a_pause(start: Start, postgres: Cluster) -> None:
    options = {"store": postgres.database(), "says": LONG, "lease_s": 1.0}
    one, other = start(seconds=0.005, **options), start(**options)
    processes = Processes([one, other])

    async def run() -> None:
        assert (await asked(processes, "POST", "/v1/sessions", {"id": "s"}))[0] == 201
        killed = after(200, lambda: os.kill(one.process.pid, signal.SIGKILL))
        status, text = await asked(processes, "POST", RAW, body() | {"stream": True}, killed)
        assert status == 200, text
        assert [at for at, _ in frames_of(text)] == [*range(600), 599] and processes.refusals > 0
        _, whole = await asked(processes, "POST", RAW, {**body(), "ghostkv": {"residency": "segment"}})
        assert text_of(text) == json.loads(whole)["choices"][0]["text"]

    asyncio.run(run())
    assert one.process.wait(10) == -signal.SIGKILL
