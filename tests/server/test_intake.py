"""Sizes that no request may have: of its body, its headers, its nesting."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from services import Scripted, Service

HI: list[Any] = [{"role": "user", "content": "hi"}]
CHAT: dict[str, Any] = {"model": "scripted", "messages": HI, "max_tokens": 2}
MIB = 2**20


@pytest.fixture
def service(scripted: Scripted) -> Service:
    return scripted(lambda history, draw: ord("x"))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("chunked", [True, False])
def test_a_body_that_is_too_large(service: Service, path: str, chunked: bool) -> None:
    """Also where its length is not said before."""

    def pieces(count: int) -> Iterator[bytes]:
        yield json.dumps(CHAT | {"prompt": "hi"}).encode()
        for _ in range(count):
            yield b" " * MIB

    for count, status in ((17, 413), (40, 413), (15, 400)):  # the last is read, and has a field too many
        reply = service.http.post(path, content=pieces(count) if chunked else b"".join(pieces(count)))
        assert reply.status_code == status
    error = service.http.post(path, content=b" " * (16 * MIB + 1)).json()["error"]
    assert (error["code"], error["type"]) == ("request_too_large", "invalid_request_error")
    assert "16 MiB" in error["message"]
    assert service.http.post("/v1/chat/completions", json=CHAT).status_code == 200


def test_a_body_without_end_is_cut_off(service: Service) -> None:
    """A client that never stops sending is answered all the same."""
    address = ("127.0.0.1", int(service.url.rsplit(":", 1)[1]))
    with socket.create_connection(address, timeout=20) as endless:
        endless.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000000000\r\n\r\n")
        sent = 0
        try:
            while sent < 200 * MIB:
                sent += endless.send(b" " * MIB)
        except OSError:  # the server has closed the connection
            pass
    assert sent < 120 * MIB
    assert service.http.get("/health").status_code == 200


@pytest.mark.parametrize("head", [b"x-endless: " + b"a" * MIB, b"\r\n".join(b"x-%d: a" % n for n in range(100_000))])
def test_headers_that_are_too_long(service: Service, head: bytes) -> None:
    address = ("127.0.0.1", int(service.url.rsplit(":", 1)[1]))
    with socket.create_connection(address, timeout=20) as client:
        try:
            client.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n" + head + b"\r\n\r\n")
            reply = client.recv(1000)
        except ConnectionError:  # closed while it was still sending
            reply = b"HTTP/1.1 400"
    assert reply.startswith(b"HTTP/1.1 400")
    assert service.http.get("/health", headers={"x-fine": "a" * 20_000}).status_code == 200


FIELDS = ("metadata", "messages", "ghostkv", "logit_bias", "tools", "response_format", "stop", "nobody_knows_this")
INSIDE = ("plan", "residency", "deadline_s")


@pytest.mark.parametrize("depth", [10, 100, 190, 250, 1000, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_nesting_is_never_more_than_a_bad_request(service: Service, opening: str, closing: str, depth: int) -> None:
    value = opening * depth + ("1" if closing == "}" else "") + closing * depth
    for field in FIELDS + INSIDE:
        plain = json.dumps({name: given for name, given in CHAT.items() if name != field})[:-1]
        more = f'"ghostkv": {{"{field}": {value}}}' if field in INSIDE else f'"{field}": {value}'
        reply = service.http.post("/v1/chat/completions", content=f"{plain}, {more}}}")
        assert reply.status_code == 400 or (field == "metadata" and reply.status_code == 200), field
        assert reply.status_code == 200 or reply.json()["error"]["type"] == "invalid_request_error"
