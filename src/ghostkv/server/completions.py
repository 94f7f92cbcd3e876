"""POST /v1/completions."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from uuid import uuid4

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from ghostkv.errors import InvalidRequest
from ghostkv.request import Grammar, PromptScores, Token
from ghostkv.server.access import Tenant, tenant_of
from ghostkv.server.answers import collect, unless_gone
from ghostkv.server.chunks import Chunks
from ghostkv.server.completion_schema import CompletionRequest
from ghostkv.server.envelope import ChoiceWriter, Envelope, Json, choices_of, prompt_tokens
from ghostkv.server.intake import parse
from ghostkv.server.joined import Joined
from ghostkv.server.logprobs import CompletionLogprobs
from ghostkv.server.models import check_model
from ghostkv.server.replies import whole
from ghostkv.server.schema import StreamOptions
from ghostkv.server.serving import Serving
from ghostkv.server.stream import respond
from ghostkv.server.structure import grammar_of
from ghostkv.session.turn import Output, Turn
from ghostkv.session.worker import Worker

COMPLETIONS = "completions"
"""What a session's record calls this endpoint."""


def completion_routes(serving: Serving) -> APIRouter:
    """The route."""
    router, worker = APIRouter(), serving.worker

    @router.post("/v1/completions")
    async def create(request: Request) -> Response:
        """Continue raw prompts."""
        asked = await parse(request, CompletionRequest)
        check_model(worker, asked.model)
        joined = await Joined.of(serving, request, asked, COMPLETIONS)
        asked = asked if joined is None else joined.settled(asked)
        envelope = completion_envelope(worker, f"cmpl-{uuid4().hex}", asked)
        envelope = envelope if joined is None else joined.named(envelope)
        tenant = tenant_of(request)
        grammar = await grammar_of(worker, asked.structure, tenant.name)
        prompts, turns = await asyncio.to_thread(_turns, worker, asked, envelope.id, tenant, grammar)
        writers = partial(_writers, worker, asked, prompts if asked.echo else ())
        residency = turns[0].residency
        if asked.stream:
            counted = partial(prompt_tokens, worker, turns, asked.n)
            score = partial(completion_score, envelope, asked, residency, counted, writers)
            return await (respond(serving, turns, score) if joined is None else joined.respond(envelope, turns, score))
        answers = await unless_gone(
            request, collect(serving, turns) if joined is None else joined.collect(envelope, turns)
        )
        # Off the event loop: the log-probabilities of a long prompt are many objects.
        reply = await asyncio.to_thread(whole, envelope, writers(), answers, residency)
        return JSONResponse(reply if joined is None else joined.reported(reply))

    return router


def completion_envelope(worker: Worker, answer_id: str, asked: CompletionRequest) -> Envelope:
    """What is around the choices of a reply."""
    return Envelope(answer_id, "text_completion", "text_completion", worker, asked.n)


def completion_score(
    envelope: Envelope,
    asked: CompletionRequest,
    residency: str,
    prompt_tokens: Callable[[], int],
    writers: Callable[[], Sequence[ChoiceWriter]] | None = None,
) -> Chunks:
    """How a stream writes the answers to `asked`; without `writers`, those to one prompt that is not echoed."""
    made = writers() if writers else _writers(envelope.worker, asked, ())
    return Chunks(envelope, made, asked.stream_options or StreamOptions(), residency, prompt_tokens)


@dataclass(frozen=True, slots=True)
class _Prompt:
    """One prompt as it was sent and as it is read."""

    text: str
    ids: tuple[int, ...]


def _turns(
    worker: Worker, asked: CompletionRequest, request_id: str, tenant: Tenant, grammar: Grammar | None
) -> tuple[list[_Prompt], list[Turn]]:
    """The prompts, and `n` turns for each of them, in order; all share the seed."""
    seed = secrets.randbits(63) if asked.seed is None else asked.seed
    # Log-probabilities of a prompt are those of the whole, whatever the default is; what was asked for is not changed.
    whole_prompt = asked.scores_prompt and "residency" not in asked.ghostkv.model_fields_set
    residency = "full" if whole_prompt else asked.ghostkv.chosen
    sampling = asked.sampling(seed=seed, logprobs=asked.logprobs)
    prompts = [_read(worker, prompt, residency) for prompt in asked.prompt]
    turns = [
        worker.checked(
            replace(
                asked.ghostkv.turn(f"{request_id}-{at}", tenant, sampling, asked.max_tokens, grammar),
                seeded=asked.seed is not None,
                generates=asked.max_tokens != 0,
                scores=PromptScores(best=asked.logprobs or 0) if asked.scores_prompt else None,
                prompt=prompt.ids,
                stop=tuple(asked.stop),
                stop_ids=tuple(asked.stop_token_ids),
                ignore_eos=asked.ignore_eos,
                residency=residency,
            )
        )
        for at, prompt in enumerate(prompts)
    ]
    return prompts, [choice for turn in turns for choice in choices_of(turn, asked.n)]


def _writers(worker: Worker, asked: CompletionRequest, echoes: Sequence[_Prompt]) -> list[ChoiceWriter]:
    def logprobs() -> CompletionLogprobs | None:
        as_ids = asked.return_tokens_as_token_ids
        return None if asked.logprobs is None else CompletionLogprobs(worker.tokenizer, as_ids=as_ids)

    return [
        CompletionChoice(index, logprobs(), echoes[index // asked.n] if echoes else None, ids=asked.return_token_ids)
        for index in range(len(asked.prompt) * asked.n)
    ]


def _read(worker: Worker, prompt: str | list[int], residency: str) -> _Prompt:
    ids = worker.encode(prompt, residency) if isinstance(prompt, str) else tuple(prompt)
    if not ids:
        raise InvalidRequest("prompt is empty: at least one token is needed to continue", param="prompt")
    return _Prompt(prompt if isinstance(prompt, str) else worker.tokenizer.decode(ids), ids)


class CompletionChoice:
    """`envelope.ChoiceWriter` for completions; `echo` is what its text begins with.

    With `ids` each piece names the output's tokens, those of an end included; the text may lag behind them.
    """

    def __init__(
        self, index: int, logprobs: CompletionLogprobs | None, echo: _Prompt | None = None, *, ids: bool = False
    ) -> None:
        self._index = index
        self._logprobs = logprobs
        self._echo = echo
        self._ids = ids

    def opening(self) -> Json | None:
        """The prompt, if it is echoed, and its first token, which no log-probability belongs to."""
        if self._echo is None:
            return None
        return self._choice(self._echo.text, self._opening_tokens(), None)

    def pieces(self, output: Output) -> Iterator[Json]:
        """Text, and the log-probabilities of the tokens that came with it; those of the prompt come first."""
        if output.prompt:
            yield self._choice("", output.prompt, None)
        if output.text or (output.tokens and (self._ids or self._logprobs is not None)):
            self._end_prompt()
            yield self._choice(output.text, output.tokens, None) | self._token_ids(output)

    def closing(self, reason: str) -> Sequence[Json]:
        """No text."""
        return (self._choice("", None, reason),)

    def whole(self, text: str, output: Output, reason: str) -> Json:
        """All of it."""
        if self._echo is None or self._logprobs is None:
            choice = self._choice((self._echo.text if self._echo else "") + text, output.tokens, reason)
            return choice | self._token_ids(output)
        read = self._logprobs.of((*self._opening_tokens(), *output.prompt))
        echo = self._echo.text
        self._end_prompt()
        written = self._logprobs.of(output.tokens)
        logprobs = {name: read[name] + written[name] for name in read}
        choice = {"index": self._index, "text": echo + text, "logprobs": logprobs, "finish_reason": reason}
        return choice | self._token_ids(output)

    def _token_ids(self, output: Output) -> Json:
        return {"token_ids": [token.id for token in output.tokens]} if self._ids else {}

    def _opening_tokens(self) -> tuple[Token, ...]:
        return () if self._echo is None else (Token(self._echo.ids[0]),)

    def _end_prompt(self) -> None:
        """What follows is the answer."""
        if self._echo is not None and self._logprobs is not None:
            self._logprobs.begin(len(self._echo.text))
            self._echo = None

    def _choice(self, text: str, tokens: Sequence[Token] | None, reason: str | None) -> Json:
        logprobs = None if tokens is None or self._logprobs is None else self._logprobs.of(tokens)
        return {"index": self._index, "text": text, "logprobs": logprobs, "finish_reason": reason}
