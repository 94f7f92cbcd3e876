"""Another server, as one that hands sessions over to it sees it: two requests, each sealed with the shared secret.

    POST /peer/capsules   a capsule            201 once it is committed there, and goes on if it is under way
    POST /peer/events     where to read from   lines of JSON, one for each event, until the answer ends

The client speaks just enough HTTP/1.1 for that, on asyncio's own streams.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from ghostkv.errors import ConfigError, Interrupted, StoreError
from ghostkv.session.plain import decode, encode
from ghostkv.session.table import Key
from ghostkv.session.travel import sealed
from ghostkv.session.turn import Event

CAPSULES, EVENTS = "/peer/capsules", "/peer/events"
_PATIENCE_S = 30.0  # for a connection and for a reply's head; a stream may be silent as long as its answer waits
_LINE = 2**26  # bytes of a line, at most


@dataclass(frozen=True, slots=True)
class Peers:
    """The servers that sessions may be handed over to, and what they and this one know."""

    urls: tuple[str, ...] = ()
    secret: bytes = field(default=b"", repr=False)  # empty: no capsule comes in or goes out

    def __post_init__(self) -> None:
        for url in self.urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
                raise ConfigError(f"peer {url!r} is no address such as http://host:8000")
        if self.urls and not self.secret:
            raise ConfigError("a peer takes sessions from those who know its secret: add --capsule-secret-file")


@dataclass(frozen=True, slots=True)
class Peer:
    """One of them."""

    url: str
    secret: bytes = field(repr=False)

    async def send(self, capsule: bytes) -> None:
        """Have it take a session over. Raises StoreError, saying why it does not."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                status, reader, writer = await self._post(CAPSULES, sealed(capsule, self.secret, CAPSULES))
                body = await reader.read(4096)
                writer.close()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError) as error:
            raise StoreError(f"{self.url} cannot be reached: {error!r}") from error
        if status != 201:
            raise StoreError(f"{self.url} does not take it: {status} {body.decode(errors='replace')[-300:]}")

    async def events(self, key: Key, answer: str, at: int) -> AsyncGenerator[Event, None]:
        """The events of an answer there, without the first `at`. Raises Interrupted where they end before it does."""
        asked = sealed(json.dumps([*key, answer, at]).encode(), self.secret, EVENTS)
        writer = None
        try:
            async with asyncio.timeout(_PATIENCE_S):
                status, reader, writer = await self._post(EVENTS, asked)
            if status != 200:
                raise Interrupted(f"{self.url} has it and does not let it be read: {status}; ask there")
            async for line in _lines(reader):
                if line == "end":
                    return
                if line.startswith("!"):
                    raise Interrupted(line[1:])
                if line:
                    yield decode(line.encode())
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError) as error:
            raise Interrupted(f"the answer goes on at {self.url}, which cannot be read any more: {error!r}") from error
        finally:
            if writer is not None:
                writer.close()
        raise Interrupted(f"the answer goes on at {self.url}, whose stream ended here")

    async def _post(self, path: str, body: bytes) -> tuple[int, asyncio.StreamReader, asyncio.StreamWriter]:
        parts = urlsplit(self.url)
        secure = parts.scheme == "https"
        port = parts.port or (443 if secure else 80)
        context = ssl.create_default_context() if secure else None
        reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=context, limit=_LINE)
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()
        status = int((await reader.readline()).split()[1])
        while (await reader.readline()).strip():
            pass
        return status, reader, writer


async def _lines(reader: asyncio.StreamReader) -> AsyncGenerator[str, None]:
    """The lines of a chunked body."""
    held = b""
    while size := int((await reader.readline()).strip() or b"0", 16):
        held += await reader.readexactly(size)
        await reader.readexactly(2)
        *whole, held = held.split(b"\n")
        for line in whole:
            yield line.decode("ascii")


def line_of(event: Event) -> bytes:
    """How an event is written."""
    return encode(event) + b"\n"


class RemoteFeed:
    """`running.Feed` of an answer that goes on at a peer."""

    def __init__(self, peer: Peer, key: Key, answer: str, at: int) -> None:
        self._events = peer.events(key, answer, at)

    async def __anext__(self) -> tuple[int, Event]:
        """The next one."""
        return 0, await anext(self._events)

    def close(self) -> None:
        """Read no more."""
        self._closing = asyncio.create_task(self._close())

    async def _close(self) -> None:
        with suppress(RuntimeError):  # one that is being read is ended by the task that reads it
            await self._events.aclose()
