"""Replicas over one PostgreSQL store, behind a relay: one dies, or drains, and whoever reads sees a pause."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import pytest

from databases import Cluster
from ghostkv.config import ServerConfig
from ghostkv.replicas.asked import Asked, Message, ReplicaGone, Replicas
from ghostkv.replicas.relay import Relay
from ghostkv.replicas.replica import Replica
from ghostkv.server.access import Access
from ghostkv.session.postgres_store import PostgresStore
from server.test_stored_sessions import LONG, RAW, body
from services import ScriptedBackend, saying, scripted_worker

pytestmark = pytest.mark.postgres

LEASE_S = 600.0  # nobody waits for one to run out here


@dataclass
class One:
    replica: Replica
    store: PostgresStore
    backend: ScriptedBackend
    dead: asyncio.Event = field(default_factory=asyncio.Event)


class Several:
    """`Replicas` in this process. A dead one is not heard of any more, but goes on: what it writes then is refused."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.all: list[One] = []
        self.asked: list[int] = []

    async def add(self, seconds: float = 0.0) -> One:
        store = PostgresStore(self._url, LEASE_S)
        backend = ScriptedBackend(saying(LONG), seconds=seconds)
        config = ServerConfig(drain_s=5.0)
        one = One(Replica(scripted_worker(backend), store, Access(), config), store, backend)
        await one.replica.start()
        self.all.append(one)
        return one

    async def ask(self, asked: Asked, route: str) -> AsyncGenerator[str | list[Message]]:
        """The first that lives, and for another route the next."""
        living = [one for one in self.all if not one.dead.is_set()]
        one = living[hash(route) % len(living)] if " " in route else living[0]
        self.asked.append(self.all.index(one))
        async with aclosing(one.replica.ask(asked)) as replies:
            while True:
                step = asyncio.ensure_future(anext(replies))
                died = asyncio.ensure_future(one.dead.wait())
                await asyncio.wait({step, died}, return_when=asyncio.FIRST_COMPLETED)
                if one.dead.is_set():
                    step.add_done_callback(lambda task: task.cancelled() or task.exception())
                    await asyncio.wait({step}, timeout=5)
                    raise ReplicaGone
                died.cancel()
                try:
                    each = step.result()
                except StopAsyncIteration:
                    return
                yield each


async def asked(
    several: Replicas, method: str, path: str, given: Any = None, came: Callable[[str], None] = lambda _: None
) -> tuple[int, str]:
    """(status, body) of a request through a relay; `came` is told of each piece."""
    content = b"" if given is None else json.dumps(given).encode()
    sent = [{"type": "http.request", "body": content, "more_body": False}]
    messages: list[Any] = []

    async def receive() -> Any:
        if sent:
            return sent.pop()
        return await asyncio.Future()

    async def send(message: Any) -> None:
        messages.append(message)
        came(message.get("body", b"").decode())

    bare, _, query = path.partition("?")
    headers = [(b"content-length", str(len(content)).encode())]
    scope = {"type": "http", "method": method, "path": bare, "query_string": query.encode(), "headers": headers}
    await asyncio.wait_for(Relay(several, 10.0, 60.0)(scope, receive, send), 20)
    assert not messages[-1]["more_body"]
    return messages[0]["status"], b"".join(message.get("body", b"") for message in messages).decode()


def among(postgres: Cluster, run: Callable[[Several], Awaitable[None]]) -> None:
    """A test with replicas, which are closed after it."""

    async def whole() -> None:
        several = Several(postgres.database())
        try:
            await run(several)
        finally:
            for one in several.all:
                one.dead.clear()
                await one.replica.close()

    asyncio.run(whole())


def frames_of(text: str) -> list[tuple[int, Any]]:
    blocks = [
        block.split("\n") for block in text.split("\n\n") if block and not block.startswith((":", "data: [DONE]"))
    ]
    return [(int(at.removeprefix("id: ")), json.loads(data.removeprefix("data: "))) for at, data in blocks]


def text_of(text: str) -> str:
    assert text.endswith("data: [DONE]\n\n"), text[-300:]
    return "".join(choice["text"] for _, frame in frames_of(text) for choice in frame["choices"])


def after(tokens: int, do: Callable[[], None]) -> Callable[[str], None]:
    """Does it once, when so many tokens have come."""
    seen = 0

    def came(piece: str) -> None:
        nonlocal seen
        before, seen = seen, seen + piece.count("data:")
        if before < tokens <= seen:
            do()

    return came


@pytest.mark.parametrize("residency", ["segment", "full"])
def test_a_replica_that_dies_is_a_pause(postgres: Cluster, residency: str) -> None:
    """Its lease has ten minutes to go: the relay knows better, and says so to who takes the session over."""

    async def run(several: Several) -> None:
        one = await several.add(seconds=0.004)
        await several.add()
        given = body(ghostkv={"residency": residency})
        assert (await asked(several, "POST", "/v1/sessions", {"id": "s"}))[0] == 201
        status, text = await asked(several, "POST", RAW, given | {"stream": True}, after(200, one.dead.set))
        assert status == 200, text
        assert (status, several.asked[1], several.asked[-1]) == (200, 0, 1)
        frames = frames_of(text)
        assert [at for at, _ in frames] == [*range(600), 599] and len({frame["id"] for _, frame in frames}) == 1
        _, whole = await asked(several, "POST", RAW, {**given, "ghostkv": {"residency": residency}})
        assert text_of(text) == json.loads(whole)["choices"][0]["text"]
        _, again = await asked(several, "GET", "/v1/sessions/s/stream?from=0")
        assert text_of(again) == text_of(text)
        assert len(json.loads((await asked(several, "GET", "/v1/sessions/s"))[1])["turns"]) == 1

    among(postgres, run)


def test_a_replica_that_drains_lets_its_answers_go_at_their_next_boundary(postgres: Cluster) -> None:
    """Both of whoever asked and of whoever else reads; nothing is generated twice. What has no session ends there."""

    async def run(several: Several) -> None:
        one, given = await several.add(seconds=0.004), body()
        assert (await asked(several, "POST", "/v1/sessions", {"id": "s"}))[0] == 201
        free = asyncio.create_task(
            asked(several, "POST", RAW, {**given, "max_tokens": 300, "ghostkv": {}, "stream": True})
        )
        begun = asyncio.Event()
        mine = asyncio.create_task(asked(several, "POST", RAW, given | {"stream": True}, after(100, begun.set)))
        await begun.wait()
        other = await several.add()
        reader = asyncio.create_task(asked(several, "GET", "/v1/sessions/s/stream?from=10"))
        one.replica.drain()
        text, read, unbound = (await mine)[1], (await reader)[1], (await free)[1]
        generated = [each.backend.engine.stats.generated_tokens for each in (one, other)]
        assert 900 <= sum(generated) < 950 and generated[1] > 100, generated
        _, whole = await asked(several, "POST", RAW, {**given, "ghostkv": {"residency": "segment"}})
        assert text_of(text) == json.loads(whole)["choices"][0]["text"]
        assert text_of(read) == text_of(text)[10:]
        assert '"finish_reason":"length"' in unbound

    among(postgres, run)


def test_whole_replies_outlive_a_replica_too(postgres: Cluster) -> None:
    async def run(several: Several) -> None:
        one = await several.add(seconds=0.004)
        await several.add()
        assert (await asked(several, "POST", "/v1/sessions", {"id": "s"}))[0] == 201
        asyncio.get_running_loop().call_later(0.5, one.dead.set)
        status, text = await asked(several, "POST", RAW, body())
        assert status == 200 and several.asked[-1] == 1
        _, again = await asked(several, "GET", "/v1/sessions/s/stream?from=0")
        assert json.loads(text)["choices"][0]["text"] == text_of(again)
        assert json.loads(text)["id"] == frames_of(again)[0][1]["id"]

    among(postgres, run)


def test_who_hangs_up_is_answered_no_longer(postgres: Cluster) -> None:
    async def run(several: Several) -> None:
        one = await several.add(seconds=0.004)
        given = json.dumps({**body(), "ghostkv": {}, "stream": True}).encode()
        scope = {"type": "http", "method": "POST", "path": RAW, "query_string": b"", "headers": []}
        async with aclosing(one.replica.ask(Asked(scope, given, "t"))) as replies:
            assert await anext(replies) == one.store.server
            await anext(replies)
        for _ in range(200):
            if one.backend.engine.stats.finished:
                break
            await asyncio.sleep(0.02)
        assert one.backend.engine.stats.finished.total() == 1
        assert one.backend.engine.stats.generated_tokens < 300

    among(postgres, run)
