"""`auto` over the real engine: `full` to the bit until its first flush, and a record gives the same bits again."""

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
from ghostkv.errors import ContextLengthExceeded, InvalidRequest
from ghostkv.model.load import load_model
from ghostkv.request import Decision, Message, Sampling
from ghostkv.session.turn import Finished, Output, SegmentRecord, Turn
from ghostkv.session.worker import Worker

CONFIG = EngineConfig(dtype="float32", threads=1, max_sequences=16, step_tokens=64)
TURN = Turn(
    "t",
    Sampling(temperature=0.9, seed=9, repetition_penalty=1.1, logprobs=2),
    max_tokens=420,
    messages=(Message("user", "Tell me about the 14 ships of Lisbon."),),
    ignore_eos=True,
)
EARLIER = tuple(Message(role, f"{role} {i} says much. " * 6) for i in range(3) for role in ("user", "assistant"))

Told = tuple[list[Any], Finished, list[SegmentRecord]]


@pytest.fixture(scope="module")
def workers(small_hf: Path) -> Iterator[dict[str, Worker]]:
    """With room for everything, and with room for about three sessions."""
    made = {}
    for name, blocks in (("roomy", 400), ("tight", 75)):
        config = replace(CONFIG, kv_budget=blocks * 16 * 1024 * 2)
        made[name] = Worker.embedded(EmbeddedBackend(load_model(small_hf, config), config), config, monotonic)
    yield made
    for worker in made.values():
        worker.close()


async def events(worker: Worker, turn: Turn) -> Told:
    tokens: list[Any] = []
    async for event in worker.run(worker.checked(turn)):
        if isinstance(event, Output):
            tokens += event.tokens
        elif isinstance(event, Finished):
            return tokens, event, list(event.segments)
    raise AssertionError("no end")


async def crowd(worker: Worker, turns: list[Turn]) -> list[Told]:
    return list(await asyncio.gather(*(events(worker, turn) for turn in turns)))


def told(worker: Worker, *turns: Turn) -> list[Told]:
    return asyncio.run(crowd(worker, list(turns)))


def flushes(found: Told) -> tuple[int, ...]:
    return tuple(mark.at for record in found[2] for mark in record.decisions if mark.decision is Decision.FLUSH)


@pytest.fixture(scope="module")
def pressed(workers: dict[str, Worker]) -> dict[str, Told]:
    """Eight answers at once where three fit."""
    turns = [replace(TURN, id=f"t{i}", sampling=replace(TURN.sampling, seed=i)) for i in range(8)]
    return dict(zip((turn.id for turn in turns), told(workers["tight"], *turns), strict=True))


def test_alone_it_is_full(workers: dict[str, Worker]) -> None:
    turn = replace(TURN, messages=(*EARLIER[:2], *TURN.messages), max_tokens=200)
    (auto,), (full,) = told(workers["roomy"], turn), told(workers["roomy"], replace(turn, residency="full"))
    assert auto[0] == full[0]
    assert auto[1].exact and len(auto[2]) == 1 and not flushes(auto)
    kept = [mark for record in auto[2] for mark in record.decisions]
    assert kept and {mark.decision for mark in kept} == {Decision.KEEP}
    assert [mark.at for mark in kept] == sorted({mark.at for mark in kept})


def test_under_pressure_it_is_full_until_its_first_flush(workers: dict[str, Worker], pressed: dict[str, Told]) -> None:
    flushed = {name: found for name, found in pressed.items() if flushes(found)}
    assert len(flushed) >= 4
    for name, found in flushed.items():
        seeded = replace(TURN.sampling, seed=int(name[1:]))
        ((full, _, _),) = told(workers["roomy"], replace(TURN, sampling=seeded, residency="full"))
        first = flushes(found)[0]
        assert found[0][:first] == full[:first]
        assert not found[1].exact and found[1].completion_tokens == 420
        assert [record.boundary.at for record in found[2] if record.boundary] == list(flushes(found))
        reasons = {mark.reason for record in found[2] for mark in record.decisions}
        assert reasons <= {"", "policy", "memory"}
    for found in (found for found in pressed.values() if not flushes(found)):
        assert found[1].exact


def test_a_record_gives_the_same_bits_again(workers: dict[str, Worker], pressed: dict[str, Told]) -> None:
    """On another pool, alone: ids and log-probabilities, digest and segments."""
    name, found = max(pressed.items(), key=lambda item: len(flushes(item[1])))
    seeded = replace(TURN.sampling, seed=int(name[1:]))
    ((tokens, end, records),) = told(workers["roomy"], replace(TURN, sampling=seeded, replay=flushes(found)))
    assert tokens == found[0]
    assert end.digest == found[1].digest and end.exact == found[1].exact
    assert [record.usage.prompt_tokens for record in records] == [record.usage.prompt_tokens for record in found[2]]
    ((other, different, _),) = told(workers["roomy"], replace(TURN, sampling=seeded, replay=()))
    assert other != found[0] and different.digest != end.digest


def test_a_prompt_that_does_not_fit_is_assembled_and_the_record_says_so(workers: dict[str, Worker]) -> None:
    early = tuple(
        Message(role, f"{role} {i} says a lot more. " * 9) for i in range(7) for role in ("user", "assistant")
    )
    turn = replace(TURN, messages=(*early, *TURN.messages), max_tokens=40)
    ((tokens, end, records),) = told(workers["tight"], turn)
    assert (records[0].decisions[0].reason, records[0].decisions[0].at) == ("prompt", 0)
    assert not end.exact and end.unseen_tokens > 0
    ((again, _, _),) = told(workers["roomy"], replace(turn, replay=(0,)))
    assert again == tokens
    with pytest.raises(ContextLengthExceeded):  # what was read whole elsewhere cannot be had again here
        told(workers["tight"], replace(turn, replay=()))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"replay": (5, 3)}, "in order"),
        ({"replay": (420,)}, "0 to 419"),
        ({"replay": (3,), "residency": "segment"}, "more than the request"),
        ({"replay": (3,), "strict": True}, "under strict"),
        ({"replay": (3,), "plan": "auto"}, "plan"),
    ],
)
def test_what_can_be_no_record(workers: dict[str, Worker], changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as refused:
        told(workers["roomy"], replace(TURN, sampling=replace(TURN.sampling, logprobs=None), **changes))
    assert refused.value.param == "ghostkv.replay"


def test_strict_is_full(workers: dict[str, Worker]) -> None:
    ((_, end, records),) = told(workers["tight"], replace(TURN, strict=True))
    assert end.exact and len(records) == 1 and not records[0].decisions
