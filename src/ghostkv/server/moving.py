"""Handing every session over to a peer, each at its next boundary, and taking over what a peer hands over.

This server lets no new answer in meanwhile, and stays as a relay: whoever reads an answer here reads on while it goes
on there. A session is forgotten here only once it is committed there. Answers without a session, and planned ones, end
here, or are ended when the time is over.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import asdict, dataclass, field

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from ghostkv.errors import Draining, GhostError, Interrupted, InvalidRequest, RecordRefused, StoreError, Unsupported
from ghostkv.server.access import admin_of
from ghostkv.server.envelope import Json
from ghostkv.server.fields import Schema
from ghostkv.server.intake import body_of, parse
from ghostkv.server.peer import CAPSULES, EVENTS, Peer, RemoteFeed, line_of
from ghostkv.server.recovery import Recovery
from ghostkv.server.running import Feed, Reading
from ghostkv.server.serving import Serving
from ghostkv.session.capsule import Capsule
from ghostkv.session.table import Key
from ghostkv.session.travel import arrived, unsealed
from ghostkv.session.turn import Event

_log = logging.getLogger(__name__)


class DrainRequest(Schema):
    """POST /v1/admin/drain."""

    to: str


@dataclass(frozen=True, slots=True)
class Moved:
    """A session that was handed over."""

    session: str
    tokens: int  # of its output
    bytes: int  # of its capsule
    running: bool


@dataclass(slots=True)
class Drain:
    """How far it has come."""

    to: str
    moved: list[Moved] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # session -> why it stays
    left: int = 0  # sessions that wait for their boundary

    def shown(self) -> Json:
        """For admins."""
        return {"object": "drain", **asdict(self)}


class Moving:
    """Of one server; of the event loop's thread alone."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._tasks: set[asyncio.Task[None]] = set()
        self.drain: Drain | None = None
        """The one that is going on."""

    def start(self, to: str) -> Drain:
        """Begin. Raises InvalidRequest for a peer that is not configured, Unsupported without a store."""
        serving = self._serving
        if to.rstrip("/") not in [url.rstrip("/") for url in serving.peers.urls]:
            known = ", ".join(serving.peers.urls) or "none"
            raise InvalidRequest(f"to is no peer of this server, which has {known}: serve with --peer URL", param="to")
        if serving.store is None:
            raise Unsupported("what is handed over is what a store keeps: serve with --store PATH", param="to")
        if self.drain is not None:
            raise InvalidRequest(f"sessions are being handed over to {self.drain.to} already", param="to")
        serving.gate.close(serving.config.drain_s)
        peer = Peer(to.rstrip("/"), serving.peers.secret)
        table = serving.desk.table
        keys = [(owner, record.id) for owner in table.tenants() for record in table.of(owner)]
        drain = self.drain = Drain(to, left=len(keys))
        _log.info("handing over", extra={"fields": {"to": to, "sessions": len(keys)}})
        for key in keys:
            one = _One(serving, peer, drain, key)
            serving.desk.leave(key, one.handed)
            task = asyncio.create_task(one.go(), name=f"session {key[1]} moves")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return drain


class _One:
    """The way of one session."""

    def __init__(self, serving: Serving, peer: Peer, drain: Drain, key: Key) -> None:
        self._desk = serving.desk
        self._gate = serving.gate
        self._serving = serving
        self._peer = peer
        self._drain = drain
        self._key = key
        self._place = serving.gate.stay(lambda _: None)  # until it has gone
        self._settled = False

    async def go(self) -> None:
        """Wait for the answer that is going on, which may leave on its way, and send what is here then."""
        try:
            await self._desk.over(self._key)
            if not self._settled and await self._sent(self._idle):
                await self._desk.gone(self._key, RecordRefused(f"the session has moved to {self._peer.url}"))
        except GhostError as error:
            _log.error("session %s is kept by both: %s", self._key[1], error.message)
        finally:
            self._gate.leave(self._place)

    async def handed(self, capsule: Capsule) -> Feed | None:
        """`running.Send`: the session is sent; how its answer is read from then on. None: it stays."""

        async def this() -> Capsule:
            return capsule

        if not await self._sent(this):
            return None
        try:
            await self._desk.forgotten(self._key)
        except StoreError as error:
            _log.error("session %s is kept by both: %s", self._key[1], error.message)
        turn = capsule.record.turns[-1]
        return Relay(self._serving, RemoteFeed(self._peer, self._key, turn.id, len(turn.events)))

    async def _idle(self) -> Capsule:
        return self._desk.broken_off(self._key) or await self._desk.held(self._key)

    async def _sent(self, capsule: Callable[[], Awaitable[Capsule]]) -> bool:
        """Whether the peer has it now."""
        self._settled = True
        try:
            found = await capsule()
            data = await asyncio.to_thread(found.encode)
            await self._peer.send(data)
        except GhostError as error:
            _log.error("session %s stays: %s", self._key[1], error.message)
            self._drain.failed[self._key[1]] = error.message
            return False
        finally:
            self._drain.left -= 1
        self._drain.moved.append(Moved(self._key[1], found.record.tokens, len(data), found.record.running))
        return True


class Relay:
    """`running.Feed` that keeps this server up while its answer goes on elsewhere."""

    def __init__(self, serving: Serving, feed: RemoteFeed) -> None:
        self._feed = feed
        self._gate = serving.gate
        self._ended: asyncio.Future[GhostError] = asyncio.get_running_loop().create_future()
        self._place = serving.gate.stay(self._end)

    async def __anext__(self) -> tuple[int, Event]:
        """The next one. Raises what ended it here."""
        following = asyncio.create_task(self._feed.__anext__())
        ended: asyncio.Future[GhostError] = self._ended
        try:
            ended.add_done_callback(lambda _: following.cancel())
            return await asyncio.shield(following)
        except asyncio.CancelledError:
            if ended.done():
                raise ended.result() from None
            raise
        finally:
            following.cancel()

    def close(self) -> None:
        """Read no more."""
        self._gate.leave(self._place)
        self._feed.close()

    def _end(self, error: GhostError) -> None:
        if not self._ended.done():
            self._ended.set_result(Interrupted("the answer goes on elsewhere, and this server has ended"))


def moving_routes(serving: Serving) -> APIRouter:
    """The admin's routes."""
    router, moving = APIRouter(), Moving(serving)

    @router.post("/v1/admin/drain")
    async def drain(request: Request) -> Response:
        """Hand every session over to a peer, and end once nobody reads here any more."""
        admin_of(request)
        asked = await parse(request, DrainRequest)
        return JSONResponse(moving.start(asked.to).shown(), 202)

    @router.get("/v1/admin/drain")
    async def state(request: Request) -> Json:
        """How far that has come; to nobody while none is asked for."""
        admin_of(request)
        return (moving.drain or Drain("")).shown()

    return router


def peer_routes(serving: Serving, recovery: Recovery) -> APIRouter:
    """What a server that hands sessions over asks of this one; by secret, not by key."""
    router, secret, desk = APIRouter(), serving.peers.secret, serving.desk

    @router.post(CAPSULES, include_in_schema=False)
    async def capsules(request: Request) -> Response:
        """Take a session over."""
        if serving.store is None:
            raise Unsupported("a session that is handed over is committed in a store: serve with --store PATH")
        serving.gate.check_open()
        body = unsealed(await body_of(request), secret, CAPSULES)
        worker = serving.worker
        record = await desk.adopt(await asyncio.to_thread(arrived, body, worker.named, worker))
        if record.running:
            await recovery.rejoin((record.tenant, record.id))
        return JSONResponse({"id": record.id}, 201)

    @router.post(EVENTS, include_in_schema=False)
    async def events(request: Request) -> Response:
        """An answer from one of its events on."""
        asked = unsealed(await body_of(request), secret, EVENTS)
        tenant, session, answer, at = json.loads(asked)
        record = desk.table.get((tenant, session))
        turn = next((turn for turn in record.turns if turn.id == answer), None)
        if turn is None:
            raise InvalidRequest("the session has no such answer", param="answer")
        return StreamingResponse(_written(desk.read((tenant, session), turn), at), media_type="application/x-ndjson")

    return router


async def _written(reading: Reading, at: int) -> AsyncGenerator[bytes, None]:
    try:
        async for _, event in reading:
            at -= 1
            if at < 0:
                yield line_of(event)
        yield b"end\n"
    except Draining:
        raise
    except GhostError as error:
        yield f"!{error.message}\n".encode("ascii", "backslashreplace")
    finally:
        reading.close()
