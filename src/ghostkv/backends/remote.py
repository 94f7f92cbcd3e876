"""What backends over another engine share: our line before it, and segments, rules and boundaries over its tokens.

A segment is one request there. It ends where our rules say, by closing the stream; what comes after is dropped and
counted. A boundary that is kept costs nothing, since the stream simply goes on: so a request asks for all that may be
kept. How tokens are asked for and how they come is for whoever inherits; KV is the other engine's own business.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

from ghostkv.backends.base import Capabilities, Load, Stats
from ghostkv.backends.loop_thread import LoopThread
from ghostkv.backends.scoring import scored, scoring_request
from ghostkv.backends.upstream_line import UpstreamLine
from ghostkv.backends.upstream_segment import RemoteSegment
from ghostkv.backends.upstream_text import ModelText
from ghostkv.engine.admission import Limits, check_fits, reservation
from ghostkv.engine.stats import EngineStats
from ghostkv.errors import EngineFault, GhostError, InvalidRequest, Overloaded
from ghostkv.request import Decision, Delta, FinishReason, PromptScores, SegmentRequest, Token, Window
from ghostkv.text.detokenizer import Detokenizer
from ghostkv.text.template import ChatTemplate
from ghostkv.text.tokenizer import Tokenizer

LACKING = (
    "no answer is exact: strict and deterministic are refused",
    "no tools, grammars, sink_window, steering",
    "penalties only under residency full, where nothing crosses a boundary",
)
"""What clients do without over any other engine, for people."""

_log = logging.getLogger(__name__)
_Item = Delta | GhostError
_Tell = Callable[[_Item], None]


@dataclass(frozen=True, slots=True)
class Chunk:
    """What comes of an answer at once."""

    tokens: Sequence[Token]
    finish: str | None = None  # why the answer ended there: "stop", "length"
    cached: int = 0  # prompt tokens that were found in the prefix cache, where that is told


Follow = Callable[[AsyncGenerator[Chunk, None]], Awaitable[Delta | None]]


@dataclass(slots=True, eq=False)
class _Ticket:
    """One request between its caller and the engine's thread."""

    segment: RemoteSegment
    tell: _Tell
    task: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()


class RemoteBackend(ABC):
    """`backends.base.Backend` over an engine that completes token ids and knows nothing of segments."""

    def __init__(self, name: str, engine: str, text: ModelText, limits: Limits, thread: LoopThread) -> None:
        """Takes over `thread`, to which the engine belongs. `engine` is what messages call it."""
        self.name = name
        """The id under which the model is served."""
        self.text = text
        """What prompts are assembled with."""
        self.stats = EngineStats()
        """Counters; steps and blocks are the engine's and stay 0."""
        self.dropped = 0
        """Tokens that came after a boundary or an end."""
        self._engine = engine
        self._thread = thread
        self._limits = limits
        self._line = UpstreamLine(limits, time.monotonic)
        self._tickets: dict[str, _Ticket] = {}  # of the latest request of each id
        self._scorings = count()

    @property
    @abstractmethod
    def identity(self) -> str:
        """What stands for the model in a manifest."""

    @abstractmethod
    def capabilities(self) -> Capabilities:
        """See Backend. Nothing is exact: what else the engine computes may change its bits."""

    @abstractmethod
    async def _ask(self, segment: RemoteSegment, follow: Follow) -> Delta | None:
        """Ask for at most `_to_ask` tokens after what the segment has, and give what comes to `follow`; what that says.

        Closing what `follow` is given ends the request at the engine. Raises InvalidRequest, Overloaded or EngineFault.
        """

    @abstractmethod
    async def _scores(self, segment: RemoteSegment, best: int) -> Sequence[Token]:
        """All of its prompt's tokens with their log-probabilities, and the `best` best beside each."""

    @abstractmethod
    async def _shut(self) -> None:
        """Let go of the engine."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer: ours, not the engine's."""
        return self.text.tokenizer

    @property
    def template(self) -> ChatTemplate | None:
        """The model's chat template; None if it has none."""
        return None if self.text.template is None else ChatTemplate(self.text.template, self.tokenizer)

    @property
    def healthy(self) -> bool:
        """Whether requests are served."""
        return self._thread.open

    def occupancy(self) -> Load:
        """How busy the engine is with what we asked, about now; of its memory nothing is known."""
        return Load(free_tokens=self._limits.max_context, waiting=self._line.waiting)

    def snapshot(self) -> Stats:
        """What was asked and answered, about now."""
        stats, running = self.stats, len(self._line.running)
        zeros = dict.fromkeys(("blocks", "live_blocks", "cached_blocks", "free_blocks", "peak_live_blocks", "steps"), 0)
        zeros |= dict.fromkeys(("waits_for_memory", "drafts", "drafted_tokens", "accepted_tokens"), 0)
        return Stats(
            **zeros,
            upstreams=(),
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
        """Log-probabilities of ids[start:]. Raises Unsupported where the engine gives none."""
        return await scored(self.generate(scoring_request(next(self._scorings), ids, start, window)))

    def cancel(self, request_id: str) -> None:
        """End a request; the engine is told by closing its stream."""
        if (ticket := self._tickets.get(request_id)) is not None:
            self._thread.call(ticket.cancel)

    def pause(self, request: SegmentRequest, ids: Sequence[int]) -> None:  # noqa: B027 - a hint, no duty
        """Nothing: what is kept between two requests is the engine's own business."""

    def count(self, text: str) -> int:
        """Tokens of `text`."""
        return len(self.tokenizer.encode(text))

    def close(self) -> None:
        """Cancel what is pending, let go of the engine and end the thread."""
        if self._thread.open:
            for ticket in list(self._tickets.values()):
                self._thread.call(ticket.cancel)
            self._thread.start(self._shut()).result()
        self._thread.close()

    # On the engine's thread from here on.

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
                _log.error("a reply of %s could not be read", self._engine, exc_info=error)
                error = EngineFault(f"a reply of {self._engine} led to {type(error).__name__}: {error}")
            ticket.tell(error)

    async def _serve(self, segment: RemoteSegment, tell: _Tell) -> None:
        """Answer one request. Its end is told when its place is free and the engine knows of it."""
        request = segment.request
        check_fits(request, None, self._limits)
        async with self._line.place(request) as key:
            segment.asked()
            last = segment.finished(FinishReason.LENGTH)  # of a prompt that is only read
            if request.scores is not None:
                last = await self._read(segment, request.scores)
            if request.remaining:
                if request.scores is not None:
                    tell(last)
                last = await self._generate(key, segment, tell)
        self._tell(last, tell)

    async def _generate(self, key: str, segment: RemoteSegment, tell: _Tell) -> Delta:
        """Ask until the segment ends: again with what was generated where the engine stops for a limit of its own.

        The last delta is not told yet.
        """
        while True:
            before = segment.generated
            if (last := await self._ask(segment, partial(self._follow, key, segment, tell))) is not None:
                return last
            if segment.generated == before:
                raise EngineFault(f"{self._engine} ended an answer with 'length' before its first token")

    async def _follow(
        self, key: str, segment: RemoteSegment, tell: _Tell, coming: AsyncGenerator[Chunk, None]
    ) -> Delta | None:
        """Take what comes; the last delta, or None where the engine stops for a limit of its own."""
        async with aclosing(coming) as chunks:
            async for chunk in chunks:
                segment.found(chunk.cached)
                if (last := self._take(key, segment, chunk.tokens, tell)) is not None:
                    return last
                if chunk.finish == "stop":
                    return segment.finished(FinishReason.STOP, segment.gate.close(0))
                if chunk.finish == "length":
                    return None
                if chunk.finish is not None:
                    raise EngineFault(f"{self._engine} ended an answer with {chunk.finish!r}")
        raise EngineFault(f"{self._engine} ended an answer without saying why")

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

    async def _read(self, segment: RemoteSegment, asked: PromptScores) -> Delta:
        """The log-probabilities of a prompt's tokens."""
        tokens = (await self._scores(segment, asked.best))[asked.start :]
        finish = None if segment.request.remaining else segment.finish(FinishReason.LENGTH)
        return Delta(segment.request.id, prompt=tuple(tokens), finish=finish)
