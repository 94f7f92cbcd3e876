"""Any server with OpenAI's completions API in place of our own engine. Segments, rules and boundaries stay ours.

There may be several of one model (`upstreams`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path

from ghostkv.backends.base import Capabilities, Stats
from ghostkv.backends.loop_thread import LoopThread
from ghostkv.backends.remote import Chunk, Follow, RemoteBackend
from ghostkv.backends.upstream import FailedTry, Failure, Json, Upstream
from ghostkv.backends.upstream_body import body_of, scoring_body
from ghostkv.backends.upstream_member import Visit
from ghostkv.backends.upstream_probe import Findings
from ghostkv.backends.upstream_reply import Reader, choice_of
from ghostkv.backends.upstream_segment import RemoteSegment
from ghostkv.backends.upstream_start import begin
from ghostkv.backends.upstream_text import ModelText
from ghostkv.backends.upstreams import WAIT_S, Upstreams
from ghostkv.config import EngineConfig
from ghostkv.engine.admission import Limits
from ghostkv.errors import ConfigError, EngineFault
from ghostkv.request import Delta, Token
from ghostkv.routing import DEFAULT_ROUTER, router
from ghostkv.step import BLOCK_TOKENS

_ENDS = ("stop", "length")


class OpenAIBackend(RemoteBackend):
    """`backends.base.Backend` over `Upstreams`. Those that are away for a while leave it healthy."""

    def __init__(
        self, upstreams: Upstreams, text: ModelText, found: Findings, config: EngineConfig, thread: LoopThread
    ) -> None:
        """Takes over `upstreams` and the `thread` that they belong to; `found` is what is offered of them."""
        super().__init__(found.model, "an upstream", text, Limits.of(config, found.max_context), thread)
        self.found = found
        """What the upstreams can do."""
        self._upstreams = upstreams
        self._reader = Reader(found.token_ids, partial(text.tokenizer.encode, opening=False))
        thread.start(upstreams.watch()).result()

    @classmethod
    def connect(
        cls,
        urls: Sequence[str],
        path: Path | None,
        config: EngineConfig,
        *,
        key: str = "",
        model: str = "",
        wait_s: float = WAIT_S,
        by: str = DEFAULT_ROUTER,
        announce: Callable[[str], None] = lambda _: None,
    ) -> OpenAIBackend:
        """Find out what the upstreams at `urls` can do with `model`; "" where each serves only one.

        `path` is where the tokenizer is, None where an upstream says that its files are. `announce` is told what that
        costs. An answer that has begun waits up to `wait_s` seconds where all are away. The router called `by` chooses
        among several. Raises ConfigError where none is there, or what was found is not enough, ModelError for files
        that cannot be used.
        """
        servers = [Upstream(url, key) for url in urls]
        if len({server.address for server in servers}) < len(servers):
            raise ConfigError("an upstream is named twice")
        thread = LoopThread("ghostkv-upstream")
        try:
            offer = thread.start(begin(servers, path, model, announce)).result()
        except BaseException:
            for server in servers:
                thread.start(server.close()).result()
            thread.close()
            raise
        upstreams = Upstreams(offer.members, offer.discovery, router(by), wait_s=wait_s)
        return cls(upstreams, offer.text, offer.offered, config, thread)

    @property
    def identity(self) -> str:
        """See RemoteBackend."""
        return f"upstream:{self.name}"

    def capabilities(self) -> Capabilities:
        """What was found."""
        found = self.found
        return Capabilities(
            token_ids=found.prompt_ids and found.token_ids,
            extend=True,
            generation_state=False,
            logprobs="logprobs" not in found.lacks,
            score=found.score,
            exact=False,
            max_context=found.max_context,
            kv_bytes_per_token=self.text.kv_bytes_per_token,
            kv_budget=0,
            block_tokens=BLOCK_TOKENS,
            windows=False,
            lacks=found.lacks,
        )

    def snapshot(self) -> Stats:
        """What was asked and answered, about now, and who serves."""
        return replace(super().snapshot(), upstreams=self._upstreams.states())

    async def _ask(self, segment: RemoteSegment, follow: Follow) -> Delta | None:
        """See RemoteBackend. Where an upstream fails, what is left is asked for elsewhere or later."""
        return await self._upstreams.ask(segment, lambda visit: follow(self._chunks(segment, visit)))

    async def _chunks(self, segment: RemoteSegment, visit: Visit) -> AsyncGenerator[Chunk, None]:
        """What one upstream answers."""
        body = body_of(segment.request, segment.ids, self._to_ask(segment), visit.found, self.tokenizer)
        address = visit.upstream.address
        async with aclosing(visit.upstream.stream(body)) as chunks:
            async for chunk in chunks:
                if (choice := choice_of(chunk)) is None:
                    continue
                if tokens := self._reader.tokens(choice, segment.request.sampling.logprobs):
                    visit.heard()
                reason = choice.get("finish_reason")
                yield Chunk(tokens, reason if reason in _ENDS else None)
                if reason in _ENDS:
                    return
                if reason is not None:
                    said = f"the upstream {address} ended an answer with {reason!r}"
                    raise FailedTry(EngineFault(said), Failure.FAULT)
        raise FailedTry(EngineFault(f"the upstream {address} ended an answer without saying why"), Failure.FAULT)

    async def _scores(self, segment: RemoteSegment, best: int) -> Sequence[Token]:
        async def reply(visit: Visit) -> Json:
            return await visit.upstream.complete(scoring_body(segment.request, best, visit.found))

        prompt = replace(self._reader, encode=lambda text: segment.request.prompt, ids=False)
        return prompt.tokens(choice_of(await self._upstreams.ask(segment, reply)) or {}, best)

    async def _shut(self) -> None:
        await self._upstreams.close()
