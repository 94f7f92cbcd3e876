"""One answer as a store would see it: a capsule after each of its events, and how the answer goes on from one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ghostkv.request import Decision, Message, Sampling, Token
from ghostkv.residency import Policy, SegmentBudget, policy
from ghostkv.residency.auto import Auto
from ghostkv.residency.segment import Segment
from ghostkv.session.capsule import Answering, Capsule
from ghostkv.session.chain import Carried
from ghostkv.session.manifest import Manifest
from ghostkv.session.record import NewTurn, SessionRecord
from ghostkv.session.resumption import resumed
from ghostkv.session.start import FROM_THE_START, Start
from ghostkv.session.turn import Event, Finished, Output, SegmentRecord, Turn
from ghostkv.session.worker import Worker

HERE = Manifest((("model", "m"),))
KEY = ("t", "s")
"""Of the sessions in `capsules`: tenant and id."""
TURN = Turn(
    "t",
    Sampling(temperature=0.9, seed=4, logprobs=1),
    max_tokens=120,
    messages=(Message("user", "The code of the Halcyon is AX-12. Tell me of its 14 masts."),),
    ignore_eos=True,
    tenant="t",
    residency="segment",
)

SHORT = Segment(budget=SegmentBudget(target=24, cap=40, tail=16, state=24, recall=16))


KEPT = Auto(budget=replace(SHORT.budget, whole=True))


def short(name: str) -> Policy:
    """The policies, `segment` and `auto` with short segments."""
    own: dict[str, Policy] = {SHORT.name: SHORT, KEPT.name: KEPT}
    return own.get(name) or policy(name)


def with_short_segments(worker: Worker) -> Worker:
    return replace(worker, context=replace(worker.context, policies=short))


@dataclass(frozen=True)
class Said:
    """What an answer came to."""

    tokens: tuple[Token, ...]
    text: str
    boundaries: tuple[object, ...]
    generated: tuple[int, ...]  # by segment
    end: object
    left: Carried  # by its last segment

    @classmethod
    def of(cls, events: Sequence[Event], left: Sequence[Carried]) -> Said:
        outputs = [event for event in events if isinstance(event, Output)]
        records = [event for event in events if isinstance(event, SegmentRecord)]
        ends = [event for event in events if isinstance(event, Finished)]
        return cls(
            tuple(token for output in outputs for token in output.tokens),
            "".join(output.text for output in outputs),
            tuple(record.boundary for record in records),
            tuple(record.usage.generated_tokens for record in records),
            ends and (ends[0].reason, ends[0].completion_tokens, ends[0].exact, ends[0].unseen_tokens, ends[0].digest),
            left[-1],
        )


def run(worker: Worker, turn: Turn, start: Start = FROM_THE_START) -> tuple[list[Event], list[Carried]]:
    """The events, and what each segment left."""
    left: list[Carried] = []

    async def events() -> list[Event]:
        return [event async for event in worker.run(turn, left.append, start)]

    return asyncio.run(events()), left


def capsules(worker: Worker, turn: Turn, manifest: Manifest) -> tuple[Said, list[Capsule]]:
    """An answer, and a capsule before its first event and after each but the last."""
    events, left = run(worker, turn)
    answering = Answering.of(turn, worker)
    asked = NewTurn(
        "a", "completions", "{}", 7, turn.sampling.seed, turn.max_tokens, len(answering.prompt), turn.messages
    )
    record = SessionRecord("s", "t", 5, worker.name, worker.manifest, metadata=(("k", "v"),)).opened(asked)
    carried, waiting = None, iter(left)
    found = [Capsule.at(manifest, record, answering, None)]
    for event in events[:-1]:
        record = record.with_last(record.turns[-1].added(event))
        if isinstance(event, SegmentRecord):
            after = next(waiting)
            if event.boundary is not None and event.boundary.decision is Decision.FLUSH:
                carried = after
        found.append(Capsule.at(manifest, record, answering, carried))
    return Said.of(events, left), found


def go_on(worker: Worker, capsule: Capsule) -> Said:
    """All of the answer, what came before the capsule included."""
    grammar = capsule.answering.turn.grammar if capsule.answering else None
    found = resumed(capsule, worker, grammar)
    rest, left = run(worker, found.turn, found.start)
    return Said.of([*found.record.turns[-1].events, *rest], left)
