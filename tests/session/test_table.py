"""Sessions as records: apart by tenant, within limits, forking by content, and what they remember of their answers."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import VirtualClock
from ghostkv.config import SessionLimits
from ghostkv.errors import ConfigError, InvariantViolation, RateLimited, SessionBusy, SessionExists, SessionNotFound
from ghostkv.protocol.log import Log
from ghostkv.request import BoundaryMark, Decision, FinishReason, Message, SegmentUsage, Token, ToolCall
from ghostkv.session.record import NewTurn, SessionRecord, Status, answer_bytes, generated_as
from ghostkv.session.table import Key, SessionTable
from ghostkv.session.turn import Finished, Output, SegmentRecord

USAGE = SegmentUsage(3, 0, 4, 7, 0.0, 0.0, 0.0)
END = Finished(FinishReason.STOP, 3, 4, exact=True, unseen_tokens=0)
PIECES = {i: bytes([i]) for i in range(256)} | {300: "🙂".encode(), 301: b"he", 302: b""}


def token_bytes(token_id: int) -> bytes:
    return PIECES.get(token_id, b"")


def user(text: str) -> Message:
    return Message("user", text)


def says(text: str) -> Message:
    return Message("assistant", text)


def table(clock: VirtualClock | None = None, **limits: Any) -> SessionTable:
    clock = clock or VirtualClock()
    return SessionTable(SessionLimits(**limits), clock.now, token_bytes)


def make(sessions: SessionTable, session_id: str = "s", tenant: str = "t") -> Key:
    record = sessions.create(SessionRecord(session_id, tenant, 0, "model", "manifest"))
    return tenant, record.id


def asked(*messages: Message, most_bytes: int = 0) -> NewTurn:
    return NewTurn("chatcmpl-1", "chat.completions", "{}", 0, 1, 10, 3, messages, most_bytes)


def answer(
    sessions: SessionTable, key: Key, messages: Sequence[Message], text: str, ids: Sequence[int] | None = None
) -> tuple[Message, ...]:
    """Answer with one token for each byte, or with `ids`, the text all at the end; the conversation after it."""
    sessions.begin(key, asked(*messages))
    tokens = tuple(Token(i) for i in (text.encode() if ids is None else ids))
    for at, token in enumerate(tokens):
        sessions.add(key, Output((token,), text if at == len(tokens) - 1 else ""))
    sessions.add(key, END)
    sessions.end(key, Status.FINISHED)
    return (*messages, says(text))


def test_sessions_of_tenants_are_apart() -> None:
    sessions = table()
    mine, yours = make(sessions), make(sessions, tenant="u")
    assert mine != yours
    with pytest.raises(SessionExists):
        make(sessions)
    drawn = {make(sessions, "")[1] for _ in range(20)}
    assert len(drawn) == 20
    answer(sessions, mine, [user("hi")], "hello")
    assert sessions.get(yours).turns == ()
    assert [record.id for record in sessions.of("u")] == ["s"]
    assert sessions.of("s") == ()
    assert set(sessions.tenants()) == {"t", "u"}
    sessions.delete(yours)
    assert sessions.tenants() == ("t",)
    for use in (sessions.get, sessions.touch, sessions.delete, lambda key: sessions.begin(key, asked(user("x")))):
        with pytest.raises(SessionNotFound, match="'s'"):
            use(yours)


def test_tokens_are_counted_over_all_answers() -> None:
    sessions = table()
    key = make(sessions)
    talk: Sequence[Message] = [user("a")]
    for text in ("one", "three", "", "x"):
        talk = [*answer(sessions, key, talk, text)[: 2 if text else 1], user(f"after {text}")]
    record = sessions.get(key)
    assert [(turn.first, turn.tokens) for turn in record.turns] == [(0, 3), (3, 5), (8, 0), (8, 1)]
    assert record.tokens == 9
    assert [record.turns.index(record.turn_at(n)) for n in range(10)] == [0] * 3 + [1] * 5 + [3] * 2


def test_one_answer_at_a_time() -> None:
    sessions = table()
    key = make(sessions)
    with pytest.raises(InvariantViolation):
        sessions.add(key, END)
    sessions.begin(key, asked(user("a")))
    assert sessions.get(key).running
    with pytest.raises(SessionBusy):
        sessions.begin(key, asked(user("b")))
    sessions.end(key, Status.CANCELLED, "nobody read it")
    [turn] = sessions.get(key).turns
    assert (turn.status, turn.error) == (Status.CANCELLED, "nobody read it")
    assert not sessions.get(key).running


def test_what_was_refused_leaves_no_trace() -> None:
    sessions = table()
    key = make(sessions)
    answer(sessions, key, [user("a")], "b")
    before = sessions.get(key)
    sessions.begin(key, asked(user("other"), most_bytes=10**6))
    sessions.end(key, Status.FAILED, "too long")
    assert sessions.get(key) == before
    sessions.begin(key, asked(user("other")))
    sessions.add(key, Output((Token(97),), "a"))
    sessions.end(key, Status.FAILED, "broke off")
    assert sessions.get(key).turns[-1].error == "broke off"
    assert sessions.get(key).messages == (user("other"), says("a"))


def test_the_number_of_sessions_is_limited_and_the_idle_are_forgotten() -> None:
    clock = VirtualClock()
    sessions = table(clock, count=3, idle_s=100.0)
    keys = [make(sessions, name) for name in "abc"]
    clock.advance(60)
    sessions.touch(keys[0])
    sessions.begin(keys[1], asked(user("x")))  # runs on and on
    with pytest.raises(RateLimited) as refused:
        make(sessions, "d")
    assert refused.value.retry_after == 41
    make(sessions, "d", tenant="u")
    clock.advance(39)
    with pytest.raises(RateLimited):
        make(sessions, "d")
    clock.advance(1)
    make(sessions, "d")
    assert {record.id for record in sessions.of("t")} == {"a", "b", "d"}
    clock.advance(1000)
    assert [record.id for record in sessions.of("t")] == ["b"]
    sessions.end(keys[1], Status.FINISHED)
    clock.advance(99)
    assert sessions.get(keys[1]).id == "b"
    clock.advance(1)
    assert sessions.tenants() == ()


def test_what_may_not_fit_is_refused_before_it_begins() -> None:
    sessions = table(memory=100_000)
    one, other = make(sessions, "a"), make(sessions, "b")
    before = sessions.get(other)
    sessions.begin(one, asked(user("x" * 1000), most_bytes=60_000))
    with pytest.raises(RateLimited, match="100000"):
        sessions.begin(other, asked(user("x"), most_bytes=60_000))
    assert sessions.get(other) == before
    sessions.begin(make(sessions, "b", tenant="u"), asked(user("x"), most_bytes=60_000))  # its own room
    sessions.end(one, Status.CANCELLED)  # what was claimed and not used is free again
    sessions.begin(other, asked(user("x"), most_bytes=60_000))
    with pytest.raises(RateLimited):
        sessions.begin(one, asked(user("x" * 50_000)))


@pytest.mark.parametrize("best", [None, 5])
def test_sizes_are_about_what_python_needs(best: int | None) -> None:
    """Else a limit in bytes would be a fiction."""
    sessions = table(memory=2**40)
    key = make(sessions)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    sessions.begin(key, asked(user("x" * 10_000)))
    for n in range(1000, 3000):
        top = () if best is None else tuple((n + i, -0.1 * n - i) for i in range(best))
        sessions.add(key, Output((Token(n + 10**6, None if best is None else -n / 7, top),), f"w{n}"))
    gc.collect()
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    size = sessions.get(key).size
    assert 0.8 * used < size < 1.4 * used
    assert sessions.get(key).turns[-1].size < answer_bytes(2000, best or 0) + 10_000


def test_an_answer_is_remembered_in_its_own_conversation() -> None:
    sessions = table()
    key = make(sessions)
    ids = [301, *b"llo"]
    talk = answer(sessions, key, [user("a")], "hello", ids)
    grown = [*talk, user("b")]
    assert [m.ids for m in sessions.get(key).remembered(grown)] == [(), tuple(ids), ()]
    assert [(m.role, m.content) for m in sessions.get(key).remembered(grown)] == [(m.role, m.content) for m in grown]
    for other in (
        [user("A"), says("hello"), user("b")],
        [user("a"), says("hello "), user("b")],
        [Message("system", "x"), *grown],
        [user("a"), user("hello"), user("b")],
        talk,  # the last message may stand for the question, which notes are added to
    ):
        assert not any(m.ids for m in sessions.get(key).remembered(other))


TEXTS = st.sampled_from(("a", "hello", "🙂 he"))
EDITS = st.lists(st.tuples(st.integers(0, 9), TEXTS), max_size=2)


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=4), EDITS)
def test_a_fork_keeps_what_comes_before_it(exchanges: list[tuple[str, str]], edits: list[tuple[int, str]]) -> None:
    sessions = table()
    key = make(sessions)
    talk: tuple[Message, ...] = ()
    for question, text in exchanges:
        talk = answer(sessions, key, [*talk, user(question)], text)
    edited = [*talk, user("and?")]
    for at, text in edits:
        if at < len(talk):
            edited[at] = Message(edited[at].role, text)
    common = next((i for i in range(len(talk)) if edited[i] != talk[i]), len(talk))
    remembered = sessions.get(key).remembered(edited)
    assert [bool(m.ids) for m in remembered] == [m.role == "assistant" and i < common for i, m in enumerate(edited)]
    for message in remembered:
        assert not message.ids or b"".join(map(token_bytes, message.ids)) == message.content.encode()
    turn = sessions.begin(key, asked(*edited))
    assert turn.forked == (common if common < len(talk) else None)


def test_both_branches_of_a_fork_are_remembered() -> None:
    sessions = table()
    key = make(sessions)
    trunk = answer(sessions, key, [user("a")], "one")
    left = answer(sessions, key, [*trunk, user("left")], "two")
    right = answer(sessions, key, [*trunk, user("right")], "six")
    for branch in (left, right):
        assert [bool(m.ids) for m in sessions.get(key).remembered([*branch, user("?")])] == [False, True] * 2 + [False]
    again = sessions.begin(key, asked(*right[:-1]))  # the last question once more
    assert again.forked == 3


def test_an_answer_that_comes_back_as_its_calls_is_no_fork() -> None:
    sessions = table()
    key = make(sessions)
    talk = answer(sessions, key, [user("a")], "<tool_call>f</tool_call>")
    called = Message("assistant", "", tool_calls=(ToolCall("1", "f", "{}"),))
    turn = sessions.begin(key, asked(*talk[:-1], called, Message("tool", "7", tool_call_id="1")))
    assert turn.forked is None


def test_a_raw_prompt_is_no_conversation() -> None:
    sessions = table()
    key = make(sessions)
    talk = answer(sessions, key, [user("a")], "one")
    answer(sessions, key, [], "raw")
    record = sessions.get(key)
    assert record.messages == talk
    assert (record.turns[-1].forked, record.turns[-1].digest) == (None, b"")
    assert sessions.begin(key, asked(*talk, user("b"))).forked is None


IDS = st.lists(st.sampled_from([104, 101, 0xC3, 0xA9, 300, 301, 302]), max_size=8)


@given(IDS, st.text(st.sampled_from("hé🙂e"), max_size=6))
def test_ids_stand_for_a_text_only_if_they_spell_it(ids: list[int], text: str) -> None:
    def spells(part: Sequence[int]) -> bool:
        return all(map(token_bytes, part)) and b"".join(map(token_bytes, part)) == text.encode()

    found = generated_as(text, ids, token_bytes)
    starts = [tuple(ids[:n]) for n in range(len(ids) + 1) if spells(ids[:n])]
    assert found == (starts[0] if starts else ())


@pytest.mark.parametrize(
    ("text", "ids", "kept"),
    [
        ("he", [301, 302], (301,)),  # an end-of-sequence id at the end
        ("he", [104, 101, *b"STOP"], (104, 101)),  # a stop string after it
        ("h", [301], ()),  # a stop string inside a token
        ("he", [104, 302, 101], ()),  # a control token inside
        ("\ufffd", [0xC3], ()),  # half a character
    ],
)
def test_ids_of_texts_that_were_cut(text: str, ids: list[int], kept: tuple[int, ...]) -> None:
    assert generated_as(text, ids, token_bytes) == kept


def plain(value: object) -> bool:
    """Whether a store could write it down: values of known parts all the way down."""
    if isinstance(value, Log | tuple):
        return all(map(plain, value))
    if is_dataclass(value) and not isinstance(value, type):
        frozen: Any = value.__dataclass_params__  # type: ignore[attr-defined]
        return bool(frozen.frozen) and all(plain(getattr(value, each.name)) for each in fields(value))
    return value is None or isinstance(value, str | bytes | int | float | bool | Enum)


def test_a_record_is_a_value_of_plain_parts() -> None:
    sessions = table()
    key = make(sessions)
    sessions.begin(key, asked(user("a")))
    sessions.add(key, Output((Token(97, -0.5, ((97, -0.5),)),), "a"))
    sessions.add(key, SegmentRecord(0, USAGE, BoundaryMark("cap", Decision.FLUSH), 16))
    before = sessions.get(key)
    sessions.carry(key, b"payload")
    sessions.add(key, END)
    sessions.end(key, Status.FINISHED)
    after = sessions.get(key)
    assert plain(after)
    assert after.payload == b"payload"
    assert (after.turns[0].finished, [s.index for s in after.turns[0].segments]) == (END, [0])
    assert (len(before.turns[0].events), before.payload, before.running) == (2, b"", True)  # the value from before
    assert not plain(SegmentRecord(0, USAGE, None, [16]))  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"count": 0}, {"memory": 0}, {"idle_s": float("nan")}, {"grace_s": -1.0}])
def test_limits_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        SessionLimits(**wrong)
