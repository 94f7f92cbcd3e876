"""ghostkv's own engine as a backend: the model's runner under the scheduler, on the engine's thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path

from ghostkv.backends.base import SCORING, Capabilities, Load
from ghostkv.config import EngineConfig
from ghostkv.engine.admission import Limits
from ghostkv.engine.clock import MonotonicClock
from ghostkv.engine.engine import Engine
from ghostkv.engine.scheduler import Scheduler
from ghostkv.engine.service import AsyncEngine
from ghostkv.engine.stats import EngineStats, StepTrace
from ghostkv.errors import ContextLengthExceeded, InvalidRequest, Overloaded
from ghostkv.kv.pool import BlockPool
from ghostkv.kv.ring import Ring
from ghostkv.model.load import Announce, LoadedModel, load_model
from ghostkv.request import Delta, SegmentRequest, Window, domain
from ghostkv.step import BLOCK_TOKENS
from ghostkv.text.detokenizer import Detokenizer
from ghostkv.text.template import ChatTemplate
from ghostkv.text.tokenizer import Tokenizer


class EmbeddedBackend:
    """`backends.base.Backend` over a LoadedModel."""

    def __init__(
        self, model: LoadedModel, config: EngineConfig, trace: Callable[[StepTrace], None] | None = None
    ) -> None:
        self.model = model
        self._pool = BlockPool(model.blocks)
        limits = Limits.of(config, model.checkpoint.shape.context)
        scheduler = Scheduler(self._pool, limits, Detokenizer(model.checkpoint.tokenizer))
        self._engine = Engine(scheduler, model.runner, MonotonicClock(), trace)
        self._service = AsyncEngine(self._engine)

    @classmethod
    def load(
        cls,
        path: Path,
        config: EngineConfig,
        announce: Announce = lambda _: None,
        trace: Callable[[StepTrace], None] | None = None,
    ) -> EmbeddedBackend:
        """Load the model at `path` and start its engine; raises what `load_model` raises."""
        return cls(load_model(path, config, announce), config, trace)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.model.checkpoint.tokenizer

    @property
    def template(self) -> ChatTemplate | None:
        """The model's chat template; None if it has none."""
        source = self.model.checkpoint.template
        return None if source is None else ChatTemplate(source, self.tokenizer)

    @property
    def healthy(self) -> bool:
        """Whether requests are served."""
        return self._service.healthy

    @property
    def stats(self) -> EngineStats:
        """The engine's counters."""
        return self._engine.stats

    def occupancy(self) -> Load:
        """How busy the engine is, about now."""
        waiting = self._engine.scheduler.occupancy().waiting
        return Load(free_tokens=self._pool.available * BLOCK_TOKENS, waiting=waiting)

    def capabilities(self) -> Capabilities:
        """What the embedded engine does: everything; exact where the numeric contract holds."""
        return Capabilities(
            token_ids=True,
            extend=True,
            generation_state=True,
            logprobs=True,
            score=True,
            exact=self.model.check is not None,
            max_context=self.model.checkpoint.shape.context,
            kv_bytes_per_token=self.model.block_bytes // BLOCK_TOKENS,
            kv_budget=self.model.blocks * self.model.block_bytes,
            block_tokens=BLOCK_TOKENS,
            steering=() if self.model.steering is None else self.model.steering.names,
        )

    def generate(self, request: SegmentRequest) -> AsyncGenerator[Delta, None]:
        """Stream one segment."""
        return self._service.generate(request)

    async def score(self, ids: Sequence[int], start: int, window: Window | None = None) -> list[float]:
        """Log-probabilities of ids[start:]; runs between two steps of the engine, which wait for it."""
        context = self.model.checkpoint.shape.context
        if not 1 <= start < len(ids):
            raise InvalidRequest(f"scoring starts at token {start}, outside 1..{len(ids) - 1}", param="start")
        if window is not None:
            Ring(window).check_fits(self._pool.num_blocks, context)
        elif len(ids) > min(context, self._pool.num_blocks * BLOCK_TOKENS):
            raise ContextLengthExceeded(
                f"This model's maximum context length is {context} tokens and the KV pool holds "
                f"{self._pool.num_blocks * BLOCK_TOKENS}, but {len(ids)} are to be scored: context_length_exceeded",
                param="prompt",
            )

        def run() -> list[float]:
            pool = self._pool
            if window is None:  # what is found of ids[:start] ends before the first token whose logits are needed
                allocation = pool.admit(ids[:start], len(ids) - start, domain(SCORING))
            else:
                allocation = pool.admit_apart(Ring(window).blocks)
            if allocation is None:
                raise Overloaded(
                    f"scoring {len(ids)} tokens needs KV blocks that running requests hold; try again later"
                )
            try:
                scores = self.model.runner.score(ids, start, allocation.table, window, allocation.cached_tokens)
                if window is None:
                    pool.commit_filled(allocation, ids, len(ids) - 1)
                return scores
            finally:
                pool.release(allocation)

        return await asyncio.wrap_future(self._service.call(run))

    def cancel(self, request_id: str) -> None:
        """End a request within one step."""
        self._service.cancel(request_id)

    def count(self, text: str) -> int:
        """Tokens of `text`."""
        return len(self.tokenizer.encode(text))

    def close(self) -> None:
        """Cancel what is pending and end the engine's thread."""
        self._service.close()
