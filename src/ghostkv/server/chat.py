"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
import secrets
from uuid import uuid4

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from ghostkv.request import Message
from ghostkv.server.answers import collect, unless_gone
from ghostkv.server.chunks import Chunks
from ghostkv.server.envelope import ChoiceWriter, Envelope, Json, choices_of
from ghostkv.server.intake import parse
from ghostkv.server.logprobs import chat_logprobs
from ghostkv.server.models import check_model
from ghostkv.server.replies import whole
from ghostkv.server.schema import ChatRequest, StreamOptions
from ghostkv.server.serving import Serving
from ghostkv.server.stream import respond
from ghostkv.session.planning import check_plan
from ghostkv.session.turn import Output, Turn
from ghostkv.session.worker import Worker
from ghostkv.text.tokenizer import Tokenizer


def chat_routes(serving: Serving) -> APIRouter:
    """The route."""
    router, worker = APIRouter(), serving.worker

    @router.post("/v1/chat/completions")
    async def create(request: Request) -> Response:
        """Answer a conversation."""
        asked = await parse(request, ChatRequest)
        check_model(worker, asked.model)
        envelope = Envelope(f"chatcmpl-{uuid4().hex}", "chat.completion", "chat.completion.chunk", worker, asked.n)
        turns = await asyncio.to_thread(_turns, worker, asked, envelope.id)
        writers: list[ChoiceWriter] = [
            ChatChoice(index, worker.tokenizer if asked.logprobs else None) for index in range(asked.n)
        ]
        if asked.stream:
            options = asked.stream_options or StreamOptions()
            return await respond(serving, turns, lambda: Chunks(envelope, turns, writers, options))
        answers = await unless_gone(request, collect(serving, turns))
        return JSONResponse(whole(envelope, writers, answers, asked.ghostkv.residency))

    return router


def _turns(worker: Worker, asked: ChatRequest, request_id: str) -> list[Turn]:
    """One turn for each of the `n` answers; they share the seed."""
    limits = [limit for limit in (asked.max_tokens, asked.max_completion_tokens) if limit is not None]
    seed = secrets.randbits(63) if asked.seed is None else asked.seed
    turn = worker.checked(
        Turn(
            id=request_id,
            sampling=asked.sampling(seed=seed, logprobs=asked.top_logprobs if asked.logprobs else None),
            max_tokens=min(limits, default=0),
            messages=tuple(Message(message.role, message.text) for message in asked.messages),
            stop=tuple(asked.stop),
            stop_ids=tuple(asked.stop_token_ids),
            ignore_eos=asked.ignore_eos,
            residency=asked.ghostkv.residency,
            payload_budget=asked.ghostkv.payload_budget,
            long_prompt=asked.ghostkv.long_prompt,
            plan=asked.ghostkv.plan,
        )
    )
    check_plan(turn, asked.n)
    return choices_of(turn, asked.n)


class ChatChoice:
    """`envelope.ChoiceWriter` for chat."""

    def __init__(self, index: int, logprobs: Tokenizer | None) -> None:
        self._index = index
        self._logprobs = logprobs

    def opening(self) -> Json:
        """The role."""
        return self._chunk({"role": "assistant", "content": ""})

    def piece(self, output: Output) -> Json | None:
        """Text, and the log-probabilities of the tokens that came with it."""
        if self._logprobs is None:
            return self._chunk({"content": output.text}) if output.text else None
        return self._chunk({"content": output.text}, chat_logprobs(self._logprobs, output.tokens))

    def closing(self, reason: str) -> Json:
        """An empty delta."""
        return self._chunk({}, None, reason)

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
