"""Real servers on real sockets: over a small random model, and over an engine whose tokens are scripted."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

import httpx2
import openai

from fakes import CHATML_TEMPLATE, Script, ScriptedRunner, byte_tokenizer
from ghostkv.backends.base import Capabilities, Stats
from ghostkv.config import EngineConfig, ServerConfig
from ghostkv.engine.admission import Limits
from ghostkv.engine.clock import MonotonicClock
from ghostkv.engine.engine import Engine
from ghostkv.engine.scheduler import Scheduler
from ghostkv.engine.service import AsyncEngine
from ghostkv.kv.pool import BlockPool
from ghostkv.request import Delta, SegmentRequest, Window
from ghostkv.server.app import build_app
from ghostkv.server.serve import Server, http_config, listen
from ghostkv.server.serving import Serving
from ghostkv.session.context import TurnContext
from ghostkv.session.worker import Worker
from ghostkv.step import BLOCK_TOKENS, StepPlan, StepResult
from ghostkv.text.detokenizer import Detokenizer
from ghostkv.text.template import ChatTemplate
from ghostkv.text.tool_template import ToolTemplate

TOKENIZER = byte_tokenizer()
CONTEXT = 1024
TEMPLATE = ChatTemplate(CHATML_TEMPLATE, TOKENIZER)
TOOL_TEMPLATE = ToolTemplate(TEMPLATE, TOKENIZER)


class PacedRunner(ScriptedRunner):
    """Takes real time for a step."""

    def run(self, plan: StepPlan) -> StepResult:
        time.sleep(self._seconds)
        return super().run(plan)


class ScriptedBackend:
    """A whole engine, scheduler and pool included, whose model is a script."""

    def __init__(
        self,
        script: Script,
        *,
        blocks: int = 256,
        seconds: float = 0.0,
        max_waiting: int = 64,
        max_sequences: int = 128,
        context: int = CONTEXT,
    ) -> None:
        self.pool = BlockPool(blocks)
        self.context = context
        limits = Limits(context, max_waiting=max_waiting, max_sequences=max_sequences)
        scheduler = Scheduler(self.pool, limits, Detokenizer(TOKENIZER))
        self.engine = Engine(scheduler, PacedRunner(blocks, script, seconds=seconds), MonotonicClock())
        self.service = AsyncEngine(self.engine)

    def capabilities(self) -> Capabilities:
        budget = self.pool.num_blocks * BLOCK_TOKENS
        return Capabilities(True, True, True, True, False, True, self.context, 1, budget, BLOCK_TOKENS, grammar=True)

    def generate(self, request: SegmentRequest) -> AsyncGenerator[Delta, None]:
        return self.service.generate(request)

    async def score(self, ids: Sequence[int], start: int, window: Window | None = None) -> list[float]:
        raise NotImplementedError

    def cancel(self, request_id: str) -> None:
        self.service.cancel(request_id)

    def pause(self, request: SegmentRequest, ids: Sequence[int]) -> None:
        self.service.call(lambda: self.engine.pause(request, tuple(ids)))

    def count(self, text: str) -> int:
        return len(TOKENIZER.encode(text))


class Service:
    """A server at `url` over `worker`."""

    def __init__(self, bound: socket.socket, worker: Worker, server: Server) -> None:
        self.bound = bound
        self.url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        self.worker = worker
        self.server = server
        self.http = httpx2.Client(base_url=self.url, timeout=20)
        self.client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=20)

    def close(self) -> None:
        self.http.close()
        self.client.close()


@contextmanager
def serving(
    worker: Worker, *, port: int = 0, drain_s: float = 0.2, limits: ServerConfig | None = None, **beside: Any
) -> Iterator[Service]:
    bound = listen("127.0.0.1", port)
    ready = threading.Event()
    served = Serving(worker, config=replace(limits or ServerConfig(), drain_s=drain_s), **beside)
    server = Server(http_config(build_app(served), drain_s), served, ready.set)
    thread = threading.Thread(target=server.run, args=([bound],), daemon=True)
    thread.start()
    assert ready.wait(10)
    service = Service(bound, worker, server)
    try:
        yield service
    finally:
        service.close()
        server.should_exit = True
        thread.join(10)
        bound.close()
        worker.close()
        assert not thread.is_alive()


def scripted_worker(backend: ScriptedBackend, config: EngineConfig | None = None) -> Worker:
    return Worker(
        name="scripted",
        manifest="0" * 32,
        backend=backend,
        tokenizer=TOKENIZER,
        context=TurnContext(
            TOOL_TEMPLATE.render_ids,
            TOKENIZER.encode,
            TOKENIZER.token_bytes,
            TOKENIZER.eos_ids,
            time.perf_counter,
            tool_template=TOOL_TEMPLATE.render_ids,
        ),
        config=config or EngineConfig(),
        healthy=lambda: backend.service.healthy,
        close=backend.service.close,
        stats=lambda: Stats.of(backend.engine),
    )


class Scripted(Protocol):
    """Starts a server over a script."""

    def __call__(
        self,
        script: Script,
        *,
        config: EngineConfig | None = None,
        limits: ServerConfig | None = None,
        drain_s: float = 0.2,
        **options: Any,
    ) -> Service: ...


def saying(text: str, *, end: str = "<|im_end|>") -> Script:
    """A script that answers with the bytes of `text`, one token each, then `end`, over and over.

    A script sees tokens and no count, so it finds its place after the last line that the template writes.
    """
    data = list(text.encode())
    opening = TOKENIZER.encode("assistant\n")

    def script(history: tuple[int, ...], draw: object) -> int:
        start = next(
            at + len(opening) for at in range(len(history), -1, -1) if list(history[at : at + len(opening)]) == opening
        )
        done = len(history) - start
        return data[done] if done < len(data) else TOKENIZER.control[end]

    return script


def answering(answer: Callable[[str], str]) -> Script:
    """A script whose answer depends on its prompt, which it is shown as text without control tokens."""
    opening = [TOKENIZER.control["<|im_start|>"], *TOKENIZER.encode("assistant\n")]

    def script(history: tuple[int, ...], draw: Any) -> int:
        tokens = list(history)
        start = next(
            at + len(opening) for at in range(len(tokens), -1, -1) if tokens[at : at + len(opening)] == opening
        )
        return saying(answer(TOKENIZER.decode(tokens[:start])))(history, draw)

    return script


def until(condition: Callable[[], bool], seconds: float = 15.0) -> bool:
    """Wait for a condition, at most so long, which is a watchdog and no measure; whether it holds."""
    end = time.perf_counter() + seconds
    while not condition() and time.perf_counter() < end:
        time.sleep(0.01)
    return condition()
