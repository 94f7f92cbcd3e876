"""Planned answers over the real engine: the same bits whatever else runs, and nothing left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from ghostkv.backends.embedded import EmbeddedBackend
from ghostkv.config import EngineConfig
from ghostkv.errors import ContextLengthExceeded
from ghostkv.model.load import load_model
from ghostkv.protocol.plan import topological_segment
from ghostkv.request import FinishReason, Message, Sampling
from ghostkv.session.turn import Finished, Output, Turn
from ghostkv.session.worker import Worker

CONFIG = EngineConfig(dtype="float32", max_sequences=16, step_tokens=64, default_max_tokens=450)
QUESTION = (Message("user", "Tell me about ships."),)
PLAN = topological_segment(
    "",
    [
        {"title": "Sails"},
        {"title": "Oars"},
        {"title": "Both", "depends_on": [0, 1]},
        {"title": "End", "depends_on": [2]},
    ],
)


@pytest.fixture(scope="module")
def open_worker(small_hf: Path) -> Iterator[Any]:
    backends = []

    def open_(blocks: int = 200) -> Worker:
        config = replace(CONFIG, kv_budget=blocks * 16 * 1024 * 2)
        backends.append(EmbeddedBackend(load_model(small_hf, config), config))
        return Worker.embedded(backends[-1], config, monotonic)

    yield open_
    for backend in backends:
        backend.close()


def asked(plan: Any, residency: str = "full", max_tokens: int = 160, **fields: Any) -> Turn:
    turn = Turn(
        "t", Sampling(temperature=0.9, seed=9), max_tokens, messages=QUESTION, residency=residency, ignore_eos=True
    )
    return replace(turn, plan=plan, **fields)


async def answer(worker: Worker, turn: Turn) -> tuple[list[int], str, Finished]:
    ids, text = [], ""
    async for event in worker.run(turn):
        if isinstance(event, Output):
            ids += [token.id for token in event.tokens]
            text += event.text
        elif isinstance(event, Finished):
            return ids, text, event
    raise AssertionError("no end")


@pytest.mark.parametrize("residency", ["full", "segment"])
def test_the_same_bits_whatever_else_runs(open_worker: Any, residency: str) -> None:
    turn = asked(PLAN, residency, 700 if residency == "segment" else 160)
    alone = asyncio.run(answer(open_worker(), turn))
    assert alone[2].completion_tokens == turn.max_tokens
    assert alone[2].reason is FinishReason.LENGTH
    assert alone[1].count("\n\n") >= 3

    async def crowded(worker: Worker) -> tuple[list[int], str, Finished]:
        others = [
            replace(turn, id=f"o{i}", sampling=Sampling(seed=i), max_tokens=20 + 30 * i, plan=PLAN if i % 2 else None)
            for i in range(6)
        ]
        found, *_ = await asyncio.gather(*(answer(worker, each) for each in (turn, *others)))
        return found

    for blocks in (60, 400):
        assert asyncio.run(crowded(open_worker(blocks)))[:2] == alone[:2]


def idle(worker: Worker) -> bool:
    backend: Any = worker.backend
    return not backend._pool.referenced


@pytest.mark.parametrize("how", ["closed", "cancelled", "stopped"])
def test_no_request_is_left_in_the_engine(open_worker: Any, how: str) -> None:
    worker = open_worker()

    async def interrupted() -> None:
        if how == "stopped":
            _, text, _ = await answer(worker, asked(PLAN, max_tokens=40))
            found = await answer(worker, asked(PLAN, max_tokens=300, stop=(text[3:6],)))
            assert found[2].reason is FinishReason.STOP
            assert found[1] == text[: text.index(text[3:6])]
            assert found[2].discarded_tokens > 0
        else:
            stream = worker.run(asked(PLAN, max_tokens=300))
            for _ in range(4):
                await anext(stream)
            if how == "closed":
                await stream.aclose()
            else:
                task = asyncio.ensure_future(answer(worker, asked(PLAN, max_tokens=300, id="u")))
                await asyncio.sleep(0.05)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await stream.aclose()
        for _ in range(200):
            if idle(worker):
                return
            await asyncio.sleep(0.01)
        raise AssertionError("blocks are still referenced")

    asyncio.run(interrupted())


def test_the_default_length_leaves_room_for_the_notes(open_worker: Any) -> None:
    worker = open_worker(400)
    for plan in (PLAN, "auto", "model"):
        turn = worker.checked(asked(plan, "full", 0, messages=(Message("user", "Write 3 chapters on ships."),)))
        _, _, end = asyncio.run(answer(worker, turn))
        assert end.completion_tokens <= turn.max_tokens
        assert end.plan is not None
        assert end.plan.source == ("given" if plan is PLAN else plan)


def test_a_plan_that_cannot_fit_is_refused(open_worker: Any) -> None:
    worker = open_worker()
    with pytest.raises(ContextLengthExceeded):
        asyncio.run(answer(worker, asked(PLAN, max_tokens=500)))
