"""Forks and replays: every boundary gives the rest of the answer again, shares its parent's blocks, and is checked."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from capsules import Said, capsules, go_on, run, with_short_segments
from ghostkv.errors import InvalidRequest, RecordRefused
from ghostkv.request import Message, Sampling, Token
from ghostkv.session.capsule import Capsule
from ghostkv.session.fork import Names, boundaries, forked
from ghostkv.session.record import NewTurn, Status
from ghostkv.session.replaying import Replayed, replayed
from ghostkv.session.resumption import resumed
from ghostkv.session.turn import Event, Output, SegmentRecord, Turn
from ghostkv.session.worker import Worker

TALK = (
    Message("system", "You tell of ships."),
    Message("user", "The Halcyon has 14 masts and its code is AX-12."),
    Message("assistant", "Noted. Captain Ilse Brandt commands it."),
    Message("user", "Tell me about the 14 ships of Lisbon, one after the other."),
)
SAMPLED = Sampling(temperature=0.9, top_p=0.95, seed=11, logprobs=2, frequency_penalty=0.3, repetition_penalty=1.1)
TURN = Turn("t", SAMPLED, max_tokens=150, messages=TALK, ignore_eos=True, tenant="t", residency="segment")
NAMES = Names("forked", "answer-of-fork", 9)


@pytest.fixture(scope="module")
def worker(small_worker: Worker) -> Worker:
    return with_short_segments(small_worker)


def ended(worker: Worker, residency: str) -> tuple[Said, Capsule]:
    """An answer, and its session at its end."""
    turn = replace(TURN, residency=residency)
    expected, found = capsules(worker, turn, worker.named)
    events, _ = run(worker, turn)
    record = found[-1].record.with_last(found[-1].record.turns[-1].refilled(events))
    record = record.closed(Status.FINISHED, "", worker.tokenizer.token_bytes)
    return expected, Capsule(worker.named, record, found[-1].answering)


@pytest.mark.parametrize("residency", ["segment", "full", "auto", "sink_window"])
def test_a_fork_at_any_boundary_says_what_its_parent_said(worker: Worker, residency: str) -> None:
    expected, capsule = ended(worker, residency)
    places = boundaries(capsule)
    kinds = [place.kind for place in places]
    assert kinds[:2] == ["start", "start"] and kinds[-1] == "end" and places[-1].tokens == 150
    assert kinds.count("flush") == len([mark for mark in expected.boundaries if mark is not None])
    assert (residency == "auto") == ("keep" in kinds) and (residency == "segment") == ("flush" in kinds)
    for place in places[1:-1]:
        fork = Capsule.decode(forked(capsule, worker, place.index, NAMES).encode(), worker.named)
        assert (fork.record.id, fork.record.turns[-1].id, fork.record.running) == ("forked", "answer-of-fork", True)
        assert fork.record.tokens == place.tokens
        again = go_on(worker, fork)
        assert (again.tokens, again.text, again.boundaries) == (expected.tokens, expected.text, expected.boundaries)
    assert go_on(worker, forked(capsule, worker, 1, NAMES)) == expected
    end = forked(capsule, worker, None, NAMES)
    assert not end.record.running and end.record.messages == capsule.record.messages
    assert not forked(capsule, worker, 0, NAMES).record.turns


def test_forks_of_a_running_answer_use_what_is_stored(worker: Worker) -> None:
    expected, found = capsules(worker, TURN, worker.named)
    capsule = found[-20]
    *_, flush, last = boundaries(capsule)
    assert (flush.kind, last.kind) == ("flush", "committed") and last.tokens == capsule.record.tokens
    assert forked(capsule, worker, flush.index, NAMES).carried is not None
    for place in (flush, last, boundaries(capsule)[2]):
        assert go_on(worker, forked(capsule, worker, place.index, NAMES)) == expected


def test_a_fork_shares_its_parents_blocks(worker: Worker) -> None:
    """What it does not prefill: all full blocks of the prompt, and under full of the tokens before it, too."""
    for residency in ("segment", "full"):
        turn = replace(TURN, residency=residency, id=f"parent-{residency}")
        _, found = capsules(worker, turn, worker.named)
        fork = forked(found[-20], worker, None, NAMES)
        start = resumed(fork, worker, None)
        events, _ = run(worker, start.turn, start.start)
        first = next(event for event in events if isinstance(event, SegmentRecord))
        known = first.usage.prompt_tokens + first.restored
        assert first.usage.cached_tokens >= 16 * ((known - 1) // 16) > 64, residency


def test_earlier_answers_are_forked_at_their_ends(worker: Worker) -> None:
    _, capsule = ended(worker, "segment")
    record = capsule.record
    talk = (*record.messages, Message("user", "And then?"))
    opened = record.opened(replace_new(talk))
    later = Capsule(worker.named, opened.closed(Status.CANCELLED, "", worker.tokenizer.token_bytes))
    places = boundaries(later)
    assert [(place.kind, place.answer, place.tokens) for place in places] == [
        ("start", -1, 0),
        ("end", 0, 150),
        ("end", 1, 150),
    ]
    back = forked(later, worker, 1, NAMES).record
    assert back.messages == record.messages and len(back.turns) == 1
    edited = replace(later, record=replace(later.record, messages=talk[1:]))
    with pytest.raises(RecordRefused, match="left this answer"):
        forked(edited, worker, 1, NAMES)
    for at in (-1, 3):
        with pytest.raises(InvalidRequest, match="boundaries are 0 to 2"):
            forked(later, worker, at, NAMES)


def replace_new(messages: tuple[Message, ...]) -> NewTurn:
    return NewTurn("b", "completions", "{}", 9, 1, 10, 5, messages)


def test_a_record_that_does_not_fold_to_what_it_left_is_refused(worker: Worker) -> None:
    _, found = capsules(worker, TURN, worker.named)
    capsule = found[-20]
    turn = capsule.record.turns[-1]
    events = list(turn.events)
    at = next(i for i, event in enumerate(events) if isinstance(event, Output) and event.tokens)
    events[at] = changed(events[at], id=events[at].tokens[0].id + 1)  # type: ignore[union-attr]
    damaged = replace(capsule, record=capsule.record.with_last(turn.refilled(events)))
    with pytest.raises(RecordRefused):
        forked(damaged, worker, 2, NAMES)


def changed(event: Event, **fields: object) -> Event:
    if not isinstance(event, Output):
        raise TypeError(event)
    return replace(event, tokens=(replace(event.tokens[0], **fields), *event.tokens[1:]))  # type: ignore[arg-type]


# --- replay ---


def again(worker: Worker, capsule: Capsule) -> Replayed:
    return asyncio.run(replayed(capsule, worker, None, "again"))


@pytest.mark.parametrize("residency", ["segment", "full", "auto"])
def test_a_replay_is_equal_or_says_where_it_differs(worker: Worker, residency: str) -> None:
    expected, capsule = ended(worker, residency)
    found = again(worker, capsule)
    boundaries_found = len([mark for mark in expected.boundaries if mark is not None])
    assert found == Replayed(150, boundaries_found, "")
    turn = capsule.record.turns[-1]
    for name, value in (("id", 3), ("logprob", -0.5), ("top", ((1, -0.5),))):
        events = list(turn.events)
        at = [i for i, event in enumerate(events) if isinstance(event, Output)][60]
        events[at] = changed(events[at], **{name: value})
        other = again(worker, replace(capsule, record=capsule.record.with_last(turn.refilled(events))))
        assert other.difference.startswith(f"token 60: recorded {name} "), other
    shorter = capsule.record.with_last(turn.refilled(list(turn.events)[:50]))
    assert "record ends" in again(worker, replace(capsule, record=shorter)).difference
    running = replace(shorter.turns[-1], status=Status.RUNNING)
    assert again(worker, replace(capsule, record=shorter.with_last(running))).difference == ""


def test_without_a_request_nothing_is_replayed(worker: Worker) -> None:
    _, capsule = ended(worker, "full")
    with pytest.raises(RecordRefused, match="no request"):
        again(worker, replace(capsule, answering=None))
    assert isinstance(capsule.record.turns[-1].events[0], Output) and isinstance(Token(1).id, int)
