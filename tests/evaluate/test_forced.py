"""Forcing the ids that an engine generated gives the same segments, prompts and state as generating them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import ByteDetokenizer, FakeBackend
from ghostkv.backends.base import Backend
from ghostkv.backends.embedded import EmbeddedBackend
from ghostkv.config import EngineConfig
from ghostkv.engine.text_gate import Detokenizer
from ghostkv.evaluate.forced import forced
from ghostkv.request import FinishReason, Message, Sampling
from ghostkv.residency import SegmentBudget, policy
from ghostkv.residency.segment import Segment
from ghostkv.session.chain import Carried, Chain
from ghostkv.session.context import TurnContext
from ghostkv.session.turn import Turn
from ghostkv.session.worker import Worker
from ghostkv.text.detokenizer import Detokenizer as RealDetokenizer

STORY = (
    "Aster-7 woke on Sol 42. The storm rose over the ridge; it was 21.4 °C.\n\n- one, two\n- three\n\nNobody spoke. "
    * 12
)
PIECES = re.findall(r" ?\w+|\S|\n| ", STORY)
SMALL = Segment(budget=SegmentBudget(target=12, cap=20, tail=10, state=30, recall=20))


@dataclass(frozen=True)
class Real:
    """One segment as an engine ran it."""

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    reason: FinishReason
    carried: Carried


async def really(chain: Chain, backend: Backend) -> list[Real]:
    """A turn in fifteen lines."""
    carried, found = chain.begin(), list[Real]()
    while True:
        assembled = chain.assemble(carried)
        request = chain.request(len(found), assembled, carried)
        ids: list[int] = []
        async for delta in backend.generate(request):
            ids += [token.id for token in delta.tokens]
            finish = delta.finish
        assert finish is not None
        carried = chain.merge(carried, chain.extract(carried, ids, finish), finish, assembled)
        found.append(Real(assembled.ids, tuple(ids), finish.reason, carried))
        if finish.reason is not FinishReason.FLUSH:
            return found


def check(chain: Chain, backend: Backend, detokenizer: Detokenizer, cut: int | None = None) -> list[Real]:
    real = asyncio.run(really(chain, backend))
    ids = [token_id for segment in real for token_id in segment.ids]
    again = list(forced(chain, ids, detokenizer))
    assert [(s.assembled.ids, s.ids, s.reason, s.carried) for s in again] == [
        (s.prompt, s.ids, s.reason, s.carried) for s in real
    ]
    if cut is not None:  # fewer ids: the same up to there, and the last segment is open
        part = list(forced(chain, ids[: cut % len(ids)], detokenizer))
        assert part[:-1] == again[: len(part) - 1]
        assert part[-1].reason is None and part[-1].assembled == again[len(part) - 1].assembled
        assert sum((s.ids for s in part), ()) == tuple(ids[: cut % len(ids)])
    return real


def context(backend: FakeBackend, ends: Sequence[str] = ()) -> TurnContext:
    return TurnContext(
        template=lambda messages: [ord(c) for m in messages for c in f"{m.role}: {m.content}\n"] + [9],
        encode=lambda text: [ord(c) for c in text],
        token_bytes=backend.token_bytes,
        eos_ids=tuple(backend.ids[piece.encode()] for piece in ends),
        clock=monotonic,
        policies=lambda name: SMALL if name == "segment" else policy(name),
    )


@settings(max_examples=40)
@given(
    residency=st.sampled_from(["segment", "full"]),
    tokens=st.integers(1, 130),
    start=st.integers(0, 60),
    stop=st.sampled_from([(), ("spoke",), ("42. The",)]),
    ends=st.sampled_from([(), ("-",), ("Nobody",)]),
    cut=st.integers(0, 200),
)
def test_as_on_a_fake_engine(
    residency: str, tokens: int, start: int, stop: tuple[str, ...], ends: tuple[str, ...], cut: int
) -> None:
    pieces = PIECES[start:] + PIECES[:start]
    backend = FakeBackend(pieces)
    known = tuple(end for end in ends if end.encode() in backend.ids)
    turn = Turn(
        "t",
        Sampling(),
        tokens,
        messages=(Message("user", "a story"),),
        stop=stop,
        residency=residency,
        ignore_eos=False,
    )
    chain = Chain.of(turn, context(backend, known), backend.capabilities())
    words = {token_id: piece for piece, token_id in backend.ids.items()}
    check(chain, backend, ByteDetokenizer(words), cut)


@pytest.fixture(scope="module")
def worker(small_hf: Path) -> Iterator[Worker]:
    config = EngineConfig(dtype="float32", max_sequences=16, step_tokens=64, kv_budget=2**22)
    backend = EmbeddedBackend.load(small_hf, config)
    yield Worker.embedded(backend, config, monotonic)
    backend.close()


@pytest.mark.parametrize("temperature", [0.0, 1.1])
def test_as_on_the_real_engine(worker: Worker, temperature: float) -> None:
    context = replace(worker.context, policies=lambda _: SMALL)
    turn = Turn(
        "t",
        Sampling(temperature=temperature, seed=4),
        150,
        messages=(Message("user", "Tell me about the 14 ships of Lisbon."),),
        ignore_eos=True,
    )
    chain = Chain.of(turn, context, worker.backend.capabilities())
    assert len(check(chain, worker.backend, RealDetokenizer(worker.tokenizer), cut=77)) >= 5


def test_fifty_flushes_without_decoding(worker: Worker) -> None:
    context = replace(worker.context, policies=lambda _: SMALL)
    ids = worker.tokenizer.encode(STORY)[:1100]
    turn = Turn("t", Sampling(), len(ids) + 1, messages=(Message("user", "Go on."),), ignore_eos=True)
    chain = Chain.of(turn, context, worker.backend.capabilities())
    segments = list(forced(chain, ids, RealDetokenizer(worker.tokenizer)))
    assert len(segments) > 50
    assert {segment.reason for segment in segments[:-1]} == {FinishReason.FLUSH} and segments[-1].reason is None
    head = len(worker.context.template(turn.messages))
    assert max(len(segment.assembled.ids) for segment in segments) <= head + SMALL.budget.carried
