"""POST /v1/responses, and GET and DELETE of one: OpenAI's other conversation endpoint, over the same turns as chat."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from uuid import uuid4

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from ghostkv.errors import EngineFault, InvalidRequest, Unsupported
from ghostkv.request import Grammar, Message
from ghostkv.server.access import Tenant, tenant_of
from ghostkv.server.answers import collect, unless_gone
from ghostkv.server.envelope import Envelope, Json
from ghostkv.server.intake import parse
from ghostkv.server.models import check_model
from ghostkv.server.response_events import ResponseBody, ResponseEvents, status_of
from ghostkv.server.response_items import OutputItems
from ghostkv.server.response_schema import ResponseRequest
from ghostkv.server.response_store import StoredResponse
from ghostkv.server.serving import Serving
from ghostkv.server.stream import respond
from ghostkv.server.tool_grammar import calling_grammar
from ghostkv.server.tool_schema import check_answered
from ghostkv.session.turn import Output, Turn
from ghostkv.session.worker import Worker

_NAMES = {"max_tokens": "max_output_tokens", "messages": "input"}  # what chat calls a field -> its name here


def response_routes(serving: Serving) -> APIRouter:
    """The routes."""
    router, worker, store = APIRouter(), serving.worker, serving.responses

    @router.post("/v1/responses")
    async def create(request: Request) -> Response:
        """Answer a conversation."""
        asked = await parse(request, ResponseRequest)
        check_model(worker, asked.model)
        tenant = tenant_of(request)
        conversation = (*store.conversation(tenant.name, asked.previous_response_id), *asked.messages)
        with _own_names():
            check_answered(conversation)
        envelope = Envelope(f"resp_{uuid4().hex}", "response", "response", worker, 1)
        grammar = await calling_grammar(worker, asked.calling, asked.structure, tenant.name)
        turn = await asyncio.to_thread(_turn, worker, asked, envelope.id, tenant, conversation, grammar)
        body = ResponseBody(envelope, asked, turn.residency)
        logprobs = worker.tokenizer if asked.include else None
        items = OutputItems(envelope.id, asked.calling, logprobs, structured=asked.structure is not None)
        keep = _keeper(serving, asked, tenant, conversation, items)
        if asked.stream:
            return await respond(serving, [turn], lambda: ResponseEvents(body, items, keep))
        return JSONResponse(await unless_gone(request, _whole(serving, turn, body, items, keep)))

    @router.get("/v1/responses/{response_id}")
    async def retrieve(request: Request, response_id: str) -> Json:
        """A stored response."""
        if request.query_params.get("stream") == "true":
            raise Unsupported("stream is not supported for a response that has ended", param="stream")
        return store.get(tenant_of(request).name, response_id).body

    @router.delete("/v1/responses/{response_id}")
    async def delete(request: Request, response_id: str) -> Json:
        """Forget a stored response; those that go on from it keep what it said."""
        store.delete(tenant_of(request).name, response_id)
        return {"id": response_id, "object": "response", "deleted": True}

    return router


async def _whole(
    serving: Serving, turn: Turn, body: ResponseBody, items: OutputItems, keep: Callable[[Json], None]
) -> Json:
    (answer,) = await collect(serving, [turn])
    if answer.finished is None:
        raise EngineFault("an answer has no end")
    for _ in items.add(Output(tuple(answer.tokens), "".join(answer.text))):
        pass
    for _ in items.close(complete=status_of(answer.finished) == "completed"):
        pass
    response = body.finished(items, answer.finished)
    keep(response)
    return response


def _keeper(
    serving: Serving, asked: ResponseRequest, tenant: Tenant, conversation: tuple[Message, ...], items: OutputItems
) -> Callable[[Json], None]:
    """Stores the finished response, if the client did not decline."""

    def keep(response: Json) -> None:
        if asked.store:
            answer = Message("assistant", items.text, tool_calls=items.calls)
            added = sum(len(text) for message in (*asked.messages, answer) for text in message.texts)
            stored = StoredResponse(response, (*conversation, answer), added + len(asked.instructions or ""))
            serving.responses.put(tenant.name, response["id"], stored)

    return keep


def _turn(
    worker: Worker,
    asked: ResponseRequest,
    request_id: str,
    tenant: Tenant,
    conversation: tuple[Message, ...],
    grammar: Grammar | None,
) -> Turn:
    instructions = () if asked.instructions is None else (Message("system", asked.instructions),)
    calling = asked.calling
    sampling = asked.sampling(secrets.randbits(63) if asked.seed is None else asked.seed)
    with _own_names():
        return worker.checked(
            replace(
                asked.ghostkv.turn(f"{request_id}-0", tenant, sampling, asked.max_output_tokens, grammar),
                seeded=asked.seed is not None,
                messages=(*instructions, *conversation),
                tools=calling.tools if calling else (),
            )
        )


@contextmanager
def _own_names() -> Iterator[None]:
    """Refusals name the fields of this endpoint."""
    try:
        yield
    except InvalidRequest as refusal:
        name = _NAMES.get(refusal.param or "")
        if name is not None and refusal.param is not None:
            refusal.message = refusal.message.replace(refusal.param, name)
            refusal.param = name
        raise
