"""POST /v1/completions."""

from __future__ import annotations

import asyncio
import secrets
from uuid import uuid4

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from ghostkv.errors import InvalidRequest
from ghostkv.server.answers import collect, unless_gone
from ghostkv.server.chunks import Chunks
from ghostkv.server.envelope import ChoiceWriter, Envelope, Json, choices_of
from ghostkv.server.intake import parse
from ghostkv.server.logprobs import CompletionLogprobs
from ghostkv.server.models import check_model
from ghostkv.server.replies import whole
from ghostkv.server.schema import CompletionRequest, StreamOptions
from ghostkv.server.serving import Serving
from ghostkv.server.stream import respond
from ghostkv.session.turn import Output, Turn
from ghostkv.session.worker import Worker
from ghostkv.text.tokenizer import Tokenizer


def completion_routes(serving: Serving) -> APIRouter:
    """The route."""
    router, worker = APIRouter(), serving.worker

    @router.post("/v1/completions")
    async def create(request: Request) -> Response:
        """Continue raw prompts."""
        asked = await parse(request, CompletionRequest)
        check_model(worker, asked.model)
        envelope = Envelope(f"cmpl-{uuid4().hex}", "text_completion", "text_completion", worker, asked.n)
        turns = await asyncio.to_thread(_turns, worker, asked, envelope.id)
        tokenizer = None if asked.logprobs is None else worker.tokenizer
        writers: list[ChoiceWriter] = [CompletionChoice(index, tokenizer) for index in range(len(turns))]
        if asked.stream:
            options = asked.stream_options or StreamOptions()
            return await respond(serving, turns, lambda: Chunks(envelope, turns, writers, options))
        answers = await unless_gone(request, collect(serving, turns))
        return JSONResponse(whole(envelope, writers, answers, asked.ghostkv.residency))

    return router


def _turns(worker: Worker, asked: CompletionRequest, request_id: str) -> list[Turn]:
    """`n` turns for each prompt, in order; all share the seed."""
    seed = secrets.randbits(63) if asked.seed is None else asked.seed
    prompts = [_ids(worker, prompt, asked.ghostkv.residency) for prompt in asked.prompt]
    turns = [
        worker.checked(
            Turn(
                id=f"{request_id}-{at}",
                sampling=asked.sampling(seed=seed, logprobs=asked.logprobs),
                max_tokens=asked.max_tokens or 0,
                prompt=prompt,
                stop=tuple(asked.stop),
                stop_ids=tuple(asked.stop_token_ids),
                ignore_eos=asked.ignore_eos,
                residency=asked.ghostkv.residency,
                payload_budget=asked.ghostkv.payload_budget,
                long_prompt=asked.ghostkv.long_prompt,
                plan=asked.ghostkv.plan,
            )
        )
        for at, prompt in enumerate(prompts)
    ]
    return [choice for turn in turns for choice in choices_of(turn, asked.n)]


def _ids(worker: Worker, prompt: str | list[int], residency: str) -> tuple[int, ...]:
    ids = worker.encode(prompt, residency) if isinstance(prompt, str) else tuple(prompt)
    if not ids:
        raise InvalidRequest("prompt is empty: at least one token is needed to continue", param="prompt")
    return ids


class CompletionChoice:
    """`envelope.ChoiceWriter` for completions."""

    def __init__(self, index: int, logprobs: Tokenizer | None) -> None:
        self._index = index
        self._logprobs = None if logprobs is None else CompletionLogprobs(logprobs)

    def opening(self) -> None:
        """Nothing."""

    def piece(self, output: Output) -> Json | None:
        """Text, and the log-probabilities of the tokens that came with it."""
        if not output.text and self._logprobs is None:
            return None
        return self._choice(output.text, output, None)

    def closing(self, reason: str) -> Json:
        """No text."""
        return self._choice("", None, reason)

    def whole(self, text: str, output: Output, reason: str) -> Json:
        """All of it."""
        return self._choice(text, output, reason)

    def _choice(self, text: str, output: Output | None, reason: str | None) -> Json:
        logprobs = None if output is None or self._logprobs is None else self._logprobs.of(output.tokens)
        return {"index": self._index, "text": text, "logprobs": logprobs, "finish_reason": reason}
