"""ghostkv's own engine as a backend: the model's runner under the scheduler, on the engine's thread."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from pathlib import Path

from ghostkv.backends.base import Capabilities, Load, Stats
from ghostkv.backends.scoring import scored, scoring_request
from ghostkv.config import EngineConfig
from ghostkv.engine.admission import Limits
from ghostkv.engine.clock import MonotonicClock
from ghostkv.engine.drafter import drafter
from ghostkv.engine.engine import Engine
from ghostkv.engine.pause import PauseDecision
from ghostkv.engine.scheduler import Scheduler
from ghostkv.engine.service import AsyncEngine
from ghostkv.engine.speculation import Speculation
from ghostkv.engine.stats import EngineStats, StepTrace
from ghostkv.engine.step_cost import StepCost
from ghostkv.errors import EngineFault
from ghostkv.kv.pool import BlockPool
from ghostkv.model.load import Announce, LoadedModel, load_model
from ghostkv.model.threads import on_passing_thread
from ghostkv.request import Delta, SegmentRequest, Window
from ghostkv.step import BLOCK_TOKENS
from ghostkv.text.detokenizer import Detokenizer
from ghostkv.text.template import ChatTemplate
from ghostkv.text.tokenizer import Tokenizer

_log = logging.getLogger(__name__)


class EmbeddedBackend:
    """`backends.base.Backend` over a LoadedModel."""

    def __init__(
        self, model: LoadedModel, config: EngineConfig, trace: Callable[[StepTrace], None] | None = None
    ) -> None:
        self.model = model
        self._pool = BlockPool(model.blocks, identity=model.manifest)
        shape = model.checkpoint.shape
        limits = Limits.of(config, shape.context, shape.shortest_window)
        detokenizer = Detokenizer(model.checkpoint.tokenizer)
        speculation = Speculation(drafter(config.speculation), cost=StepCost(model.tile_rows))
        scheduler = Scheduler(self._pool, limits, detokenizer, speculation)
        self._engine = Engine(scheduler, model.runner, MonotonicClock(), trace)
        self._service = AsyncEngine(self._engine)
        self._scorings = count()

    @classmethod
    def load(
        cls,
        path: Path,
        config: EngineConfig,
        announce: Announce = lambda _: None,
        trace: Callable[[StepTrace], None] | None = None,
    ) -> EmbeddedBackend:
        """Load the model at `path` and start its engine; raises what `load_model` raises."""
        return cls(on_passing_thread(lambda: load_model(path, config, announce)), config, trace)

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

    def found_tokens(self, ids: Sequence[int], domain: str) -> int:
        """How many tokens at the beginning of a prompt of that domain have KV in the pool, about now."""
        return len(self._pool.find(ids, domain)) * BLOCK_TOKENS

    def snapshot(self) -> Stats:
        """What the engine holds and has counted, about now."""
        return Stats.of(self._engine)

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
            grammar=True,
            max_window=self.model.checkpoint.shape.shortest_window,
        )

    def generate(self, request: SegmentRequest) -> AsyncGenerator[Delta, None]:
        """Stream one segment."""
        return self._service.generate(request)

    async def score(self, ids: Sequence[int], start: int, window: Window | None = None) -> list[float]:
        """Log-probabilities of ids[start:], as an engine request among others."""
        return await scored(self.generate(scoring_request(next(self._scorings), ids, start, window)))

    def cancel(self, request_id: str) -> None:
        """End a request within one step."""
        self._service.cancel(request_id)

    def pause(self, request: SegmentRequest, ids: Sequence[int]) -> None:
        """Keep or drop the session's blocks until it comes back; decided on the engine's thread."""
        with suppress(EngineFault):  # where nothing is served any more nothing is kept
            self._service.call(lambda: self._engine.pause(request, tuple(ids))).add_done_callback(_log_failure)

    def count(self, text: str) -> int:
        """Tokens of `text`."""
        return len(self.tokenizer.encode(text))

    def close(self) -> None:
        """Cancel what is pending and end the engine's thread."""
        self._service.close()


def _log_failure(done: Future[PauseDecision]) -> None:
    """Nobody waits for it, and it must not be lost."""
    if not done.cancelled() and (error := done.exception()) is not None:
        _log.error("a pause could not be decided", exc_info=error)
