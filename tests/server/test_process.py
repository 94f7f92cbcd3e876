"""Real processes and real signals: what a supervisor sees of a server (D08)."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Protocol

import httpx2
import pytest

from ghostkv.errors import ConfigError
from ghostkv.server.serve import listen, raise_descriptor_limit
from services import until

PROGRAM = Path(__file__).parents[1] / "scripted_server.py"
BODY: dict[str, Any] = {"model": "scripted", "prompt": "a", "max_tokens": 900, "stream": True}


class Running:
    """A server process, and what it wrote to standard error once it has ended."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", int(self.url.rsplit(":", 1)[1])

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def ended(self) -> tuple[int, str]:
        """(exit code, standard error)"""
        _, said = self.process.communicate(timeout=30)
        return self.process.returncode, said


class Start(Protocol):
    def __call__(self, **options: Any) -> Running: ...


@pytest.fixture
def start() -> Iterator[Start]:
    """Start servers; what still runs at the end of the test is killed."""
    with ExitStack() as stack:

        def started(**options: Any) -> Running:
            command = [sys.executable, str(PROGRAM), json.dumps(options)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            stack.callback(process.communicate)
            stack.callback(process.kill)
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url.startswith("http"), process.communicate()[1]
            return Running(process, url)

        yield started


class Reader(threading.Thread):
    """Reads one stream to its end."""

    def __init__(self, url: str, **more: Any) -> None:
        super().__init__(daemon=True)
        self.begun = threading.Event()
        self.lines: list[str] = []
        self._url = url
        self._body = BODY | more
        self.start()
        assert self.begun.wait(20)

    def run(self) -> None:
        with (
            suppress(httpx2.TransportError),
            httpx2.stream("POST", f"{self._url}/v1/completions", json=self._body, timeout=30) as reply,
        ):
            for line in reply.iter_lines():
                if line:
                    self.lines.append(line.removeprefix("data: "))
                    self.begun.set()

    def end(self) -> tuple[Any, str]:
        """(what came before the last line, the last line)"""
        self.join(30)
        assert not self.is_alive()
        return json.loads(self.lines[-2]), self.lines[-1]


def test_a_signal_drains(start: Start) -> None:
    """Four answers end normally; meanwhile nothing new is taken. The port is free at once."""
    server = start(seconds=0.01, drain_s=60)
    readers = [Reader(server.url, max_tokens=200) for _ in range(4)]
    with httpx2.Client(base_url=server.url, timeout=20) as client:
        assert client.get("/health").status_code == 200
        server.signal(signal.SIGTERM)
        assert until(lambda: client.get("/ready").status_code == 503)
        for stream in (True, False):
            refused = client.post("/v1/completions", json=BODY | {"stream": stream})
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert client.get("/live").status_code == 200
    for reader in readers:
        last, end = reader.end()
        assert (last["choices"][0]["finish_reason"], end) == ("length", "[DONE]")
    assert server.ended() == (0, "")
    listen(*server.address).close()


def test_what_does_not_end_in_time_is_ended(start: Start) -> None:
    """Also a stream that nobody reads, which cannot be told, and sockets that say nothing."""
    server = start(seconds=0.02, drain_s=0.5, send_buffer=4096)
    silent = socket.create_connection(server.address)
    unread = socket.socket()
    unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    unread.connect(server.address)
    data = json.dumps(BODY | {"n": 32}).encode()
    unread.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
    reader = Reader(server.url)
    assert until(lambda: len(reader.lines) > 10)
    server.signal(signal.SIGINT)
    last, end = reader.end()
    assert (last["error"]["code"], end) == ("draining", "[DONE]")
    assert server.ended() == (0, "")
    silent.close()
    unread.close()


def test_an_engine_that_dies_takes_the_process_with_it(start: Start) -> None:
    """But first everybody is told, those in line too, and health is red."""
    server = start(seconds=0.02, breaks_after=300, drain_s=60)
    readers = [Reader(server.url) for _ in range(3)]
    with httpx2.Client(base_url=server.url, timeout=20) as client:
        whole = client.post("/v1/completions", json=BODY | {"stream": False})
        assert (whole.status_code, whole.json()["error"]["code"]) == (503, "engine_fault")
        assert client.get("/health").status_code == 503
        assert client.get("/live").status_code == 200
    for reader in readers:
        last, end = reader.end()
        assert (last["error"]["code"], end) == ("engine_fault", "[DONE]")
        assert sum(line.startswith('{"error"') for line in reader.lines) == 1
    code, said = server.ended()
    assert code == 1
    assert "RuntimeError: the model broke" in said  # with its traceback
    assert said.rstrip().endswith("error: the engine stopped on an error, so the server ended; its log says on which")


def test_a_port_in_use_says_so() -> None:
    with listen("127.0.0.1", 0) as first:
        first.listen()
        port = first.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"cannot listen on 127.0.0.1 port {port}: .*in use"):
            listen("127.0.0.1", port)


def test_before_it_is_ready_its_port_takes_nobody() -> None:
    """A model that is still being loaded looks like a server that is not there, not like a healthy one."""
    with listen("127.0.0.1", 0) as bound, pytest.raises(ConnectionRefusedError):
        socket.create_connection(bound.getsockname())


def test_as_many_sockets_as_the_system_allows() -> None:
    """The soft limit, often 1,024 or less, is no reason to turn clients away."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(hard, 2**16), hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def made(url: str, session: str, **fields: Any) -> tuple[int, str]:
    """Status and code of an attempt to make a session."""
    reply = httpx2.post(f"{url}/v1/sessions", json={"id": session, **fields}, timeout=20)
    return reply.status_code, reply.json().get("error", {}).get("code", "")


def test_a_full_disk_loses_nothing_and_stops_no_other(start: Start, tmp_path: Path) -> None:
    """The system itself refuses the writes. Killed then, and with room again, all that was promised is there."""
    store, large = str(tmp_path / "store.db"), dict.fromkeys(map(str, range(16)), "x" * 500)
    server = start(store=store, file_bytes=300_000)
    codes = [made(server.url, f"s{index}", metadata=large) for index in range(60)]
    held = codes.count((201, ""))
    assert 5 < held < 60 and codes == [(201, "")] * held + [(503, "store_unavailable")] * (60 - held)
    plain = httpx2.post(f"{server.url}/v1/completions", json=BODY | {"stream": False, "max_tokens": 9}, timeout=20)
    assert plain.json()["choices"][0]["text"] == "x" * 9
    server.signal(signal.SIGKILL)
    server.ended()
    server = start(store=store)
    listed = httpx2.get(f"{server.url}/v1/sessions", timeout=20).json()["data"]
    assert {each["id"] for each in listed} == {f"s{index}" for index in range(held)}
    assert made(server.url, "more") == (201, "")


def test_a_store_belongs_to_one_server(start: Start, tmp_path: Path) -> None:
    """The second one says so and ends. A killed one leaves no lock behind."""
    store = str(tmp_path / "store.db")
    first = start(store=store)
    assert made(first.url, "s") == (201, "")
    with pytest.raises(AssertionError, match="another process has it open"):
        start(store=store)
    first.signal(signal.SIGKILL)
    first.ended()
    assert made(start(store=store).url, "s") == (409, "session_exists")
