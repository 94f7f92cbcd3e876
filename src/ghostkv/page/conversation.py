"""The conversation of the live page's chat box: a session of its own, which ends with the browser tab."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from uuid import uuid4

from ghostkv.errors import SessionNotFound
from ghostkv.request import Message, Sampling
from ghostkv.server.access import Tenant
from ghostkv.server.joined import Head, begin
from ghostkv.server.running import Reading
from ghostkv.server.serving import Serving
from ghostkv.session.record import SessionRecord
from ghostkv.session.turn import Turn


@dataclass(frozen=True, slots=True)
class Wish:
    """What the controls said when a message was sent."""

    residency: str
    max_tokens: int  # 0: the server's default
    temperature: float


class Conversation:
    """Asks on the same path as a request to the API that names a session."""

    def __init__(self, serving: Serving, tenant: Tenant) -> None:
        """`tenant`: whose it is."""
        self._serving = serving
        self._tenant = tenant
        self._id = ""

    async def ask(self, messages: tuple[Message, ...], wish: Wish) -> Reading:
        """Start an answer to the conversation. Raises what a request to the API is refused with."""
        record = await self._record()
        turn = await asyncio.to_thread(self._turn, record.remembered(messages), wish)
        parameters = json.dumps({"temperature": wish.temperature, "ghostkv": {"residency": wish.residency}})
        return await begin(self._serving, record, turn, Head(turn.id, "page", parameters))

    async def stop(self) -> None:
        """End the answer."""
        await self._serving.desk.stop((self._tenant.name, self._id), "it was stopped")

    async def end(self) -> None:
        """End the session, and the answer with it. Another question begins a new one."""
        with suppress(SessionNotFound):  # none was begun, or nobody has used it for too long
            await self._serving.desk.delete((self._tenant.name, self._id))
        self._id = ""

    async def _record(self) -> SessionRecord:
        desk, worker = self._serving.desk, self._serving.worker
        with suppress(SessionNotFound):
            return desk.table.get((self._tenant.name, self._id))
        record = SessionRecord(
            id=f"page-{secrets.token_hex(6)}",
            tenant=self._tenant.name,
            created=int(time.time()),
            model=worker.name,
            manifest=worker.manifest,
        )
        self._id = (await desk.make(record)).id
        return record

    def _turn(self, messages: tuple[Message, ...], wish: Wish) -> Turn:
        return self._serving.worker.checked(
            Turn(
                id=f"page-{uuid4().hex}",
                sampling=Sampling(temperature=wish.temperature, top_p=0.95, seed=secrets.randbits(63)),
                max_tokens=wish.max_tokens,
                messages=messages,
                residency=wish.residency,
                tenant=self._tenant.name,
                share_group=self._tenant.share_group,
            )
        )
