"""What load scripts share: `ghostkv serve` as a process that can be looked into, and a client of one socket a request.

The client is written on sockets, so that it can leave at any moment and see every byte with its time.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).parent / "watched_server.py"
_SAMPLE = re.compile(r"([\w:]+)(?:\{[^}]*\})? (\S+)")


class ServerProcess:
    """`ghostkv serve` on a free port."""

    def __init__(
        self,
        model: str,
        options: Sequence[str],
        *,
        python: Path | str = sys.executable,
        variables: Mapping[str, str] | None = None,
        key: str = "",
    ) -> None:
        """`python`: the interpreter, with more environment `variables`; `key`: an admin's, where keys are needed."""
        command = [str(python), str(PROGRAM), "serve", "--model", model, "--port", "0", *options]
        self._key = key
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the server
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._log, text=True, env=os.environ | (variables or {})
        )
        line = self._line()
        found = re.search(r"serving (\S+) at http://127\.0\.0\.1:(\d+)/", line)
        if found is None:
            raise SystemExit(f"the server did not start: {line}{self.log}")
        self.name, self.port = found[1], int(found[2])
        self.pid = self._process.pid
        self.scrapes = 0

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait(60)
        self._log.close()

    @property
    def log(self) -> str:
        """What it wrote to standard error."""
        self._log.seek(0)
        return self._log.read()

    def stop(self) -> int:
        """SIGTERM; its exit code."""
        self._process.terminate()
        return self._process.wait(60)

    def kill(self, number: int) -> None:
        """A signal that it does not survive; returns when it has ended."""
        self._process.send_signal(number)
        self._process.wait(60)

    def tasks(self) -> list[str]:
        """The coroutines that its event loop runs."""
        os.kill(self.pid, signal.SIGUSR1)
        names: list[str] = json.loads(self._line())
        return names

    def descriptors(self) -> int:
        """Open files and sockets."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def resident_bytes(self) -> int:
        """RSS."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def metrics(self) -> dict[str, float]:
        """Every family by sample name, its labels added up."""
        totals: dict[str, float] = {}
        self.scrapes += 1
        headers = {"authorization": f"Bearer {self._key}"} if self._key else {}
        asked = urllib.request.Request(f"http://127.0.0.1:{self.port}/metrics", headers=headers)
        with urllib.request.urlopen(asked, timeout=60) as reply:
            for line in reply.read().decode().splitlines():
                if (found := _SAMPLE.match(line)) is not None:
                    totals[found[1]] = totals.get(found[1], 0.0) + float(found[2])
        return totals

    def _line(self) -> str:
        if self._process.stdout is None:
            raise SystemExit("the server has no standard output")
        return self._process.stdout.readline()


@dataclass(frozen=True, slots=True)
class Reply:
    """All that came of one reply; `whole`: to its last byte."""

    status: int
    body: bytes
    whole: bool
    event_stream: bool

    @property
    def events(self) -> list[str]:
        """The data of each server-sent event."""
        return [
            line.removeprefix("data: ")
            for block in self.body.decode().split("\n\n")
            for line in block.split("\n")
            if line.startswith("data: ")
        ]


@dataclass(slots=True)
class Arrivals:
    """When bytes came, in seconds after the request; `at[i]` is the moment of `parts[i]`."""

    begun: float = field(default_factory=time.perf_counter)
    at: list[float] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)

    @property
    def said(self) -> list[float]:
        """The moments of those that carry an event; a keep-alive is none."""
        return [at for at, part in zip(self.at, self.parts, strict=True) if b"data:" in part]

    @property
    def events(self) -> int:
        """How many have come."""
        return sum(part.count(b"data:") for part in self.parts)

    def came(self, part: bytes) -> None:
        """Note it."""
        self.at.append(time.perf_counter() - self.begun)
        self.parts.append(part)


async def ask(
    port: int,
    method: str,
    path: str,
    body: Any = None,
    *,
    leave_after: float | None = None,
    reset: bool = False,
    arrivals: Arrivals | None = None,
) -> Reply | None:
    """One request and its reply; None where the client left first, `leave_after` seconds after the request was sent.

    It leaves by closing, with `reset` not in order.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        data = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-length: {len(data)}\r\n\r\n"
        )
        writer.write(head.encode() + data)
        await writer.drain()
        arrivals = arrivals or Arrivals()
        try:
            async with asyncio.timeout(leave_after):
                while part := await reader.read(2**16):
                    arrivals.came(part)
        except TimeoutError:
            if reset:
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return None
        return read_reply(b"".join(arrivals.parts))
    finally:
        writer.close()


def read_reply(raw: bytes) -> Reply:
    """A reply as HTTP/1.1 frames it."""
    head, _, rest = raw.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    stream = headers.get("content-type", "").startswith("text/event-stream")
    status = int(lines[0].split()[1]) if lines[0].startswith("HTTP/1.1 ") else 0
    if headers.get("transfer-encoding") == "chunked":
        body, whole = _dechunked(rest)
    else:
        body, whole = rest, headers.get("content-length") == str(len(rest))
    return Reply(status, body, whole, stream)


def _dechunked(raw: bytes) -> tuple[bytes, bool]:
    """(the parts joined, whether the last one was there)"""
    parts = []
    at = 0
    while (end := raw.find(b"\r\n", at)) >= 0:
        size = int(raw[at:end], 16)
        parts.append(raw[end + 2 : end + 2 + size])
        at = end + 2 + size + 2
        if size == 0:
            return b"".join(parts), at == len(raw)
    return b"".join(parts), False
