"""Segments over the real engine: boundaries leave no trace under `full`; `segment` depends on the request alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from ghostkv.backends.embedded import EmbeddedBackend
from ghostkv.config import EngineConfig
from ghostkv.errors import ContextLengthExceeded
from ghostkv.model.load import LoadedModel, load_model
from ghostkv.protocol.rules import FixedBoundary
from ghostkv.request import BoundaryView, Decision, Message, Sampling, Window
from ghostkv.residency import Policy, SegmentBudget, policy
from ghostkv.session.chain import Chain
from ghostkv.session.turn import Finished, Output, SegmentRecord, Turn
from ghostkv.session.worker import Worker

CONFIG = EngineConfig(dtype="float32", max_sequences=16, step_tokens=64)
QUESTION = (Message("user", "Tell me about the 14 ships of Lisbon."),)
EARLIER = (
    Message("user", "Who was Nuno?"),
    Message("assistant", "Nuno was the captain of the ship Argos. It had 3 masts."),
)

TURN = Turn("t", Sampling(temperature=0.9, seed=9), max_tokens=500, messages=QUESTION, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class Sixteen:
    """Keeps everything, but reserves 16 tokens at a time: every boundary needs `extend`."""

    name: str = "sixteen"
    budget: SegmentBudget | None = None
    visible: Window | None = None

    def reserve(self, remaining: int) -> int:
        return 16

    def at_boundary(self, view: BoundaryView) -> Decision:
        return Decision.KEEP


def find(name: str) -> Policy:
    return Sixteen() if name == "sixteen" else policy(name)


@pytest.fixture(scope="module")
def open_worker(small_hf: Path) -> Iterator[Any]:
    backends = []

    def open_(blocks: int = 200) -> Worker:
        model: LoadedModel = load_model(small_hf, replace(CONFIG, kv_budget=blocks * 16 * 1024 * 2))
        assert model.blocks == blocks
        backends.append(EmbeddedBackend(model, CONFIG))
        worker = Worker.embedded(backends[-1], CONFIG, monotonic)
        return replace(worker, context=replace(worker.context, policies=find))

    yield open_
    for backend in backends:
        backend.close()


async def events(worker: Worker, turn: Turn) -> tuple[list[Any], str, Finished, list[SegmentRecord]]:
    tokens: list[Any] = []
    text, records, end = "", [], None
    async for event in worker.run(turn):
        if isinstance(event, Output):
            tokens += event.tokens
            text += event.text
        elif isinstance(event, SegmentRecord):
            records.append(event)
        else:
            end = event
    assert end is not None
    return tokens, text, end, records


def answered(worker: Worker, turn: Turn) -> tuple[list[Any], str, Finished, list[SegmentRecord]]:
    return asyncio.run(events(worker, turn))


FEATURES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 1.2, "seed": 3},
    "filters": {"temperature": 1.5, "top_k": 40, "top_p": 0.9, "min_p": 0.01, "seed": 4},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.3, "seed": 5},
    "bias": {"temperature": 0.0, "logit_bias": ((65, 4.0), (66, -50.0))},
    "logprobs": {"temperature": 0.8, "logprobs": 4, "seed": 6},
    "min_tokens": {"temperature": 1.0, "min_tokens": 40, "seed": 7},
    "choice": {"temperature": 1.0, "seed": 7, "choice": 2, "node": 1},
}


@pytest.mark.parametrize("residency", ["full", "sixteen"])
@pytest.mark.parametrize("feature", FEATURES)
def test_boundaries_every_16_tokens_are_invisible(open_worker: Any, feature: str, residency: str) -> None:
    worker = open_worker()
    sampling = replace(Sampling(), **(FEATURES[feature] | {"logprobs": 4}))
    turn = Turn("t", sampling, max_tokens=70, messages=QUESTION, residency="full")
    plain = answered(worker, turn)
    cut = replace(worker, context=replace(worker.context, boundary=FixedBoundary(16)))
    segmented = answered(cut, replace(turn, residency=residency))
    assert segmented[:2] == plain[:2]
    assert segmented[2].reason == plain[2].reason and segmented[2].exact and plain[2].exact


def test_a_stop_string_over_a_boundary(open_worker: Any) -> None:
    worker = open_worker()
    turn = Turn(
        "t", Sampling(temperature=1.0, seed=8), max_tokens=60, messages=QUESTION, residency="full", ignore_eos=True
    )
    tokens, text, _, _ = answered(worker, turn)
    pieces = [worker.tokenizer.decode([token.id]) for token in tokens]
    at = len("".join(pieces[:14]))
    stop = text[at : at + len("".join(pieces[14:18]))]  # tokens 15 to 18: the boundary falls after the 16th
    assert len(stop) > 2 and text.find(stop) == at
    cut = replace(worker, context=replace(worker.context, boundary=FixedBoundary(16)))
    _, stopped, end, _ = answered(cut, replace(turn, stop=(stop,)))
    assert stopped == text[:at] and end.reason == "stop"


def test_segment_is_the_same_at_any_load_and_any_larger_budget(open_worker: Any) -> None:
    turn = Turn(
        "t", Sampling(temperature=0.9, seed=9), max_tokens=500, messages=QUESTION, residency="segment", ignore_eos=True
    )
    alone = answered(open_worker(27), turn)
    assert len(alone[3]) >= 3 and not alone[2].exact

    async def crowded(worker: Worker) -> tuple[list[Any], str]:
        others = [
            replace(turn, id=f"o{i}", sampling=replace(turn.sampling, seed=100 + i), max_tokens=40 + 90 * i)
            for i in range(5)
        ]
        found, *_ = await asyncio.gather(*(events(worker, each) for each in (turn, *others)))
        return found[:2]

    for blocks in (27, 60, 400):
        assert asyncio.run(crowded(open_worker(blocks))) == alone[:2]


def test_live_kv_stays_within_one_segment(open_worker: Any) -> None:
    worker = open_worker(27)
    turn = Turn(
        "t", Sampling(temperature=0.9, seed=9), max_tokens=900, messages=QUESTION, residency="segment", ignore_eos=True
    )
    _, _, end, records = answered(worker, turn)
    assert end.completion_tokens == 900 == sum(record.usage.generated_tokens for record in records)
    budget = worker.backend.capabilities().kv_budget
    assert all(0 < record.live_kv_bytes <= budget for record in records)
    assert end.prompt_tokens + 900 > 2 * 27 * 16


@pytest.mark.parametrize("earlier", [(), EARLIER])
@pytest.mark.parametrize("answer", [120, 260, 700])
def test_an_admitted_answer_reaches_its_end_in_the_smallest_pool(
    open_worker: Any, answer: int, earlier: tuple[Message, ...]
) -> None:
    """Whatever its segments carry, no boundary needs more than was found to fit."""
    worker = open_worker()
    asked = replace(TURN, residency="segment", max_tokens=answer, messages=(*earlier, *QUESTION))
    capabilities = worker.backend.capabilities()
    block = capabilities.block_tokens * capabilities.kv_bytes_per_token

    def fits(blocks: int) -> bool:
        try:
            Chain.of(asked, worker.context, replace(capabilities, kv_budget=blocks * block))
        except ContextLengthExceeded:
            return False
        return True

    least = next(blocks for blocks in range(1, 200) if fits(blocks))
    assert answered(open_worker(least), asked)[2].completion_tokens == answer
