"""What every backend owes the continuity loop: our own engine, that engine behind HTTP, vLLM, and the fake for tests.

vLLM is among them where it is installed, which needs an environment of its own: `benchmarks/vllm_backend.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from fakes import FakeBackend
from ghostkv.backends.base import Backend
from ghostkv.backends.embedded import EmbeddedBackend
from ghostkv.backends.openai_http import OpenAIBackend
from ghostkv.backends.remote import RemoteBackend
from ghostkv.backends.vllm import VllmBackend
from ghostkv.config import EngineConfig
from ghostkv.errors import ContextLengthExceeded, EngineFault, InvalidRequest
from ghostkv.protocol.rules import EndOfSequence, FixedBoundary, StopStrings
from ghostkv.request import Delta, FinishReason, GenerationState, PromptScores, Rule, Sampling, SegmentRequest
from ghostkv.residency import policy
from services import Service

CONFIG = EngineConfig(dtype="float32", kv_budget=2 * 2**20, max_sequences=8, step_tokens=32)
ENGINES = ["embedded", "upstream", *(["vllm"] if find_spec("vllm") else [])]
Engine = EmbeddedBackend | RemoteBackend


@pytest.fixture(scope="module")
def embedded(small_hf: Path) -> Iterator[EmbeddedBackend]:
    backend = EmbeddedBackend.load(small_hf, CONFIG)
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def upstream(small: Service, small_hf: Path) -> Iterator[OpenAIBackend]:
    """The same model, served by a server of ours."""
    backend = OpenAIBackend.connect([f"{small.url}/v1"], small_hf, CONFIG)
    yield backend
    backend.close()


def vllm_over(model: Path, config: EngineConfig) -> VllmBackend:
    return VllmBackend.start("small", model, config, kv_bytes=4 * 2**20, options=["--enforce-eager"])


@pytest.fixture(scope="module")
def vllm(small_hf: Path) -> Iterator[VllmBackend]:
    """The same model in vLLM."""
    backend = vllm_over(small_hf, CONFIG)
    yield backend
    backend.close()


@pytest.fixture(params=[*ENGINES, "fake"])
def backend(request: pytest.FixtureRequest) -> Backend:
    if request.param == "fake":
        return FakeBackend(["one ", "two ", "three. "])
    found: Backend = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.getfixturevalue(request.param)
    return found


def segment(tokens: int = 20, rules: tuple[Rule, ...] = (), residency: str = "full") -> SegmentRequest:
    sampling = Sampling(temperature=0.0, logprobs=0)
    state = GenerationState(rules=rules)
    return SegmentRequest("a", tuple(range(40, 80)), sampling, state, policy(residency), tokens)


def collect(backend: Backend, request: SegmentRequest) -> list[Delta]:
    async def run() -> list[Delta]:
        return [delta async for delta in backend.generate(request)]

    return asyncio.run(run())


def test_the_last_delta_and_only_it_has_the_finish(backend: Backend) -> None:
    deltas = collect(backend, segment())
    finishes = [delta.finish for delta in deltas]
    assert finishes[-1] is not None and not any(finishes[:-1])
    assert finishes[-1].reason is FinishReason.LENGTH
    tokens = [token for delta in deltas for token in delta.tokens]
    assert len(tokens) == 20 == finishes[-1].usage.generated_tokens == finishes[-1].state.emitted
    assert all(token.logprob is not None for token in tokens)
    assert finishes[-1].usage.prompt_tokens == 40


def test_a_flush_and_its_state_continue_the_text(backend: Backend) -> None:
    whole = collect(backend, segment(20, (FixedBoundary(100),)))
    first = collect(backend, segment(20, (FixedBoundary(8),), "segment"))
    finish = first[-1].finish
    assert finish is not None and finish.reason is FinishReason.FLUSH and finish.state.emitted == 8
    seen = [token.id for delta in first for token in delta.tokens]
    assert seen == [token.id for delta in whole for token in delta.tokens][:8]
    following = replace(
        segment(12), id="b", prompt=(*segment().prompt, *seen), state=finish.state, residency=policy("full")
    )
    rest = collect(backend, following)
    assert "".join(d.text for d in first + rest) == "".join(d.text for d in whole)


def test_rules_stop_it(backend: Backend) -> None:
    plain = collect(backend, segment())
    third = [token.id for delta in plain for token in delta.tokens][2]
    at = [token.id for delta in plain for token in delta.tokens].index(third)
    ended = collect(backend, segment(20, (EndOfSequence(frozenset({third})),)))
    assert ended[-1].finish is not None and ended[-1].finish.reason is FinishReason.STOP
    assert ended[-1].finish.usage.generated_tokens == at + 1
    text = "".join(delta.text for delta in plain)
    stopped = collect(backend, segment(20, (StopStrings.of((text[2:5],)),)))
    assert "".join(delta.text for delta in stopped) == text[: text.find(text[2:5])]


def test_a_closed_iterator_leaves_nothing_behind(backend: Backend) -> None:
    async def leave_early() -> None:
        stream: Any = backend.generate(segment(400))
        async for _ in stream:
            break
        await stream.aclose()
        async for delta in backend.generate(segment(3)):  # the same id is free again
            assert delta.finish is None or delta.finish.reason is FinishReason.LENGTH

    asyncio.run(leave_early())


def test_cancelling_an_unknown_request_is_nothing(backend: Backend) -> None:
    backend.cancel("nobody")
    assert collect(backend, segment(2))[-1].finish is not None


def test_a_segment_that_can_never_fit_is_refused(engine: Engine) -> None:
    with pytest.raises(ContextLengthExceeded, match=r"length is 512 tokens, but the request needs 640 "):
        collect(engine, segment(600))
    assert engine.stats.refused >= 1


def test_what_was_asked_and_answered_is_counted(engine: Engine) -> None:
    before = engine.snapshot()
    collect(engine, segment(20, (FixedBoundary(8),), "segment"))
    after = engine.snapshot()
    assert after.generated_tokens - before.generated_tokens == 8
    assert after.prompt_tokens - before.prompt_tokens == 40
    assert after.flushed - before.flushed == 1
    assert after.running == after.waiting == 0


def test_an_upstream_gives_the_tokens_of_the_engine_behind_it(
    embedded: EmbeddedBackend, upstream: OpenAIBackend
) -> None:
    asked = segment(30)
    for request in (asked, replace(asked, sampling=replace(asked.sampling, logprobs=3))):
        own, others = collect(embedded, request), collect(upstream, request)
        assert [delta.tokens for delta in own] == [delta.tokens for delta in others]
        assert "".join(delta.text for delta in own) == "".join(delta.text for delta in others)


@pytest.mark.parametrize("tokens", [0, 3])
def test_a_prompts_own_log_probabilities(backend: Backend, tokens: int) -> None:
    asked = replace(segment(tokens), scores=PromptScores(start=5))
    deltas = collect(backend, asked)
    scored = [token for delta in deltas for token in delta.prompt]
    assert [token.id for token in scored] == list(asked.prompt[5:])
    assert all(token.logprob is not None and token.logprob <= 0 for token in scored)
    finish = deltas[-1].finish
    assert finish is not None and finish.reason is FinishReason.LENGTH
    assert finish.state.emitted == finish.usage.generated_tokens == sum(len(delta.tokens) for delta in deltas) == tokens


def test_scores_are_the_log_probabilities_of_decoding(engine: Engine) -> None:
    tokens = [token for delta in collect(engine, segment(20)) for token in delta.tokens]
    ids = [*segment().prompt, *(token.id for token in tokens)]
    scores = asyncio.run(engine.score(ids, 40))
    beside = 1e-4 if isinstance(engine, VllmBackend) else 0.0  # whose numbers depend on how many tokens are in a step
    assert scores == pytest.approx([token.logprob for token in tokens], abs=beside, rel=0)
    assert asyncio.run(engine.score(ids, 1))[39:] == pytest.approx(scores, abs=beside, rel=0)


def test_a_score_is_the_same_where_its_prefix_is_cached(embedded: EmbeddedBackend) -> None:
    ids = [3 + (7 * i) % 250 for i in range(120)]
    apart = [asyncio.run(embedded.score([5, *ids], start)) for start in (30, 100)]
    embedded._pool.drop_cached()
    fresh = {start: asyncio.run(embedded.score(ids, start)) for start in (1,)}
    cached = embedded._pool.cached
    assert cached == 119 // 16  # of everything that was computed, the whole blocks
    for start in (2, 16, 17, 33, 100, 119):
        assert asyncio.run(embedded.score(ids, start)) == fresh[1][start - 1 :]
    assert embedded._pool.cached == cached
    assert apart[1] == apart[0][70:]
    alike = [*ids[:110], 9, 9, 9]  # another end after a common prefix
    found = asyncio.run(embedded.score(alike, 105))
    embedded._pool.drop_cached()
    assert found == asyncio.run(embedded.score(alike, 105))


def test_scoring_outside_the_text_is_refused(engine: Engine) -> None:
    for start in (0, 3, 9):
        with pytest.raises(InvalidRequest, match="scoring starts"):
            asyncio.run(engine.score([1, 2, 3], start))
    with pytest.raises(ContextLengthExceeded):
        asyncio.run(engine.score([1] * 600, 5))


@pytest.mark.parametrize("kind", ENGINES[1:])
def test_requests_beyond_the_limit_wait_their_turn(kind: str, small: Service, small_hf: Path) -> None:
    config = replace(CONFIG, max_sequences=2, step_tokens=2)
    backend: RemoteBackend = (
        vllm_over(small_hf, config) if kind == "vllm" else OpenAIBackend.connect([small.url], small_hf, config)
    )
    most = 0

    async def one(number: int) -> int:
        nonlocal most
        async for delta in backend.generate(replace(segment(12), id=str(number))):
            most = max(most, backend.snapshot().running)
            if delta.finish is not None:
                return delta.finish.usage.generated_tokens
        return 0

    async def run() -> list[int]:
        return await asyncio.gather(*map(one, range(7)))

    assert asyncio.run(run()) == [12] * 7
    assert most == 2
    backend.close()


@pytest.mark.parametrize("kind", ENGINES)
def test_after_close_every_request_is_answered(kind: str, small: Service, small_hf: Path) -> None:
    backend: Engine
    if kind == "embedded":
        backend = EmbeddedBackend.load(small_hf, CONFIG)
    elif kind == "vllm":
        backend = vllm_over(small_hf, CONFIG)
    else:
        backend = OpenAIBackend.connect([small.url], small_hf, CONFIG)
    backend.close()
    assert not backend.healthy
    with pytest.raises(EngineFault):
        collect(backend, segment())
