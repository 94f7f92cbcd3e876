"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from uuid import uuid4

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from ghostkv.request import Grammar
from ghostkv.server.access import Tenant, tenant_of
from ghostkv.server.answers import collect, unless_gone
from ghostkv.server.chunks import Chunks
from ghostkv.server.envelope import ChoiceWriter, Envelope, Json, choices_of, prompt_tokens
from ghostkv.server.intake import parse
from ghostkv.server.joined import Joined
from ghostkv.server.logprobs import chat_logprobs
from ghostkv.server.models import check_model
from ghostkv.server.replies import whole
from ghostkv.server.schema import ChatRequest, StreamOptions
from ghostkv.server.serving import Serving
from ghostkv.server.stream import respond
from ghostkv.server.tool_chat import CallingChoice
from ghostkv.server.tool_grammar import calling_grammar
from ghostkv.session.planning import check_plan
from ghostkv.session.turn import Output, Turn
from ghostkv.session.worker import Worker
from ghostkv.text.tokenizer import Tokenizer

CHAT = "chat.completions"
"""What a session's record calls this endpoint."""


def chat_routes(serving: Serving) -> APIRouter:
    """The route."""
    router, worker = APIRouter(), serving.worker

    @router.post("/v1/chat/completions")
    async def create(request: Request) -> Response:
        """Answer a conversation."""
        asked = await parse(request, ChatRequest)
        check_model(worker, asked.model)
        joined = await Joined.of(serving, request, asked, CHAT)
        asked = asked if joined is None else joined.settled(asked)
        envelope = chat_envelope(worker, f"chatcmpl-{uuid4().hex}", asked)
        envelope = envelope if joined is None else joined.named(envelope)
        tenant = tenant_of(request)
        grammar = await calling_grammar(worker, asked.calling, asked.structure, tenant.name)
        turns = await asyncio.to_thread(_turns, worker, asked, envelope.id, tenant, joined, grammar)
        residency = turns[0].residency
        if asked.stream:
            score = partial(chat_score, envelope, asked, residency, lambda: prompt_tokens(worker, turns, asked.n))
            return await (respond(serving, turns, score) if joined is None else joined.respond(envelope, turns, score))
        answers = await unless_gone(
            request, collect(serving, turns) if joined is None else joined.collect(envelope, turns)
        )
        reply = whole(envelope, _writers(worker, asked, envelope.id), answers, residency)
        return JSONResponse(reply if joined is None else joined.reported(reply))

    return router


def chat_envelope(worker: Worker, answer_id: str, asked: ChatRequest) -> Envelope:
    """What is around the choices of a reply."""
    return Envelope(answer_id, "chat.completion", "chat.completion.chunk", worker, asked.n)


def chat_score(envelope: Envelope, asked: ChatRequest, residency: str, prompt_tokens: Callable[[], int]) -> Chunks:
    """How a stream writes the answers to `asked`."""
    writers = _writers(envelope.worker, asked, envelope.id)
    options = asked.stream_options or StreamOptions()
    return Chunks(envelope, writers, options, residency, prompt_tokens)


def _turns(
    worker: Worker,
    asked: ChatRequest,
    request_id: str,
    tenant: Tenant,
    joined: Joined | None,
    grammar: Grammar | None,
) -> list[Turn]:
    """One turn for each of the `n` answers; they share the seed."""
    limits = [limit for limit in (asked.max_tokens, asked.max_completion_tokens) if limit is not None]
    seed = secrets.randbits(63) if asked.seed is None else asked.seed
    calling = asked.calling
    sampling = asked.sampling(seed=seed, logprobs=asked.top_logprobs if asked.logprobs else None)
    turn = worker.checked(
        replace(
            asked.ghostkv.turn(request_id, tenant, sampling, min(limits, default=None), grammar),
            seeded=asked.seed is not None,
            messages=asked.conversation if joined is None else joined.remembered(asked.conversation),
            tools=calling.tools if calling else (),
            stop=tuple(asked.stop),
            stop_ids=tuple(asked.stop_token_ids),
            ignore_eos=asked.ignore_eos,
        )
    )
    check_plan(turn, asked.n)
    return choices_of(turn, asked.n)


def _writers(worker: Worker, asked: ChatRequest, answer_id: str) -> list[ChoiceWriter]:
    return [_writer(worker, asked, answer_id, index) for index in range(asked.n)]


def _writer(worker: Worker, asked: ChatRequest, answer_id: str, index: int) -> ChoiceWriter:
    logprobs = worker.tokenizer if asked.logprobs else None
    calling = asked.calling
    if calling is None:
        return ChatChoice(index, logprobs)
    return CallingChoice(index, logprobs, calling, answer_id, structured=asked.structure is not None)


class ChatChoice:
    """`envelope.ChoiceWriter` for chat."""

    def __init__(self, index: int, logprobs: Tokenizer | None) -> None:
        self._index = index
        self._logprobs = logprobs

    def opening(self) -> Json:
        """The role."""
        return self._chunk({"role": "assistant", "content": ""})

    def pieces(self, output: Output) -> Sequence[Json]:
        """Text, and the log-probabilities of the tokens that came with it."""
        if self._logprobs is None:
            return (self._chunk({"content": output.text}),) if output.text else ()
        return (self._chunk({"content": output.text}, chat_logprobs(self._logprobs, output.tokens)),)

    def closing(self, reason: str) -> Sequence[Json]:
        """An empty delta."""
        return (self._chunk({}, None, reason),)

    def whole(self, text: str, output: Output, reason: str) -> Json:
        """A message."""
        return {
            "index": self._index,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": None if self._logprobs is None else chat_logprobs(self._logprobs, output.tokens),
            "finish_reason": reason,
        }

    def _chunk(self, delta: Json, logprobs: Json | None = None, reason: str | None = None) -> Json:
        return {"index": self._index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
