"""What an upstream may do to us, and what becomes of it: drops, retries, faults, limits, text in place of ids."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest

from fakes import FixedResidency
from ghostkv.backends.openai_http import OpenAIBackend
from ghostkv.backends.upstream import Upstream
from ghostkv.config import EngineConfig
from ghostkv.errors import (
    ConfigError,
    ContextLengthExceeded,
    EngineFault,
    GhostError,
    InvalidRequest,
    Overloaded,
    Unsupported,
)
from ghostkv.protocol.rules import EndOfSequence, FixedBoundary, StopStrings
from ghostkv.request import Decision, Delta, FinishReason, GenerationState, Sampling
from services import until
from stub_upstream import (
    EOS,
    FOUND,
    PROMPT,
    TOKENIZER,
    StubUpstream,
    behind,
    collect,
    over,
    reason,
    segment,
    stubbed,
    text,
)

ENDS = (EndOfSequence(frozenset(TOKENIZER.eos_ids)),)


@pytest.mark.parametrize("per_chunk", [1, 3, 7, 100])
def test_what_comes_after_a_boundary_is_dropped_and_counted(per_chunk: int) -> None:
    stub = StubUpstream(per_chunk=per_chunk)
    flush_at_8 = FixedResidency(Decision.FLUSH)
    with over(stub) as backend:
        deltas = collect(backend, segment(20, (FixedBoundary(8),), flush_at_8))
        assert text(deltas) == "abcdefgh" and reason(deltas) is FinishReason.FLUSH
        assert [token.id for delta in deltas for token in delta.tokens] == list(b"abcdefgh")
        # of the chunk in which the boundary came
        assert backend.dropped == backend.snapshot().dropped_tokens == min(-(-8 // per_chunk) * per_chunk, 20) - 8
        assert until(lambda: stub.open == 0)


def test_a_kept_boundary_lets_the_stream_go_on() -> None:
    stub, keep = StubUpstream(), FixedResidency(Decision.KEEP, block=10)
    with over(stub) as backend:
        weighed = collect(backend, segment(30, (FixedBoundary(10),), keep, flushed_prompt=12))
        assert len(stub.bodies) == 1 and stub.bodies[0]["max_tokens"] == 30
        plain = collect(backend, segment(30, (FixedBoundary(10),), keep))
    assert text(weighed) == text(plain) == (stub.answer * 2)[:30].decode()
    # Where nothing is weighed only what is reserved is asked for: the same prompt, longer, each time.
    assert [(len(body["prompt"]), body["max_tokens"]) for body in stub.bodies[1:]] == [(6, 10), (16, 10), (26, 10)]


def test_the_context_of_the_upstream_bounds_what_is_kept() -> None:
    keep = FixedResidency(Decision.KEEP, block=100)
    with over(StubUpstream()) as backend:
        deltas = collect(backend, segment(1000, (FixedBoundary(100),), keep, flushed_prompt=12))
        mark = deltas[-1].boundary
        assert mark is not None and (mark.decision, mark.reason, mark.at) == (Decision.FLUSH, "context", 200)
        assert reason(deltas) is FinishReason.FLUSH
        with pytest.raises(ContextLengthExceeded, match="256 tokens, but the request needs 257 "):
            collect(backend, segment(251))


def test_an_upstream_that_gives_less_than_was_asked_for_is_asked_again() -> None:
    stub = StubUpstream(limit=7)
    with over(stub) as backend:
        deltas = collect(backend, segment(20))
    assert text(deltas) == "abcdefghijklmnopqrst" and reason(deltas) is FinishReason.LENGTH
    assert [len(body["prompt"]) for body in stub.bodies] == [6, 13, 20]


@pytest.mark.parametrize("names_ids", [True, False])
def test_an_end_is_seen_by_its_id_or_by_what_the_upstream_says(names_ids: bool) -> None:
    stub, found = StubUpstream(ends_after=5, names_ids=names_ids), replace(FOUND, token_ids=names_ids)
    with over(stub, found) as backend:
        deltas = collect(backend, segment(20, ENDS))
    assert text(deltas) == "abcde" and reason(deltas) is FinishReason.STOP
    assert deltas[-1].finish is not None and deltas[-1].finish.state.emitted == 5 + names_ids


def test_a_stop_string_over_chunks() -> None:
    with over(StubUpstream(per_chunk=2)) as backend:
        deltas = collect(backend, segment(20, (StopStrings.of(("ijk",)),)))
        assert text(deltas) == "abcdefgh" and reason(deltas) is FinishReason.STOP
        assert backend.dropped == 1


def test_only_text_both_ways() -> None:
    """Prompts as text with the control tokens by name, replies read by our own tokenizer."""
    stub = StubUpstream(takes_ids=False, names_ids=False, answer="né ".encode(), per_chunk=3)
    found = replace(FOUND, prompt_ids=False, token_ids=False)
    opening = TOKENIZER.control["<|im_start|>"]
    with over(stub, found) as backend:
        deltas = collect(backend, replace(segment(9), prompt=(opening, *b"user")))
        assert stub.bodies[-1]["prompt"] == "<|im_start|>user" and "return_token_ids" not in stub.bodies[-1]
        assert text(deltas)[:3] == "né "
        with pytest.raises(InvalidRequest, match="string of a special token"):
            collect(backend, replace(segment(9), prompt=(opening, *b"<|im_end|>")))


@pytest.mark.parametrize(("status", "headers"), [(429, {"retry-after": "0"}), (502, {}), (503, {}), (504, {})])
def test_another_try_before_the_first_token(status: int, headers: dict[str, str]) -> None:
    stub = StubUpstream(refusals=[(status, headers, {"error": {"message": "busy"}})] * 2)
    with over(stub) as backend:
        assert text(collect(backend, segment(4))) == "abcd"
    assert len(stub.bodies) == 3 and stub.bodies[0] == stub.bodies[2]


@pytest.mark.parametrize(
    ("status", "said", "error", "words", "tries"),
    [
        (503, {"error": {"message": "loading"}}, Overloaded, "503: loading", 4),
        (400, {"error": {"message": "bad x"}}, InvalidRequest, "400: bad x", 1),
        (400, {"message": "maximum context length is 9"}, ContextLengthExceeded, "maximum context length", 1),
        (422, {"detail": [{"msg": "no"}]}, InvalidRequest, "no", 1),
        (401, {"error": "bad key"}, EngineFault, "401: bad key", 1),
        (404, "nothing here", EngineFault, "404: nothing here", 1),
        (500, {"error": {"message": "boom"}}, EngineFault, "500: boom", 1),
    ],
)
def test_refusals_are_our_own_errors(status: int, said: Any, error: type[GhostError], words: str, tries: int) -> None:
    stub = StubUpstream(refusals=[(status, {}, said)] * 5)
    with over(stub) as backend:
        with pytest.raises(error, match=words) as raised:
            collect(backend, segment(4))
        assert type(raised.value) is error
        assert backend.stats.refused == isinstance(raised.value, InvalidRequest | Overloaded)
    assert len(stub.bodies) == tries


def test_an_upstream_that_is_away() -> None:
    with stubbed(StubUpstream()) as url:
        pass
    backend = behind([url])
    with pytest.raises(EngineFault, match=r"127.0.0.1:\d+ cannot be reached"):
        collect(backend, segment(4))
    backend.close()
    with pytest.raises(ConfigError, match="cannot be reached"):
        OpenAIBackend.connect([url], None, EngineConfig())
    for wrong in ("127.0.0.1:80", "ftp://x", "http://"):
        with pytest.raises(ConfigError, match="is no URL"):
            Upstream(wrong)


def test_cancelling_closes_the_stream() -> None:
    stub = StubUpstream(paused=threading.Event(), paused_after=1)
    with over(stub) as backend:

        async def run() -> list[Delta]:
            seen = []
            async for delta in backend.generate(segment(100)):
                seen.append(delta)
                backend.cancel("a")
            return seen

        deltas = asyncio.run(run())
        assert reason(deltas) is FinishReason.CANCELLED
        assert len(deltas) == 2
        assert until(lambda: stub.open == 0 and backend.snapshot().running == 0)


def test_a_request_in_our_own_line_can_be_cancelled_and_the_line_is_bounded() -> None:
    gate = threading.Event()
    stub = StubUpstream(paused=gate)
    with over(stub, max_sequences=1, max_waiting=1) as backend:

        async def one(name: str) -> FinishReason | None:
            found = [delta async for delta in backend.generate(replace(segment(3), id=name))]
            return reason(found)

        async def run() -> list[Any]:
            first = asyncio.create_task(one("a"))
            while backend.snapshot().running < 1:
                await asyncio.sleep(0.002)
            second = asyncio.create_task(one("b"))
            while backend.snapshot().waiting < 2:  # the first has no token yet either
                await asyncio.sleep(0.002)
            with pytest.raises(Overloaded):
                await one("c")
            begun = asyncio.create_task(one_begun())
            backend.cancel("b")
            ended = [await second]
            gate.set()
            return [*ended, await first, await begun]

        async def one_begun() -> FinishReason | None:
            """The next segment of an answer that has begun is never turned away."""
            asked = replace(segment(3), id="d", state=GenerationState(emitted=5))
            return reason([delta async for delta in backend.generate(asked)])

        assert asyncio.run(run()) == [FinishReason.CANCELLED, FinishReason.LENGTH, FinishReason.LENGTH]
        assert until(lambda: backend.snapshot().running == 0)


def test_what_is_asked_for_is_what_differs_from_neutral() -> None:
    stub = StubUpstream()
    with over(stub) as backend:
        collect(backend, segment(2))
        plain = {"model": "stub", "prompt": list(PROMPT), "max_tokens": 2, "temperature": 0.0, "stream": True}
        assert stub.bodies[-1] == plain | {"return_token_ids": True}
        sampling = Sampling(temperature=0.5, top_k=3, logit_bias=((97, -1.0),), min_tokens=9, terminators=(EOS, 98))
        state = GenerationState(emitted=5)
        asked = replace(segment(2), sampling=sampling, state=state, repeatable=True)
        collect(backend, asked)
        body = stub.bodies[-1]
        assert (body["top_k"], body["logit_bias"], body["temperature"]) == (3, {"97": -1.0}, 0.5)
        assert (body["min_tokens"], body["stop_token_ids"], body["ignore_eos"]) == (2, [98], True)
        collect(backend, replace(asked, state=GenerationState(emitted=6)))
        assert stub.bodies[-1]["seed"] != body["seed"]  # another segment begins with other numbers
        collect(backend, replace(asked, repeatable=False))
        assert "seed" not in stub.bodies[-1]
    with over(stub, replace(FOUND, lacks=frozenset({"top_k"}))) as backend, pytest.raises(Unsupported, match="top_k"):
        collect(backend, asked)
