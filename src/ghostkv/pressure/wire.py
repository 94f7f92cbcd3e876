"""HTTP/1.1 as a load generator needs it: one socket a request, what came is kept with its time and read afterwards.

While a server is measured on the same processors, its client must cost little: bytes are not even split into events
until everything is over.
"""

from __future__ import annotations

import asyncio
import json
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

_PART = 2**16


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens."""

    port: int
    host: str = "127.0.0.1"


@dataclass(slots=True)
class Received:
    """All bytes of a reply, in the parts that they came in; `at[i]` is the clock when `parts[i]` came."""

    at: list[float] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)

    @property
    def status(self) -> int:
        """HTTP's; 0 where no reply began."""
        first = self.parts[0][:15] if self.parts else b""
        return int(first.split()[1]) if first.startswith(b"HTTP/1.1 ") else 0

    def body(self) -> bytes:
        """Without its framing."""
        return b"".join(part for part, _ in self._content())

    def events(self) -> Iterator[tuple[float, bytes]]:
        """(clock, data) of each whole server-sent event; the clock is when its last byte came."""
        pending = b""
        for part, at in self._content():
            pending += part
            if b"\n" not in part:
                continue
            *lines, pending = pending.split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    yield at, line[5:].strip()

    def _content(self) -> Iterator[tuple[bytes, float]]:
        raw = b"".join(self.parts)
        ends = list(accumulate(map(len, self.parts)))
        head, _, _ = raw.partition(b"\r\n\r\n")
        start = len(head) + 4
        if b"transfer-encoding: chunked" not in head.lower():
            begins = [start, *(end for end in ends if end > start)]
            for begin, end in pairwise(begins):
                yield raw[begin:end], self.at[bisect_left(ends, end)]
            return
        for begin, end in _chunks(raw, start):
            yield raw[begin:end], self.at[bisect_left(ends, end)]


def _chunks(raw: bytes, at: int) -> Iterator[tuple[int, int]]:
    """(begin, end) of each whole chunk."""
    while (line := raw.find(b"\r\n", at)) >= 0:
        size = int(raw[at:line].split(b";")[0], 16)
        if size == 0 or line + 2 + size > len(raw):
            return
        yield line + 2, line + 2 + size
        at = line + 2 + size + 2


async def post(
    address: Address,
    path: str,
    body: Mapping[str, Any],
    received: Received,
    clock: Callable[[], float],
    headers: Mapping[str, str] | None = None,
) -> None:
    """Send, and keep what comes until the server closes. Cancelled, it closes the socket. Raises OSError."""
    data = json.dumps(body).encode()
    await _exchange(address, "POST", path, data, received, clock, headers or {})


async def get(
    address: Address, path: str, timeout_s: float = 10.0, headers: Mapping[str, str] | None = None
) -> tuple[int, bytes]:
    """Status and body; (0, b"") where nobody answers in time."""
    received = Received()
    try:
        async with asyncio.timeout(timeout_s):
            await _exchange(address, "GET", path, b"", received, lambda: 0.0, headers or {})
    except (OSError, TimeoutError):
        return 0, b""
    return received.status, received.body()


async def _exchange(
    address: Address,
    method: str,
    path: str,
    data: bytes,
    received: Received,
    clock: Callable[[], float],
    headers: Mapping[str, str],
) -> None:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        lines = [
            f"{method} {path} HTTP/1.1",
            f"host: {address.host}:{address.port}",
            "connection: close",
            "content-type: application/json",
            f"content-length: {len(data)}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode() + data)
        await writer.drain()
        while part := await reader.read(_PART):
            received.at.append(clock())
            received.parts.append(part)
    finally:
        writer.close()
