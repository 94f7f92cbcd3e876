"""A request that belongs to a session: what it takes from there, and how its answer comes to be the session's.

An answer of a session goes on when its reader goes away, for a while; see `running`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from fastapi import Request

from ghostkv.errors import InvalidRequest
from ghostkv.request import Message
from ghostkv.server.access import tenant_of
from ghostkv.server.answers import Answer, Answers, gathered
from ghostkv.server.envelope import Envelope, Json
from ghostkv.server.numbered import Numbered
from ghostkv.server.once import answered, once_of
from ghostkv.server.reported import Reported, reporting
from ghostkv.server.running import Reading
from ghostkv.server.schema import GenerationRequest
from ghostkv.server.serving import Serving
from ghostkv.server.stream import EventStream, Score
from ghostkv.session.calls import CallRecord
from ghostkv.session.record import NewTurn, SessionRecord, answer_bytes
from ghostkv.session.turn import Turn

_KEPT_APART: dict[str, Any] = {"messages": True, "prompt": True, "ghostkv": {"plan"}}
"""Parts of a request that its parameters leave out: the conversation is the session's, the plan is in the answer."""

R = TypeVar("R", bound=GenerationRequest)


class Joined:
    """One request and its session."""

    def __init__(self, serving: Serving, record: SessionRecord, endpoint: str, once: str = "") -> None:
        self._serving = serving
        self._once = once
        self._again = answered(record, once)  # it was asked before, by a client that has its Idempotency-Key
        self._record = record
        self._endpoint = endpoint
        self._parameters = ""
        self._unsettled: tuple[CallRecord, ...] = ()

    @classmethod
    async def of(cls, serving: Serving, request: Request, asked: GenerationRequest, endpoint: str) -> Joined | None:
        """None for a request that names no session.

        Raises SessionNotFound, also for another tenant's; SessionBusy while somebody reads an answer of it;
        SessionElsewhere, StoreError; and InvalidRequest for what one session cannot have.
        """
        session = asked.ghostkv.session
        if session is None:
            return None
        if asked.n > 1:
            raise InvalidRequest(f"n must be 1 in a session, which is one conversation, not {asked.n}", param="n")
        if len(prompts := getattr(asked, "prompt", ())) > 1:
            raise InvalidRequest(f"a session takes one prompt at a time, not {len(prompts)}", param="prompt")
        if getattr(asked, "echo", False):
            raise InvalidRequest("echo cannot be had in a session: its output is what was generated", param="echo")
        key = tenant_of(request).name, session
        await serving.desk.claim(key)
        record, once = serving.desk.table.get(key), once_of(request)
        if answered(record, once) is None:  # else it joins whoever reads that answer
            record = serving.desk.free(key)
        return cls(serving, record, endpoint, once)

    def settled(self, asked: R) -> R:
        """The request with what the session says where the request says nothing."""
        given = asked.ghostkv
        own = {"residency": self._record.residency, "payload_budget": self._record.payload_budget}
        taken = {name: value for name, value in own.items() if value is not None and name not in given.model_fields_set}
        settled = asked.model_copy(update={"ghostkv": given.model_copy(update=taken)})
        self._parameters = settled.model_dump_json(exclude=_KEPT_APART, exclude_unset=True)
        return settled

    def remembered(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """The conversation with the ids of those answers in it that the session gave."""
        return self._record.remembered(messages)

    def named(self, envelope: Envelope) -> Envelope:
        """The envelope of the first reply, where this request has come again."""
        if self._again is None:
            return envelope
        return replace(envelope, id=self._again.id, created=self._again.created)

    async def respond(self, envelope: Envelope, turns: Sequence[Turn], score: Callable[[], Score]) -> EventStream:
        """Start the answer and stream it. Raises what `Desk.begin` does."""
        reading = await self._begin(envelope, turns)
        first = reading.record.first
        return EventStream(
            reading,
            lambda: Reported(Numbered(score(), first, first), self._unsettled),
            self._serving.config.keep_alive_s,
        )

    async def collect(self, envelope: Envelope, turns: Sequence[Turn]) -> list[Answer]:
        """Start the answer and read it to its end. Raises what `Desk.begin` does, and what ended the answer."""
        return await gathered(await self._begin(envelope, turns), 1)

    def reported(self, reply: Json) -> Json:
        """A whole reply, which names calls that were given out before and whose results this request did not bring."""
        return reporting(reply, self._unsettled)

    async def _begin(self, envelope: Envelope, turns: Sequence[Turn]) -> Reading:
        desk, key = self._serving.desk, (self._record.tenant, self._record.id)
        if self._again is not None:
            reading = await desk.reread(key, self._again.id)
        else:
            [turn] = turns
            parameters = _with_residency(self._parameters, turn)
            head = Head(envelope.id, self._endpoint, parameters, envelope.created, self._once)
            reading = await begin(self._serving, self._record, turn, head)
        self._unsettled = desk.unsettled(key, reading.record.id)
        return reading


def _with_residency(parameters: str, turn: Turn) -> str:
    """With the residency that the server chose, where the request left that open."""
    if not turn.deterministic:
        return parameters
    given = json.loads(parameters)
    return json.dumps(given | {"ghostkv": given["ghostkv"] | {"residency": turn.residency}})


@dataclass(frozen=True, slots=True)
class Head:
    """What a session notes of a request besides its turn."""

    id: str  # of the reply
    endpoint: str
    parameters: str  # JSON
    created: int = field(default_factory=lambda: int(time.time()))
    once: str = ""  # see NewTurn


async def begin(serving: Serving, record: SessionRecord, turn: Turn, head: Head) -> Reading:
    """Start `turn` as the session's next answer. Raises what `Desk.begin` does."""
    asked = NewTurn(
        id=head.id,
        endpoint=head.endpoint,
        parameters=head.parameters,
        created=head.created,
        messages=turn.messages,
        prompt_tokens=serving.worker.prompt_tokens(turn),
        seed=turn.sampling.seed,
        max_tokens=turn.max_tokens,
        once=head.once,
        most_bytes=answer_bytes(turn.max_tokens, turn.sampling.logprobs or 0) + turn.payload_budget,
    )
    key = (record.tenant, record.id)
    # A token is an event of its own, so that its stream can be taken up after any of them, also by another process.
    return await serving.desk.begin(key, asked, turn, lambda closed: Answers(serving, [turn], closed, apart=True))
