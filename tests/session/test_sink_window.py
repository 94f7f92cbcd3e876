"""`sink_window` from a turn to its end, over the real engine: what it may do that others may not, and what it says."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from pydoc_data.topics import topics
from time import monotonic

import pytest

from ghostkv.backends.embedded import EmbeddedBackend
from ghostkv.config import EngineConfig
from ghostkv.errors import ConfigError, ContextLengthExceeded, InvalidRequest
from ghostkv.kv.ring import Ring
from ghostkv.request import FinishReason, Message, Sampling, Window
from ghostkv.residency import Policy, policy
from ghostkv.residency.sink_window import SinkWindow
from ghostkv.session.fit import check_pool
from ghostkv.session.turn import Finished, Output, SegmentRecord, Turn
from ghostkv.session.worker import Worker

BLOCK_BYTES = 16 * 1024 * 2
WINDOW = Window(4, 60)
BLOCKS = Ring(WINDOW).blocks
CONFIG = EngineConfig(
    dtype="float32", kv_budget=BLOCKS * BLOCK_BYTES, max_sequences=4, step_tokens=64, max_session_tokens=900
)
TURN = Turn("t", Sampling(temperature=0.0), max_tokens=20, ignore_eos=True, residency="sink_window")


def small(name: str) -> Policy:
    return SinkWindow(sinks=4, window=60) if name == "sink_window" else policy(name)


@pytest.fixture(scope="module")
def worker(small_hf: Path) -> Iterator[Worker]:
    """A context of 512 tokens, and a pool of exactly one window's blocks."""
    backend = EmbeddedBackend.load(small_hf, CONFIG)
    made = Worker.embedded(backend, CONFIG, monotonic)
    yield replace(made, context=replace(made.context, policies=small))
    backend.close()


def answered(worker: Worker, turn: Turn) -> tuple[list[int], Finished]:
    async def run() -> tuple[list[int], Finished]:
        ids: list[int] = []
        async for event in worker.run(worker.checked(turn)):
            if isinstance(event, Output):
                ids += [token.id for token in event.tokens]
            elif isinstance(event, Finished):
                return ids, event
            else:
                assert isinstance(event, SegmentRecord)
        raise AssertionError("no end")

    return asyncio.run(run())


@pytest.mark.parametrize("prompt", [10, 600])
def test_an_answer_past_context_and_pool_in_one_segment(worker: Worker, prompt: int) -> None:
    assert (worker.backend.capabilities().max_context, BLOCKS * 16) == (512, 112)
    turn = replace(TURN, prompt=tuple(i % 250 + 3 for i in range(prompt)), max_tokens=620 - prompt + 20)
    ids, end = answered(worker, turn)
    assert len(ids) == end.completion_tokens == turn.max_tokens and end.reason is FinishReason.LENGTH
    assert not end.exact and end.unseen_tokens == 0
    (segment,) = end.segments
    assert segment.usage.resident_tokens == WINDOW.size
    assert segment.live_kv_bytes == 4 * BLOCK_BYTES
    assert answered(worker, turn)[0] == ids


def test_a_short_one_is_not_called_exact_either(worker: Worker) -> None:
    _, end = answered(worker, replace(TURN, prompt=(5, 6, 7), max_tokens=2))
    assert not end.exact and end.segments[0].usage.resident_tokens == 4


def test_a_conversation_longer_than_the_context(worker: Worker) -> None:
    messages = (Message("user", "word " * 140), Message("assistant", "yes"), Message("user", "and?"))
    assert worker.prompt_tokens(replace(TURN, messages=messages)) > 512
    _, end = answered(worker, replace(TURN, messages=messages))
    assert end.unseen_tokens == 0 and end.prompt_tokens > 512
    with pytest.raises(ContextLengthExceeded):
        answered(worker, replace(TURN, messages=messages, residency="full"))


def test_the_session_is_the_limit(worker: Worker) -> None:
    fits = replace(TURN, prompt=(5,) * 880)
    assert worker.checked(fits) == fits
    assert worker.checked(replace(fits, max_tokens=0)).max_tokens == 20
    with pytest.raises(ContextLengthExceeded, match=r"at most 900 tokens .* need 901") as refused:
        worker.checked(replace(fits, max_tokens=21))
    assert refused.value.param == "prompt"
    far_too_long = "x" * (901 * 4 * worker.tokenizer.longest_token)
    with pytest.raises(ContextLengthExceeded, match="need 901"):
        worker.encode(far_too_long, "sink_window")
    with pytest.raises(ContextLengthExceeded, match="length is 512 tokens"):
        worker.encode(far_too_long, "full")


def test_a_window_that_the_pool_cannot_hold(worker: Worker) -> None:
    wider = replace(worker, context=replace(worker.context, policies=lambda _: SinkWindow(sinks=4, window=65)))
    with pytest.raises(InvalidRequest, match="needs 8 KV blocks") as refused:
        answered(wider, replace(TURN, prompt=(5,)))
    assert refused.value.param == "ghostkv.residency"
    with pytest.raises(ConfigError, match=r"'sink_window'.*needs 8 KV blocks"):
        check_pool(SinkWindow(sinks=4, window=65), worker.backend.capabilities())
    check_pool(SinkWindow(sinks=4, window=60), worker.backend.capabilities())


def test_scores_past_context_and_pool(worker: Worker) -> None:
    ids = [i * i % 250 + 3 for i in range(600)]
    scores = asyncio.run(worker.backend.score(ids, 1, WINDOW))
    assert len(scores) == 599 and all(score < 0 for score in scores)
    assert asyncio.run(worker.backend.score(ids, 400, WINDOW)) == scores[399:]
    with pytest.raises(ContextLengthExceeded):
        asyncio.run(worker.backend.score(ids, 1))
    with pytest.raises(InvalidRequest, match="needs 8 KV blocks"):
        asyncio.run(worker.backend.score(ids, 1, Window(4, 65)))


def test_perplexity_needs_the_sinks(smollm2_path: Path) -> None:
    """StreamingLLM's finding: with a few first tokens kept, a window costs little; without them it falls apart."""
    config = EngineConfig(kv_budget=32 * 2**20, max_sequences=64, step_tokens=64)
    backend = EmbeddedBackend.load(smollm2_path, config)
    try:
        ids = backend.tokenizer.encode(topics["specialnames"])[:1000]

        def loss(window: Window | None) -> float:
            return -sum(asyncio.run(backend.score(ids, 200, window))) / (len(ids) - 200)

        full, sinks, none = loss(None), loss(Window(4, 128)), loss(Window(0, 128))
    finally:
        backend.close()
    assert full < sinks < full + 0.5
    assert none > sinks + 0.5
