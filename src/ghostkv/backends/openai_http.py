"""Any server with OpenAI's completions API in place of our own engine. Segments, rules and boundaries stay ours.

A segment is one streamed request. It ends where our rules say, by closing the stream; what comes after is dropped and
counted. A boundary that is kept costs nothing, since the stream simply goes on: so a request asks for all that may be
kept. KV is the upstream's own business; only its context is known to be a limit. There may be several upstreams of one
model (`upstreams`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path

from ghostkv.backends.base import Capabilities, Load, Stats
from ghostkv.backends.loop_thread import LoopThread
from ghostkv.backends.scoring import scored, scoring_request
from ghostkv.backends.upstream import FailedTry, Failure, Json, Upstream
from ghostkv.backends.upstream_body import body_of, scoring_body
from ghostkv.backends.upstream_line import UpstreamLine
from ghostkv.backends.upstream_member import Visit
from ghostkv.backends.upstream_probe import Findings
from ghostkv.backends.upstream_reply import Reader, choice_of
from ghostkv.backends.upstream_segment import RemoteSegment
from ghostkv.backends.upstream_start import begin
from ghostkv.backends.upstream_text import ModelText
from ghostkv.backends.upstreams import WAIT_S, Upstreams
from ghostkv.config import EngineConfig
from ghostkv.engine.admission import Limits, check_fits, reservation
from ghostkv.engine.stats import EngineStats
from ghostkv.errors import ConfigError, EngineFault, GhostError, InvalidRequest, Overloaded
from ghostkv.request import Decision, Delta, FinishReason, PromptScores, SegmentRequest, Token, Window
from ghostkv.step import BLOCK_TOKENS
from ghostkv.text.detokenizer import Detokenizer
from ghostkv.text.template import ChatTemplate
from ghostkv.text.tokenizer import Tokenizer

_log = logging.getLogger(__name__)
_Item = Delta | GhostError
_Tell = Callable[[_Item], None]


@dataclass(slots=True, eq=False)
class _Ticket:
    """One request between its caller and the upstream's thread."""

    segment: RemoteSegment
    tell: _Tell
    task: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()


class OpenAIBackend:
    """`backends.base.Backend` over `Upstreams`."""

    def __init__(
        self, upstreams: Upstreams, text: ModelText, found: Findings, config: EngineConfig, thread: LoopThread
    ) -> None:
        """Takes over `upstreams` and the `thread` that they belong to; `found` is what is offered of them."""
        self.found = found
        """What the upstreams can do."""
        self.text = text
        """What prompts are assembled with."""
        self.stats = EngineStats()
        """Counters; steps and blocks are the upstreams' and stay 0."""
        self.dropped = 0
        """Tokens that came after a boundary or an end."""
        self._upstreams = upstreams
        self._thread = thread
        self._limits = Limits.of(config, found.max_context)
        self._line = UpstreamLine(self._limits, time.monotonic)
        self._reader = Reader(found.token_ids, partial(text.tokenizer.encode, opening=False))
        self._tickets: dict[str, _Ticket] = {}  # of the latest request of each id
        self._scorings = count()
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
        announce: Callable[[str], None] = lambda _: None,
    ) -> OpenAIBackend:
        """Find out what the upstreams at `urls` can do with `model`; "" where each serves only one.

        `path` is where the tokenizer is, None where an upstream says that its files are. `announce` is told what that
        costs. An answer that has begun waits up to `wait_s` seconds where all are away. Raises ConfigError where none
        is there, or what was found is not enough, ModelError for files that cannot be used.
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
        upstreams = Upstreams(offer.members, offer.discovery, wait_s=wait_s)
        return cls(upstreams, offer.text, offer.offered, config, thread)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer: ours, not the upstream's."""
        return self.text.tokenizer

    @property
    def template(self) -> ChatTemplate | None:
        """The model's chat template; None if it has none."""
        return None if self.text.template is None else ChatTemplate(self.text.template, self.tokenizer)

    @property
    def healthy(self) -> bool:
        """Whether the process can go on. Upstreams that are away for a while do not make it false."""
        return self._thread.open

    def occupancy(self) -> Load:
        """How busy the upstream is with what we asked, about now; of its memory nothing is known."""
        return Load(free_tokens=self.found.max_context, waiting=self._line.waiting)

    def snapshot(self) -> Stats:
        """What was asked and answered, about now."""
        stats, running = self.stats, len(self._line.running)
        zeros = dict.fromkeys(("blocks", "live_blocks", "cached_blocks", "free_blocks", "peak_live_blocks", "steps"), 0)
        zeros |= dict.fromkeys(("waits_for_memory", "drafts", "drafted_tokens", "accepted_tokens"), 0)
        return Stats(
            **zeros,
            running=running,
            waiting=self._line.waiting,
            step_seconds=0.0,
            prefill_tokens=stats.prefill_tokens,
            generated_tokens=stats.generated_tokens,
            prompt_tokens=stats.prompt_tokens,
            cached_tokens=stats.cached_tokens,
            refused=stats.refused,
            kept=stats.boundaries_kept,
            flushed=stats.finished[FinishReason.FLUSH.value],
            dropped_tokens=self.dropped,
            upstreams=self._upstreams.states(),
        )

    def capabilities(self) -> Capabilities:
        """What was found. Nothing is exact: what else the upstream computes may change its bits."""
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

    async def generate(self, request: SegmentRequest) -> AsyncGenerator[Delta, None]:
        """Stream one segment."""
        loop = asyncio.get_running_loop()
        items: asyncio.Queue[_Item] = asyncio.Queue()

        def tell(item: _Item) -> None:
            with suppress(RuntimeError):  # the caller's event loop is closed, and its generator with it
                loop.call_soon_threadsafe(items.put_nowait, item)

        segment = RemoteSegment(request, reservation(request), Detokenizer(self.tokenizer), time.monotonic())
        ticket = _Ticket(segment, tell)
        if not self._thread.call(partial(self._begin, ticket)):
            raise EngineFault("the backend was closed")
        self._tickets[request.id] = ticket
        try:
            while True:
                item = await items.get()
                if isinstance(item, GhostError):
                    raise item
                yield item
                if item.finish is not None:
                    return
        finally:
            self._thread.call(ticket.cancel)
            if self._tickets.get(request.id) is ticket:
                del self._tickets[request.id]

    async def score(self, ids: Sequence[int], start: int, window: Window | None = None) -> list[float]:
        """Log-probabilities of ids[start:], by the upstream's echo. Raises Unsupported where it has none."""
        return await scored(self.generate(scoring_request(next(self._scorings), ids, start, window)))

    def cancel(self, request_id: str) -> None:
        """End a request; the upstream is told by closing its stream."""
        if (ticket := self._tickets.get(request_id)) is not None:
            self._thread.call(ticket.cancel)

    def pause(self, request: SegmentRequest, ids: Sequence[int]) -> None:
        """Nothing: what is kept between two requests is the upstream's own business."""

    def count(self, text: str) -> int:
        """Tokens of `text`."""
        return len(self.tokenizer.encode(text))

    def close(self) -> None:
        """Cancel what is pending, close every connection and end the thread."""
        if self._thread.open:
            for ticket in list(self._tickets.values()):
                self._thread.call(ticket.cancel)
            self._thread.start(self._upstreams.close()).result()
        self._thread.close()

    # On the upstream's thread from here on.

    def _begin(self, ticket: _Ticket) -> None:
        ticket.task = asyncio.get_running_loop().create_task(self._serve(ticket.segment, ticket.tell))
        ticket.task.add_done_callback(partial(self._ended, ticket))

    def _ended(self, ticket: _Ticket, task: asyncio.Task[None]) -> None:
        """Whatever happens, the caller is told of an end."""
        if task.cancelled():
            self._tell(ticket.segment.finished(FinishReason.CANCELLED), ticket.tell)
        elif (error := task.exception()) is not None:
            self.stats.refused += isinstance(error, InvalidRequest | Overloaded) and not ticket.segment.generated
            if not isinstance(error, GhostError):
                _log.error("an upstream's reply could not be read", exc_info=error)
                error = EngineFault(f"the upstream's reply led to {type(error).__name__}: {error}")
            ticket.tell(error)

    async def _serve(self, segment: RemoteSegment, tell: _Tell) -> None:
        """Answer one request. Its end is told when its place is free and the upstream knows of it."""
        request = segment.request
        check_fits(request, None, self._limits)
        async with self._line.place(request) as key:
            segment.asked()
            last = segment.finished(FinishReason.LENGTH)  # of a prompt that is only read
            if request.scores is not None:
                last = await self._read(request, request.scores, segment)
            if request.remaining:
                if request.scores is not None:
                    tell(last)
                last = await self._generate(key, segment, tell)
        self._tell(last, tell)

    async def _generate(self, key: str, segment: RemoteSegment, tell: _Tell) -> Delta:
        """Ask until the segment ends: again with what was generated where an upstream stops short, or fails.

        The last delta is not told yet.
        """
        while True:
            before = segment.generated
            last = await self._upstreams.ask(segment, partial(self._stream, key, segment, tell))
            if last is not None:
                return last
            if segment.generated == before:
                raise EngineFault("an upstream ended an answer with 'length' before its first token")

    async def _stream(self, key: str, segment: RemoteSegment, tell: _Tell, visit: Visit) -> Delta | None:
        """Ask one upstream once; the last delta, or None where it stops for a limit of its own."""
        body = body_of(segment.request, segment.ids, self._to_ask(segment), visit.found, self.tokenizer)
        address = visit.upstream.address
        async with aclosing(visit.upstream.stream(body)) as chunks:
            async for chunk in chunks:
                if (choice := choice_of(chunk)) is None:
                    continue
                if tokens := self._reader.tokens(choice, segment.request.sampling.logprobs):
                    visit.heard()
                if (last := self._take(key, segment, tokens, tell)) is not None:
                    return last
                if (reason := choice.get("finish_reason")) is None:
                    continue
                if reason == "stop":
                    return segment.finished(FinishReason.STOP, segment.gate.close(0))
                if reason == "length":
                    return None
                raise FailedTry(EngineFault(f"the upstream {address} ended an answer with {reason!r}"), Failure.FAULT)
        raise FailedTry(EngineFault(f"the upstream {address} ended an answer without saying why"), Failure.FAULT)

    def _to_ask(self, segment: RemoteSegment) -> int:
        """Output tokens: what is reserved, or where a boundary may be kept all that may follow it."""
        request = segment.request
        left = request.remaining - segment.generated
        most = left if request.flushed_prompt else segment.reserved - segment.generated
        return max(1, min(most, left, self._limits.max_context - segment.prompt_tokens - segment.generated))

    def _take(self, key: str, segment: RemoteSegment, tokens: Sequence[Token], tell: _Tell) -> Delta | None:
        """Pass the tokens on, one by one; the last delta of a segment that ended. What comes after that is dropped."""
        for at, token in enumerate(tokens, 1):
            self._line.chose(key, 1)
            outcome = segment.take(token)
            delta = Delta(segment.request.id, (token,), outcome.text)
            end = outcome.end
            if outcome.boundary:
                mark = self._line.decide(key, segment, outcome.boundary)
                delta = replace(delta, boundary=mark)
                end = FinishReason.FLUSH if mark.decision is Decision.FLUSH else None
            if end is not None:
                self.dropped += len(tokens) - at
                return replace(delta, finish=segment.finish(end))
            self._tell(delta, tell)
        return None

    def _tell(self, delta: Delta, tell: _Tell) -> None:
        self.stats.generated_tokens += len(delta.tokens)
        if delta.finish is not None:
            self.stats.count_finish(delta)
        elif delta.boundary is not None:
            self.stats.boundaries_kept += 1
        tell(delta)

    async def _read(self, request: SegmentRequest, asked: PromptScores, segment: RemoteSegment) -> Delta:
        """The log-probabilities of a prompt's tokens."""

        async def reply(visit: Visit) -> Json:
            return await visit.upstream.complete(scoring_body(request, asked.best, visit.found))

        prompt = replace(self._reader, encode=lambda text: request.prompt, ids=False)
        choice = choice_of(await self._upstreams.ask(segment, reply)) or {}
        tokens = prompt.tokens(choice, asked.best)[asked.start :]
        finish = None if request.remaining else segment.finish(FinishReason.LENGTH)
        return Delta(request.id, prompt=tokens, finish=finish)
