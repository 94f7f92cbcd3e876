"""More than the server can do: who is refused, when, how it is said, and that the rest is served (D14)."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx2
import openai
import pytest

from ghostkv.config import EngineConfig, ServerConfig
from ghostkv.session.turn import Event, Turn
from services import Scripted, ScriptedBackend, Service, until

HI: list[Any] = [{"role": "user", "content": "hi"}]
BODY: dict[str, Any] = {"model": "scripted", "messages": HI, "max_tokens": 20}
LINE = EngineConfig(max_waiting=4)


def endless(history: tuple[int, ...], draw: object) -> int:
    return ord("x")


def backend_of(service: Service) -> ScriptedBackend:
    assert isinstance(service.worker.backend, ScriptedBackend)
    return service.worker.backend


def idle(service: Service) -> bool:
    """Whether engine and gate get back to where they began."""
    gate, pool = service.server.serving.gate, backend_of(service).pool
    return until(lambda: not gate.inside and not pool.referenced)


def one_slot(scripted: Scripted, *, seconds: float = 0.02, **more: Any) -> Service:
    return scripted(endless, seconds=seconds, max_sequences=1, config=LINE, **more)


@contextmanager
def busy(service: Service, count: int) -> Iterator[None]:
    """`count` streams, of which one runs and the others wait; their clients leave at the end."""
    gate, body = service.server.serving.gate, BODY | {"max_tokens": 900, "stream": True}
    with httpx2.Client(base_url=service.url, timeout=30) as client:
        for number in range(count):
            request = client.build_request("POST", "/v1/chat/completions", json=body)
            threading.Thread(target=_start, args=(client, request), daemon=True).start()
            assert until(lambda: (gate.inside, gate.waiting) == (number + 1, number))  # noqa: B023 - called at once
        yield
    assert idle(service)


def _start(client: httpx2.Client, request: httpx2.Request) -> None:
    try:
        for _ in client.send(request, stream=True).iter_raw():
            pass
    except (httpx2.HTTPError, httpx2.StreamError, OSError, RuntimeError):
        pass  # closed by the test


def test_a_burst_onto_a_short_line(scripted: Scripted) -> None:
    """30 at once, one slot, four places: some are served, the rest are told when to come, and served when they do."""
    service = one_slot(scripted, seconds=0.01)
    gate, body = service.server.serving.gate, {"model": "scripted", "prompt": "x", "max_tokens": 10}
    most, healthy, over = list[int](), list[int](), threading.Event()

    def watch() -> None:
        with httpx2.Client(base_url=service.url, timeout=20) as client:
            while not over.is_set():
                most.append(gate.inside)
                healthy.append(client.get("/health").status_code)

    async def ask(client: httpx2.AsyncClient, number: int) -> list[int]:
        """The statuses that one client gets until it is served, heeding every Retry-After."""
        statuses: list[int] = []
        while len(statuses) < 20:
            reply = await client.post("/v1/completions", json=body | {"stream": bool(number % 2)})
            statuses.append(reply.status_code)
            if reply.status_code == 200:
                assert reply.text.count("x") >= 10
                break
            assert reply.json()["error"]["type"] == "rate_limit_error"
            assert reply.headers["content-type"] == "application/json"
            await asyncio.sleep(int(reply.headers["retry-after"]))
        return statuses

    async def all_at_once() -> list[list[int]]:
        async with httpx2.AsyncClient(base_url=service.url, timeout=60) as client:
            return await asyncio.gather(*[ask(client, number) for number in range(30)])

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        statuses = asyncio.run(all_at_once())
    finally:
        over.set()
        watching.join()
    counts = Counter(status for each in statuses for status in each)
    assert all(each[-1] == 200 for each in statuses)
    assert set(counts) == {200, 429} and counts[429] >= 25
    assert max(most) <= 5
    assert set(healthy) == {200}
    assert backend_of(service).engine.stats.refused == 0  # the gate did it, before any work
    assert idle(service)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/chat/completions", BODY | {"n": 3}),
        ("/v1/completions", {"model": "scripted", "prompt": ["a", "b", "c"]}),
        ("/v1/completions", {"model": "scripted", "prompt": ["a"], "n": 3}),
    ],
)
def test_many_answers_count_as_many(scripted: Scripted, path: str, more: dict[str, Any], stream: bool) -> None:
    service = one_slot(scripted)
    with busy(service, 3):
        refused = service.http.post(path, json=more | {"stream": stream})
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "overloaded")
        assert service.server.serving.gate.waiting == 2  # of three, none came in
    served = service.http.post(path, json=more | {"stream": stream, "max_tokens": 2})
    assert served.status_code == 200
    never = service.http.post(path, json=more | {"n": 5, "stream": stream})
    assert never.status_code == 400 and "at most 4" in never.json()["error"]["message"]


def test_the_line_is_bounded_in_tokens(scripted: Scripted) -> None:
    service = one_slot(scripted, limits=ServerConfig(max_waiting_tokens=1500))
    with busy(service, 2):  # 900 and more wait
        refused = service.http.post("/v1/chat/completions", json=BODY | {"max_tokens": 600})
    assert refused.status_code == 429
    assert "at most 1500 in line" in refused.json()["error"]["message"]


def test_clients_see_an_error_of_their_own_kind(scripted: Scripted) -> None:
    service = one_slot(scripted)
    with busy(service, 5), pytest.raises(openai.RateLimitError) as caught:
        service.client.chat.completions.create(model="scripted", messages=HI, stream=True)
    assert int(caught.value.response.headers["retry-after"]) >= 1
    before = backend_of(service).engine.stats.added
    with pytest.raises(openai.APIStatusError) as late:
        service.client.with_options(max_retries=5).chat.completions.create(
            model="scripted", messages=HI, max_tokens=900, extra_body={"ghostkv": {"deadline_s": 0.3}}
        )
    assert (late.value.status_code, late.value.code) == (408, "deadline_exceeded")
    assert idle(service)
    assert backend_of(service).engine.stats.added == before + 1  # it was not sent again, as a plain 408 would be


def test_a_deadline_that_passes_in_line(scripted: Scripted) -> None:
    """A stream says so with its status while that is open, and with an event later."""
    service = one_slot(scripted)
    for stream, seconds in ((False, 0.3), (True, 0.3), (True, 1.5)):
        body = BODY | {"stream": stream, "ghostkv": {"deadline_s": seconds}}
        with busy(service, 2):
            reply = service.http.post("/v1/chat/completions", json=body)
            assert until(lambda: service.server.serving.gate.inside == 2)
        if seconds < 1:
            assert (reply.status_code, reply.headers["x-should-retry"]) == (408, "false")
            error = reply.json()["error"]
        else:
            assert reply.status_code == 200
            lines = [line for line in reply.text.split("\n\n") if line]
            assert lines[-1] == "data: [DONE]"
            error = json.loads(lines[-2].removeprefix("data: "))["error"]
        assert (error["code"], error["param"]) == ("deadline_exceeded", "ghostkv.deadline_s")
        assert "waiting in line" in error["message"]


@pytest.mark.parametrize("named", [True, False])
def test_a_deadline_that_passes_while_an_answer_runs(scripted: Scripted, named: bool) -> None:
    """The client's own, or the one that the server gives to all."""
    service = scripted(endless, seconds=0.02, limits=ServerConfig(max_deadline_s=None if named else 1.2))
    body = BODY | {"max_tokens": 900, "stream": True} | ({"ghostkv": {"deadline_s": 1.2}} if named else {})
    with service.http.stream("POST", "/v1/chat/completions", json=body) as reply:
        lines = [line.removeprefix("data: ") for line in reply.iter_lines() if line]
    assert lines[-1] == "[DONE]" and len(lines) > 3
    error = json.loads(lines[-2])["error"]
    assert error["code"] == "deadline_exceeded" and "before it was complete" in error["message"]
    assert sum("error" in line for line in lines) == 1
    assert idle(service)
    in_time = service.http.post("/v1/chat/completions", json=body | {"stream": False, "max_tokens": 2})
    assert in_time.status_code == 200


@pytest.mark.parametrize("seconds", [0, -1, 86_401, "5", 1e400])
def test_deadlines_that_nobody_can_mean(scripted: Scripted, seconds: object) -> None:
    service = scripted(endless)
    text = json.dumps(BODY | {"ghostkv": {"deadline_s": seconds}}).replace("Infinity", "1e400")
    reply = service.http.post("/v1/chat/completions", content=text)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "ghostkv.deadline_s")


def test_a_deadline_beyond_what_the_server_grants(scripted: Scripted) -> None:
    service = scripted(endless, limits=ServerConfig(max_deadline_s=5))
    for seconds, status in ((5, 200), (5.1, 400)):
        reply = service.http.post("/v1/chat/completions", json=BODY | {"ghostkv": {"deadline_s": seconds}})
        assert reply.status_code == status
    assert "at most 5 s" in reply.json()["error"]["message"]


def test_a_deadline_that_the_line_will_not_meet_is_refused_at_once(scripted: Scripted) -> None:
    service = one_slot(scripted)
    while not service.server.serving.gate.pace.measured:
        service.http.post("/v1/chat/completions", json=BODY)
    with busy(service, 4):  # there would be room for one more
        time.sleep(1.2)  # the line stands
        refused = service.http.post("/v1/chat/completions", json=BODY | {"ghostkv": {"deadline_s": 0.01}})
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "overloaded")
    assert "deadline" in refused.json()["error"]["message"]


def test_a_thousand_streams(scripted: Scripted) -> None:
    """All are open at a time, most of them waiting, and all are served."""
    service = scripted(endless, blocks=4096, max_waiting=2000, config=EngineConfig(max_waiting=2000))
    request = json.dumps(BODY | {"max_tokens": 2, "stream": True}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
    port = int(service.url.rsplit(":", 1)[1])

    async def ask(opened: asyncio.Barrier) -> bool:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await opened.wait()
        writer.write(head % len(request) + request)
        reply = await reader.read()
        writer.close()
        return (
            reply.startswith(b"HTTP/1.1 200") and b"data: [DONE]" in reply and reply.count(b'"finish_reason":"l') == 1
        )

    async def all_of_them() -> list[bool]:
        opened = asyncio.Barrier(1000)
        return await asyncio.gather(*[ask(opened) for _ in range(1000)])

    assert sum(asyncio.run(all_of_them())) == 1000
    assert idle(service)


def test_a_thousand_silent_sockets_take_no_place(scripted: Scripted) -> None:
    service = one_slot(scripted)
    address = ("127.0.0.1", int(service.url.rsplit(":", 1)[1]))
    held = [socket.create_connection(address) for _ in range(1000)]
    try:
        assert service.http.post("/v1/chat/completions", json=BODY).status_code == 200
    finally:
        for each in held:
            each.close()


class Ends:
    """An observer that counts beginnings and ends of each answer."""

    def __init__(self) -> None:
        self.begun, self.over = Counter[str](), Counter[str]()

    def started(self, turn: Turn) -> None:
        self.begun[turn.id] += 1

    def event(self, turn: Turn, event: Event) -> None:
        assert not self.over[turn.id]

    def ended(self, turn: Turn, error: BaseException | None) -> None:
        self.over[turn.id] += 1


def outcome(service: Service, body: dict[str, Any], patience: float) -> str:
    """How one request ended: left, or its status. What it got is checked to have one end, not two and not none."""
    with httpx2.Client(base_url=service.url, timeout=patience) as client:
        try:
            reply = client.post("/v1/chat/completions", json=body)
        except httpx2.TransportError:
            return "left"
    if reply.status_code != 200:
        assert "error" in reply.json()
    elif body["stream"]:
        lines = [line for line in reply.text.split("\n\n") if line.startswith("data: ")]
        assert lines[-1] == "data: [DONE]" and lines.count("data: [DONE]") == 1
        ends = sum('"finish_reason":"' in line for line in lines)
        errors = sum(line.startswith('data: {"error"') for line in lines)
        assert (errors == 0 and ends == body["n"]) or (errors == 1 and ends < body["n"])
    else:
        assert [choice["finish_reason"] for choice in reply.json()["choices"]] == ["length"] * body["n"]
    return str(reply.status_code)


def test_every_answer_has_one_end(scripted: Scripted) -> None:
    """Whatever becomes of it: served, refused, late, left by its client."""
    service = scripted(endless, seconds=0.005, max_sequences=2, config=EngineConfig(max_waiting=6))
    ends, chance = Ends(), random.Random(4)
    object.__setattr__(service.server.serving, "observers", (ends,))

    def ask(number: int) -> str:
        body = BODY | {"stream": number % 2 == 0, "n": 1 + number % 3}
        if number % 5 == 0:
            body["ghostkv"] = {"deadline_s": chance.uniform(0.01, 0.3)}
        time.sleep(number / 50)
        return outcome(service, body, chance.choice([0.05, 0.2, 20, 20]))

    with ThreadPoolExecutor(60) as threads:
        outcomes = Counter(threads.map(ask, range(60)))
    assert outcomes.total() == 60 and outcomes["200"] and outcomes["429"] and outcomes["left"]
    assert idle(service)
    assert ends.begun and ends.begun == ends.over and set(ends.over.values()) == {1}
