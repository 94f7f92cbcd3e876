"""A stored answer computed again from its record, and where the two first differ.

It is the last answer of a session, whose request is kept as it was asked. Decisions that depend on more than the
request are taken as recorded. Nothing is written.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import zip_longest

from ghostkv.errors import RecordRefused
from ghostkv.request import Decision, Grammar, Token
from ghostkv.session.capsule import Capsule
from ghostkv.session.context import residency_of
from ghostkv.session.turn import Event, Output, SegmentRecord, Turn
from ghostkv.session.worker import Worker


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of it."""

    tokens: int  # that were compared
    boundaries: int  # likewise
    difference: str  # the first one, in words; "" where everything is equal


async def replayed(capsule: Capsule, worker: Worker, grammar: Grammar | None, answer_id: str) -> Replayed:
    """Compute the session's last answer again, as far as it was recorded, and compare it token by token.

    Raises RecordRefused for a session without a recorded request, and what the worker raises.
    """
    answering, turns = capsule.answering, capsule.record.turns
    if answering is None or not turns:
        raise RecordRefused("no request of this session is kept, so nothing can be computed again")
    known = turns[-1].events
    flushes = flushes_of(known, short=not answering.whole)
    turn = replace(answering.turn, id=answer_id, grammar=grammar, deadline_s=None)
    budget = residency_of(turn, worker.context).budget
    if budget is not None and budget.whole and grammar is None and turn.plan is None:
        turn = replace(turn, replay=flushes)
    return await _compared(_facts_of_run(worker, turn), _facts(known), complete=not capsule.record.running)


def flushes_of(events: Sequence[Event], *, short: bool = False) -> tuple[int, ...]:
    """Output tokens before each flush of an answer; `short`: its prompt was not read whole, which is recorded as 0."""
    marks = [mark for event in events if isinstance(event, SegmentRecord) for mark in event.decisions]
    found = {mark.at for mark in marks if mark.decision is Decision.FLUSH}
    return tuple(sorted(found | ({0} if short and not found else set())))


Fact = tuple[str, Token | None, str]
"""("token", the token, its text) or ("boundary", None, what it was)."""


def _facts(events: Sequence[Event]) -> list[Fact]:
    return [fact for event in events for fact in _facts_in(event)]


def _facts_in(event: Event) -> list[Fact]:
    if isinstance(event, Output):
        texts = [event.text, *[""] * (len(event.tokens) - 1)]
        return [("token", token, text) for token, text in zip(event.tokens, texts, strict=False)]
    if isinstance(event, SegmentRecord) and event.boundary is not None:
        return [("boundary", None, f"{event.boundary.kind} after {event.boundary.at} tokens")]
    return []


async def _facts_of_run(worker: Worker, turn: Turn) -> AsyncIterator[Fact]:
    async with aclosing(worker.run(turn)) as events:
        async for event in events:
            for fact in _facts_in(event):
                yield fact


async def _compared(computed: AsyncIterator[Fact], known: Sequence[Fact], *, complete: bool) -> Replayed:
    """`complete`: nothing may follow what is known."""
    counts = {"token": 0, "boundary": 0}
    texts = ["", ""]
    for expected in known:
        found = await anext(computed, None)
        difference = _difference(expected, found, counts["token"])
        if difference:
            return Replayed(counts["token"], counts["boundary"], difference)
        counts[expected[0]] += 1
        texts = [texts[0] + expected[2], texts[1] + (found[2] if found else "")]
    if complete and (found := await anext(computed, None)) is not None:
        said = f"after token {counts['token'] - 1} the record ends, but another {found[0]} follows"
        return Replayed(counts["token"], counts["boundary"], said)
    if texts[0] != texts[1]:
        at = next(i for i, (one, two) in enumerate(zip_longest(*texts)) if one != two)
        return Replayed(counts["token"], counts["boundary"], f"the texts differ at character {at}")
    return Replayed(counts["token"], counts["boundary"], "")


def _difference(expected: Fact, found: Fact | None, at: int) -> str:
    if found is None:
        return f"token {at}: recorded, but nothing more was computed"
    if expected[0] != found[0] or (expected[0] == "boundary" and expected[2] != found[2]):
        return f"before token {at}: recorded {expected[0]} {expected[2]!r}, computed {found[0]} {found[2]!r}"
    one, two = expected[1], found[1]
    if one is None or two is None or one == two:
        return ""
    for name in ("id", "logprob", "top"):
        if getattr(one, name) != getattr(two, name):
            return f"token {at}: recorded {name} {getattr(one, name)}, computed {getattr(two, name)}"
    return ""
