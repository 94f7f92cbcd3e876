"""A server of OpenAI's completions that does exactly what a test says, faults included; on a real socket."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.types import Receive, Scope, Send

from fakes import CHATML_TEMPLATE, byte_tokenizer
from ghostkv.backends.loop_thread import LoopThread
from ghostkv.backends.openai_http import OpenAIBackend
from ghostkv.backends.upstream import Upstream
from ghostkv.backends.upstream_member import Member
from ghostkv.backends.upstream_probe import Findings
from ghostkv.backends.upstream_text import ModelText
from ghostkv.backends.upstreams import Discovery, Upstreams
from ghostkv.config import EngineConfig
from ghostkv.request import Delta, FinishReason, GenerationState, Rule, Sampling, SegmentRequest
from ghostkv.residency import policy
from ghostkv.routing import DEFAULT_ROUTER, router
from ghostkv.server.serve import listen

TOKENIZER = byte_tokenizer()
EOS = TOKENIZER.eos_ids[0]
TEXT = ModelText("stub", TOKENIZER, CHATML_TEMPLATE, context=256, kv_bytes_per_token=4)
FOUND = Findings("stub", 256, prompt_ids=True, token_ids=True, score=False, lacks=frozenset())
PROMPT = tuple(b"once: ")


@dataclass
class StubUpstream:
    """Answers each request with the bytes of `answer` from where the prompt's end stands in it, over and over."""

    answer: bytes = b"abcdefghijklmnopqrstuvwxyz"
    per_chunk: int = 1  # tokens
    names_ids: bool = True  # in choices
    takes_ids: bool = True  # as prompts
    refusals: list[tuple[int, dict[str, str], Any]] = field(default_factory=list)  # status, headers, body: come first
    breaks_after: int | None = None  # chunks, of every stream
    fails_after: int | None = None  # chunks, then an error event
    limit: int | None = None  # tokens that it ever gives in one answer
    ends_after: int | None = None  # tokens of an answer, then it says stop
    paused: threading.Event | None = None  # streams wait for it before each chunk,
    paused_after: int = 0  # but not before so many
    misread: int = 0  # tokens that it counts too many in a prompt
    models: Sequence[dict[str, Any]] = ({"id": "stub", "max_model_len": 256},)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    open: int = 0  # streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/v1/models":
            await _reply(send, 200, {"data": list(self.models)})
        elif scope["path"] == "/v1/completions":
            await self._complete(receive, send)
        else:
            await _reply(send, 404, {"detail": "Not Found"})

    async def _complete(self, receive: Receive, send: Send) -> None:
        body = json.loads((await receive())["body"])
        self.bodies.append(body)
        if self.refusals:
            status, headers, said = self.refusals.pop(0)
            await _reply(send, status, said, headers)
        elif not self.takes_ids and not isinstance(body["prompt"], str):
            await _reply(send, 400, {"error": {"message": "prompt must be a string"}})
        elif not body.get("stream"):
            await self._whole(body, send)
        else:
            self.open += 1
            try:
                await self._stream(body, receive, send)
            finally:
                self.open -= 1

    def tokens(self, body: dict[str, Any]) -> tuple[list[int], str]:
        """What is generated, and the finish reason."""
        prompt = body["prompt"]
        text = prompt.encode() if isinstance(prompt, str) else TOKENIZER.decode(prompt).encode()
        start = next((at for at in range(len(self.answer), 0, -1) if text.endswith(self.answer[:at])), 0)
        most = min(body["max_tokens"], self.limit or body["max_tokens"])
        found = [self.answer[(start + i) % len(self.answer)] for i in range(most)]
        if self.ends_after is not None and self.ends_after < most:
            return [*found[: self.ends_after], EOS], "stop"
        return found, "length"

    async def _whole(self, body: dict[str, Any], send: Send) -> None:
        found, reason = self.tokens(body)
        prompt = body["prompt"]
        read = len(TOKENIZER.encode(prompt) if isinstance(prompt, str) else prompt)
        usage = {"prompt_tokens": read + self.misread, "completion_tokens": len(found)}
        await _reply(send, 200, {"choices": [self._choice(body, found, reason)], "usage": usage})

    async def _stream(self, body: dict[str, Any], receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(_gone(receive))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        found, reason = self.tokens(body)
        chunks = [found[at : at + self.per_chunk] for at in range(0, len(found), self.per_chunk)]
        for index, chunk in enumerate(chunks):
            while self.paused is not None and index >= self.paused_after and not self.paused.is_set():
                await asyncio.sleep(0.005)
                if gone.done():
                    return
            if index == self.fails_after:
                await _event(send, {"error": {"message": "the engine died", "code": 500}})
            if index == self.breaks_after:
                gone.cancel()
                raise RuntimeError("breaks off")
            if gone.done():
                return
            last = index == len(chunks) - 1
            await _event(send, {"choices": [self._choice(body, chunk, reason if last else None)]})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})
        gone.cancel()

    def _choice(self, body: dict[str, Any], ids: list[int], reason: str | None) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "text": TOKENIZER.decode(ids), "finish_reason": reason}
        return choice | ({"token_ids": ids} if self.names_ids and body.get("return_token_ids") else {})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _event(send: Send, said: dict[str, Any]) -> None:
    body = f"data: {json.dumps(said)}\n\n".encode()
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _reply(send: Send, status: int, said: Any, headers: dict[str, str] | None = None) -> None:
    listed = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    await send({"type": "http.response.start", "status": status, "headers": listed})
    await send({"type": "http.response.body", "body": json.dumps(said).encode()})


@contextmanager
def stubbed(stub: StubUpstream, port: int = 0) -> Iterator[str]:
    """The stub at a URL."""
    bound = listen("127.0.0.1", port)
    server = uvicorn.Server(uvicorn.Config(stub, log_config=None, lifespan="off"))
    thread = threading.Thread(target=server.run, args=([bound],), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        bound.close()
        assert not thread.is_alive()


@contextmanager
def over(stub: StubUpstream, found: Findings = FOUND, **config: Any) -> Iterator[OpenAIBackend]:
    with stubbed(stub) as url:
        backend = behind([url], found, **config)
        yield backend
        backend.close()


def behind(
    servers: Sequence[str | Upstream],
    found: Findings = FOUND,
    *,
    wait_s: float = 60.0,
    check_s: float = 10.0,
    again: Discovery | None = None,
    **config: Any,
) -> OpenAIBackend:
    """A backend over upstreams that nobody has asked what they can do: they can do what was `found`, also `again`."""

    async def same(member: Member) -> Findings:
        return found

    members = [Member(Upstream(each) if isinstance(each, str) else each) for each in servers]
    for member in members:
        member.join(found)
    upstreams = Upstreams(members, again or same, router(DEFAULT_ROUTER), wait_s=wait_s, check_s=check_s)
    return OpenAIBackend(upstreams, TEXT, found, EngineConfig(**config), LoopThread("upstream"))


def segment(tokens: int = 20, rules: tuple[Rule, ...] = (), residency: Any = "full", **more: Any) -> SegmentRequest:
    chosen = policy(residency) if isinstance(residency, str) else residency
    sampling = Sampling(temperature=0.0, terminators=TOKENIZER.eos_ids)
    return SegmentRequest("a", PROMPT, sampling, GenerationState(rules=rules), chosen, tokens, **more)


def collect(backend: OpenAIBackend, request: SegmentRequest) -> list[Delta]:
    async def run() -> list[Delta]:
        return [delta async for delta in backend.generate(request)]

    return asyncio.run(run())


def text(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


def reason(deltas: list[Delta]) -> FinishReason | None:
    return deltas[-1].finish.reason if deltas[-1].finish else None
