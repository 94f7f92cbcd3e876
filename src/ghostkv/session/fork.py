"""Forks: another session that goes on from a boundary of one. A fork at an earlier boundary is a rollback.

What a fork goes on from is exact: the tokens up to there, and what the last flush before it left. Inside an answer
that takes the request as it was asked, which is kept of the last answer only; earlier answers are forked at their
ends. Blocks are not copied: the fork's prompt is its parent's, so the prefix index finds them. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ghostkv.errors import InvalidRequest, RecordRefused
from ghostkv.request import Message
from ghostkv.session.calls import of_answers
from ghostkv.session.capsule import Answering, Capsule
from ghostkv.session.chain import Carried, Chain
from ghostkv.session.folding import carried_after, flushed
from ghostkv.session.histories import digests
from ghostkv.session.record import SessionRecord, Status, TurnRecord
from ghostkv.session.turn import Event, Output
from ghostkv.session.worker import Worker
from ghostkv.text.detokenizer import Detokenizer


@dataclass(frozen=True, slots=True)
class Boundary:
    """A place that a session may be forked at."""

    index: int  # among the session's
    kind: str  # "start" of an answer, "flush", "keep", "end" of an answer, "committed": all that is known of it
    tokens: int  # of the session's output up to there
    answer: int  # index; -1 before the first
    events: int = 0  # of that answer


@dataclass(frozen=True, slots=True)
class Names:
    """What a fork is called."""

    session: str
    answer: str  # id of an answer that goes on; the engine must not know it yet
    created: int  # seconds since 1970


def boundaries(capsule: Capsule) -> tuple[Boundary, ...]:
    """All of them, in order; the last is where a fork is made if nothing else is said."""
    record, found = capsule.record, [Boundary(0, "start", 0, -1)]
    for answer, turn in enumerate(record.turns):
        if answer == len(record.turns) - 1 and capsule.answering is not None:
            for kind, tokens, events in _inside(turn, _divisible(capsule.answering)):
                found.append(Boundary(len(found), kind, turn.first + tokens, answer, events))
        if turn.status is not Status.RUNNING:
            found.append(Boundary(len(found), "end", turn.first + turn.tokens, answer, len(turn.events)))
    return tuple(found)


def forked(capsule: Capsule, worker: Worker, at: int | None, names: Names) -> Capsule:
    """The session's state at boundary `at` (None: the last) under other names, to go on from there by itself.

    Of its tool calls it has those of the answers before there; an answer that goes on makes its own again, under ids of
    its own.
    Raises InvalidRequest for a boundary that it does not have, RecordRefused where record and model do not fit.
    """
    places = boundaries(capsule)
    index = len(places) - 1 if at is None else at
    if not 0 <= index < len(places):
        raise InvalidRequest(f"at is {at}, but the session's boundaries are 0 to {len(places) - 1}", param="at")
    place = places[index]
    record = replace(capsule.record, id=names.session, created=names.created)
    between = place.kind in ("start", "end") and (place.answer < 0 or place.kind == "end")
    made = _between(capsule, record, place) if between else _within(capsule, record, worker, place, names)
    calls = of_answers(record.calls, {turn.id for turn in made.record.turns})
    return replace(made, record=replace(made.record, calls=calls))


def _divisible(answering: Answering) -> bool:
    """Whether an answer can be taken up inside: one under a grammar or a plan starts over."""
    return answering.turn.plan is None and not answering.grammar


def _inside(turn: TurnRecord, divisible: bool) -> Iterator[tuple[str, int, int]]:  # noqa: FBT001
    """(kind, tokens, events) of the boundaries of an answer but its end."""
    yield "start", 0, 0
    if not divisible:
        return
    tokens = last = 0
    for count, event in enumerate(turn.events, 1):
        tokens += len(event.tokens) if isinstance(event, Output) else 0
        kind = "flush" if flushed(event) else "keep" if isinstance(event, Output) and event.kept is not None else ""
        if kind:
            last = count
            yield kind, tokens, count
    if turn.status is Status.RUNNING and len(turn.events) > last:
        yield "committed", tokens, len(turn.events)


def _between(capsule: Capsule, record: SessionRecord, place: Boundary) -> Capsule:
    """At the end of an answer, or before all of them: nothing is under way."""
    last = place.answer == len(record.turns) - 1 and place.answer >= 0
    if last:
        return Capsule(capsule.manifest, record, capsule.answering)
    if place.answer < 0:
        return Capsule(capsule.manifest, replace(record, turns=(), messages=(), payload=b""))
    messages = _conversation(record, record.turns[place.answer])
    turns = record.turns[: place.answer + 1]
    return Capsule(capsule.manifest, replace(record, turns=turns, messages=messages, payload=b""))


def _conversation(record: SessionRecord, turn: TurnRecord) -> tuple[Message, ...]:
    """As it stood at the end of `turn`."""
    if not turn.conversing:
        return record.messages
    for count, digest in enumerate(digests(record.messages), 1):
        if digest == turn.digest:
            return record.messages[:count]
    raise RecordRefused("the conversation left this answer later, so what was said up to it is not known any more")


def _within(capsule: Capsule, record: SessionRecord, worker: Worker, place: Boundary, names: Names) -> Capsule:
    """Inside the last answer, which then is under way."""
    answering, turn = capsule.answering, record.turns[-1]
    if answering is None:
        raise RecordRefused("the request of this answer was not kept")
    events = tuple(turn.events[: place.events])
    carried = _carried(capsule, answering, worker, events)
    opened = replace(turn, id=names.answer, status=Status.RUNNING, error="", digest=b"", ids=())
    asked = replace(answering, turn=replace(answering.turn, id=names.answer))
    messages = answering.turn.messages or record.messages
    record = replace(record.with_last(opened.refilled(events)), messages=messages)
    return Capsule.at(capsule.manifest, record, asked, carried)


def _carried(capsule: Capsule, answering: Answering, worker: Worker, events: tuple[Event, ...]) -> Carried | None:
    """What the last flush among `events` left: the stored one, or folded again, and then held against the stored."""
    stored, count = capsule.carried, sum(map(flushed, events))
    if not count:
        return None
    if stored is not None and stored.cursor.segment == count:
        return stored
    chain = Chain.of(replace(answering.turn, plan=None), worker.context, worker.backend.capabilities())
    if chain.prompt != answering.prompt or chain.begins_whole != answering.whole:
        raise RecordRefused("the recorded prompt is another, or the pool of another size")
    detokenizer = Detokenizer(worker.tokenizer)
    if stored is not None:
        again = carried_after(chain, capsule.record.turns[-1].events, detokenizer)
        if again is None or again.memory.payload.data != stored.memory.payload.data or again.state != stored.state:
            raise RecordRefused("what the record's tokens come to is not what it says they left")
    return carried_after(chain, events, detokenizer)
