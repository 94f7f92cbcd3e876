"""One loaded model, fresh engines over it, and answers on them. One engine at a time: they share the KV tensors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ghostkv.backends.embedded import EmbeddedBackend
from ghostkv.config import EngineConfig
from ghostkv.engine.stats import StepTrace
from ghostkv.errors import InvariantViolation
from ghostkv.model.load import LoadedModel, load_model, pool_bytes
from ghostkv.request import Delta, Message, Sampling, SegmentRequest
from ghostkv.session.chain import Closed
from ghostkv.session.start import FROM_THE_START, Start
from ghostkv.session.turn import Event, Finished, Output, SegmentRecord, Turn
from ghostkv.session.worker import Worker
from ghostkv.verify.seen import Seen, Sight, Watched

BLOCKS = 520  # of the pool: room for all subjects at once
RESIDENCIES = ("full", "segment", "auto")
_SAMPLINGS = {
    "greedy": Sampling(temperature=0.0, logprobs=5),
    "seeded": Sampling(temperature=0.9, top_p=0.95, repetition_penalty=1.1, seed=11, logprobs=5),
}
_TEXT = (
    "The harbour master wrote down 14 ships that morning, three of them from Lisbon. By noon the fog had come in again "
    "and nobody could see the lighthouse from the quay, so the fourth ship was not counted until evening. Her code is "
    "AX-12 and her captain is Ilse Brandt. Tell me what happened to the 14 ships, one after the other."
)


class _Noting(EmbeddedBackend):
    """Remembers what it was asked for."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.asked: list[SegmentRequest] = []

    def generate(self, request: SegmentRequest) -> AsyncGenerator[Delta, None]:
        self.asked.append(request)
        return super().generate(request)


@dataclass
class Open:
    """An engine at work."""

    worker: Worker
    sight: Sight
    asked: list[SegmentRequest]  # so far, in order
    steps: list[StepTrace] = field(default_factory=list)

    def seen(self, turn: Turn) -> tuple[Seen, list[Event]]:
        """The answer to `turn`, alone."""
        events = asyncio.run(gathered(self.worker, turn))
        return Seen.of(events, [self.sight.taken(turn.id)]), events

    def part(self, turn: Turn, tokens: int, closed: Closed = lambda _: None) -> list[Event]:
        """The beginning of an answer, which is cancelled after so many tokens."""
        return asyncio.run(_beginning(self.worker, turn, tokens, closed))

    def together(self, turns: Sequence[Turn]) -> list[list[Event]]:
        """Answers to all of them at once."""

        async def all_of_them() -> list[list[Event]]:
            return list(await asyncio.gather(*(gathered(self.worker, turn) for turn in turns)))

        return asyncio.run(all_of_them())


class Rig:
    """A model, loaded once."""

    def __init__(self, path: Path, config: EngineConfig, announce: Callable[[str], None]) -> None:
        """The pool is the rig's own. Raises what `load_model` does."""
        self.path = path
        self.config = replace(config, kv_budget=pool_bytes(path, config, BLOCKS), speculation="off")
        self.model: LoadedModel = load_model(path, self.config, announce)

    @contextmanager
    def opened(self, *, blocks: int = BLOCKS, **changes: Any) -> Iterator[Open]:
        """A fresh engine with an empty pool of `blocks` blocks and these changes to its configuration."""
        sight, steps = Sight(), list[StepTrace]()
        config = replace(self.config, **changes)
        model = replace(self.model, runner=Watched(self.model.runner, sight), blocks=blocks)
        backend = _Noting(model, config, steps.append)
        try:
            yield Open(Worker.embedded(backend, config, time.perf_counter), sight, backend.asked, steps)
        finally:
            backend.close()

    def subjects(self, tokens: int) -> list[Turn]:
        """What is asked: greedy and seeded, under each residency, of so many tokens; under `auto` twice as many.

        There a flush shortly before the end would free nothing that is worth its prefill.
        """
        with self.opened() as engine:
            worker = engine.worker
            turns = [
                self._subject(worker, f"{residency}-{name}", residency, sampling, tokens * (1 + (residency == "auto")))
                for residency in RESIDENCIES
                for name, sampling in _SAMPLINGS.items()
            ]
            return [worker.checked(turn) for turn in turns]

    def others(self, worker: Worker, count: int, tokens: int, residency: str) -> list[Turn]:
        """Answers of other tenants, of other lengths."""
        found = []
        for index in range(count):
            sampling = replace(_SAMPLINGS["seeded"], seed=100 + index)
            turn = self._subject(worker, f"other{index}", residency, sampling, max(2, tokens - 7 * index))
            prompt = turn.prompt and turn.prompt[: 3 + 5 * index]
            talk = tuple(replace(message, content=f"{index}. {message.content}") for message in turn.messages)
            found.append(worker.checked(replace(turn, prompt=prompt, messages=talk, tenant=f"tenant{index}")))
        return found

    def _subject(self, worker: Worker, name: str, residency: str, sampling: Sampling, tokens: int) -> Turn:
        turn = Turn(name, sampling, tokens, residency=residency, ignore_eos=True, seeded=True, tenant="subject")
        if worker.template:
            return replace(turn, messages=(Message("user", _TEXT),))
        return replace(turn, prompt=worker.encode(_TEXT, residency))


def first_segment(events: Sequence[Event]) -> SegmentRecord:
    """The record of an answer's first segment."""
    return next(event for event in events if isinstance(event, SegmentRecord))


async def gathered(worker: Worker, turn: Turn, start: Start = FROM_THE_START) -> list[Event]:
    """All events of an answer. Raises InvariantViolation where it has no end."""
    events = [event async for event in worker.run(turn, start=start)]
    if not isinstance(events[-1], Finished):
        raise InvariantViolation(f"{turn.id} has no end")
    return events


async def _beginning(worker: Worker, turn: Turn, tokens: int, closed: Closed) -> list[Event]:
    events: list[Event] = []
    stream: AsyncGenerator[Event, None] = worker.run(turn, closed)
    async with aclosing(stream):
        async for event in stream:
            events.append(event)
            tokens -= len(event.tokens) if isinstance(event, Output) else 0
            if tokens <= 0:
                return events
    return events
