"""What a stream does besides its events: signs of life, joined deltas, an end whatever happens."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import httpx2
import pytest

from ghostkv.config import ServerConfig
from ghostkv.server.chunks import Chunks
from ghostkv.session.turn import Finished
from services import Scripted, ScriptedBackend, Service, until

HI: list[Any] = [{"role": "user", "content": "hi"}]
BODY: dict[str, Any] = {"model": "scripted", "messages": HI, "stream": True}
PING = ": keep-alive"


def counting(history: tuple[int, ...], draw: object) -> int:
    return ord("a") + len(history) % 26


def backend_of(service: Service) -> ScriptedBackend:
    assert isinstance(service.worker.backend, ScriptedBackend)
    return service.worker.backend


def events(text: str) -> list[Any]:
    """Everything between the blank lines: comments as text, data parsed, `[DONE]` as it is."""
    found: list[Any] = []
    for block in text.split("\n\n"):
        if block.startswith("data: {"):
            found.append(json.loads(block.removeprefix("data: ")))
        elif block:
            found.append(block.removeprefix("data: "))
    return found


def test_silent_streams_say_that_they_live(scripted: Scripted) -> None:
    """In line, before the first token and between tokens; the client library does not mind."""
    service = scripted(counting, seconds=0.5, max_sequences=1, limits=ServerConfig(keep_alive_s=0.1))
    with service.http.stream("POST", "/v1/chat/completions", json=BODY | {"max_tokens": 5}) as runs:
        lines = runs.iter_lines()
        next(lines)
        with httpx2.Client(base_url=service.url, timeout=20) as client:
            second = client.post("/v1/chat/completions", json=BODY | {"max_tokens": 2})
        first = events("\n".join(lines))
    waited = events(second.text)
    assert first.count(PING) >= 4  # between two tokens each
    assert waited[:2] == [waited[0], PING] and waited[0]["choices"][0]["delta"]["role"] == "assistant"
    assert waited.count(PING) >= 4
    assert waited[-1] == "[DONE]" and waited.count("[DONE]") == 1
    chunks = service.client.chat.completions.create(model="scripted", messages=HI, max_tokens=2, stream=True)
    assert len("".join(chunk.choices[0].delta.content or "" for chunk in chunks)) == 2


def test_a_stream_that_speaks_has_no_keep_alives(scripted: Scripted) -> None:
    service = scripted(counting, seconds=0.01, limits=ServerConfig(keep_alive_s=5))
    reply = service.http.post("/v1/chat/completions", json=BODY | {"max_tokens": 50})
    assert PING not in reply.text


@pytest.mark.parametrize("logprobs", [False, True])
def test_a_client_that_does_not_read_gets_longer_deltas(scripted: Scripted, logprobs: bool) -> None:
    """It holds up nobody, its answer ends all the same, and what it reads in the end is whole."""
    service = scripted(counting, blocks=4096)
    service.bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # what is accepted from it inherits this
    backend, gate = backend_of(service), service.server.serving.gate
    body = BODY | {"max_tokens": 700, "n": 8, "temperature": 0, "logprobs": logprobs}
    data = json.dumps(body | {"stream_options": {"include_usage": True}}).encode()
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    slow.connect(("127.0.0.1", int(service.url.rsplit(":", 1)[1])))
    slow.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(data)
        + data
    )
    assert until(lambda: backend.engine.stats.generated_tokens >= 8 * 700, 30)
    assert until(lambda: gate.inside == 0)
    alone = service.http.post("/v1/chat/completions", json=body | {"n": 1, "stream": False}).json()["choices"][0]
    received = bytearray()
    slow.settimeout(20)
    while part := slow.recv(2**20):
        received += part
    slow.close()
    found = events(_dechunked(bytes(received).partition(b"\r\n\r\n")[2]).decode())
    assert found[-1] == "[DONE]"
    assert found[-2]["usage"]["completion_tokens"] == 8 * 700
    chunks = [event["choices"][0] for event in found[:-2]]
    assert len(chunks) < 8 * 700 / 10  # they were joined
    for index in range(8):
        mine = [chunk for chunk in chunks if chunk["index"] == index]
        assert "".join(chunk["delta"].get("content") or "" for chunk in mine) == alone["message"]["content"]
        if logprobs:
            tokens = [token for chunk in mine if chunk["logprobs"] for token in chunk["logprobs"]["content"]]
            assert tokens == alone["logprobs"]["content"]
        assert [chunk["finish_reason"] for chunk in mine if chunk["finish_reason"]] == ["length"]


def _dechunked(body: bytes) -> bytes:
    parts = []
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        parts.append(body[:length])
        body = body[length + 2 :]
    return b"".join(parts)


@pytest.mark.parametrize("n", [1, 3])
def test_a_bug_in_mid_stream_is_an_error_event(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, n: int
) -> None:
    """Whether it is in what generates or in what writes; the connection lives, and nothing of the bug is told."""
    service = scripted(counting, seconds=0.02)  # so that the stream has begun by then
    backend = backend_of(service)
    generate, of = backend.generate, Chunks.of

    async def breaks(request: Any) -> Any:
        number = 0
        async for delta in generate(request):
            number += 1
            if number == 5:
                raise RuntimeError("a secret")
            yield delta

    def writes_badly(self: Any, index: int, event: Any) -> Any:
        if isinstance(event, Finished):
            raise KeyError("a secret")
        return of(self, index, event)

    for owner, name, bad in ((backend, "generate", breaks), (Chunks, "of", writes_badly)):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, bad)
            reply = service.http.post("/v1/chat/completions", json=BODY | {"max_tokens": 20, "n": n})
        found = events(reply.text)
        assert reply.status_code == 200 and found[-1] == "[DONE]"
        assert found[-2]["error"]["code"] == "internal_error"
        assert [event for event in found if isinstance(event, dict) and "error" in event] == [found[-2]]
        assert "secret" not in reply.text
        assert until(lambda: backend.pool.referenced == 0 and service.server.serving.gate.inside == 0)
    assert "a secret" in caplog.text
    assert service.http.post("/v1/chat/completions", json=BODY | {"max_tokens": 2}).text.endswith("[DONE]\n\n")


def test_a_client_that_leaves_before_the_status_was_settled(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing has been sent yet, and nothing has been heard of it either: it is noticed at once all the same."""
    monkeypatch.setattr("ghostkv.server.stream._REFUSAL_S", 1000.0)
    service = scripted(counting, seconds=0.3, max_sequences=1)
    backend = backend_of(service)
    with service.http.stream("POST", "/v1/chat/completions", json=BODY | {"max_tokens": 100}) as runs:
        lines = runs.iter_lines()  # as long as it lives, so does the connection
        next(lines)
        leaving = socket.create_connection(("127.0.0.1", int(service.url.rsplit(":", 1)[1])))
        data = json.dumps(BODY).encode()
        leaving.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(data) + data
        )
        assert until(lambda: service.server.serving.gate.waiting == 1)
        leaving.close()
        assert until(lambda: service.server.serving.gate.waiting == 0)
        assert until(lambda: backend.engine.stats.finished["cancelled"] == 1)


class Quiet:
    """A source that says nothing, then fails as its own code might."""

    def __init__(self) -> None:
        self.closed = 0

    async def settle(self, seconds: float) -> None:
        return

    async def __anext__(self) -> tuple[int, Any]:
        if self.closed:
            raise StopAsyncIteration
        await asyncio.sleep(0)
        raise TimeoutError("of its own, not of the silence")

    def close(self) -> None:
        self.closed += 1


def test_a_timeout_of_the_source_itself_is_no_silence() -> None:
    from ghostkv.server.stream import EventStream

    class Plain:
        last = "LAST"

        def opening(self, *_: Any) -> list[Any]:
            return []

        of = closing = failed = opening

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        await asyncio.sleep(60)

    source = Quiet()
    stream = EventStream(source, Plain, 5)
    asyncio.run(asyncio.wait_for(stream({"type": "http"}, receive, send), 10))
    assert sent[-1] == {"type": "http.response.body", "body": b"LAST", "more_body": False}
    assert source.closed == 1
