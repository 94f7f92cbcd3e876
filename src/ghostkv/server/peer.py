"""Another server, as one that hands sessions over to it sees it: two requests, each sealed with the shared secret.

POST /peer/capsules   a capsule            201 once it is committed there, and goes on if it is under way
POST /peer/events     where to read from   lines of JSON, one for each event, until the answer ends
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpx2

from ghostkv.errors import ConfigError, Interrupted, StoreError
from ghostkv.session.plain import decode, encode
from ghostkv.session.table import Key
from ghostkv.session.travel import sealed
from ghostkv.session.turn import Event

CAPSULES, EVENTS = "/peer/capsules", "/peer/events"
_PATIENCE_S = 30.0  # for a connection and for a reply's head; a stream may be silent as long as its answer waits


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
            async with httpx2.AsyncClient(timeout=_PATIENCE_S) as client:
                reply = await client.post(self.url + CAPSULES, content=sealed(capsule, self.secret, CAPSULES))
        except httpx2.HTTPError as error:
            raise StoreError(f"{self.url} cannot be reached: {error!r}") from error
        if reply.status_code != 201:
            raise StoreError(f"{self.url} does not take it: {reply.status_code} {reply.text[-300:]}")

    async def events(self, key: Key, answer: str, at: int) -> AsyncGenerator[Event, None]:
        """The events of an answer there, without the first `at`. Raises Interrupted where they end before it does."""
        asked = sealed(json.dumps([*key, answer, at]).encode(), self.secret, EVENTS)
        try:
            async with httpx2.AsyncClient(timeout=httpx2.Timeout(_PATIENCE_S, read=None)) as client:
                async with asyncio.timeout(_PATIENCE_S):
                    request = client.build_request("POST", self.url + EVENTS, content=asked)
                    reply = await client.send(request, stream=True)
                async with aclosing(reply):
                    if reply.status_code != 200:
                        raise Interrupted(f"{self.url} does not let it be read: {reply.status_code}; ask there")
                    async for line in reply.aiter_lines():
                        if line == "end":
                            return
                        if line.startswith("!"):
                            raise Interrupted(line[1:])
                        if line:
                            yield decode(line.encode())
        except (httpx2.HTTPError, TimeoutError, ValueError) as error:
            raise Interrupted(f"the answer goes on at {self.url}, which cannot be read any more: {error!r}") from error
        raise Interrupted(f"the answer goes on at {self.url}, whose stream ended here")


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
