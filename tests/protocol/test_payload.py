"""The payload: canonical bytes, merging, the chain of digests and the byte budget."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ghostkv.errors import PayloadError
from ghostkv.protocol.facts import Fact, Kind, Position, Sentence
from ghostkv.protocol.ledger import Ledger
from ghostkv.protocol.payload import LEAST_BUDGET, Cursor, Payload, Sealed, advance, merge

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
POSITIONS = st.builds(Position, st.integers(0, 3), st.integers(0, 2), st.integers(0, 400))


@st.composite
def facts(draw: st.DrawFn) -> Fact:
    position = draw(POSITIONS)
    # One place in a conversation holds one sentence.
    sentence = Sentence(position, position.offset // 100, "assistant", f"sentence at {position}", topic="")
    kind, value = draw(st.sampled_from(Kind)), draw(st.text("abc0", min_size=1, max_size=3))
    return Fact(sentence, kind, draw(st.sampled_from(("Eos", "Ada"))), "code", value, value, draw(st.booleans()))


CURSORS = st.builds(Cursor, st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))
PAYLOADS = st.builds(
    lambda facts, cursor, style, openings: Payload(Ledger().merge(facts), cursor, style, tuple(openings)),
    st.lists(facts(), max_size=8),
    CURSORS,
    TEXT,
    st.lists(TEXT, max_size=2),
)


def fact(number: int, kind: Kind = Kind.IDENTIFIER, role: str = "assistant", **more: bool) -> Fact:
    sentence = Sentence(Position(1, 0, 100 * number), number, role, f"The code of unit {number} is AX-{number:04}.")
    return Fact(sentence, kind, f"unit {number}", "code", f"AX-{number:04}", f"ax-{number:04}", **more)


def filled(count: int) -> Payload:
    return Payload(Ledger().merge(fact(i) for i in range(count)), Cursor(1, 0, count), "Style: past tense.", ("- a\n",))


# --- bytes ---


@given(PAYLOADS)
def test_round_trip(payload: Payload) -> None:
    assert Payload.decode(payload.encode()) == payload


@given(st.lists(facts(), max_size=8), st.randoms(use_true_random=False))
def test_bytes_do_not_depend_on_the_order_of_discovery(found: list[Fact], order: random.Random) -> None:
    shuffled = list(found)
    order.shuffle(shuffled)
    one = Payload(Ledger().merge(found))
    other = Payload()
    for each in shuffled:
        other = replace(other, ledger=other.ledger.merge([each]))
    assert other.encode() == one.encode()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-1], "not a payload"),
        (lambda data: b"[]", "not a payload"),
        (lambda data: b"\xff\xfe", "not a payload"),
        (lambda data: data.replace(b'"version":1', b'"version":2'), "version 2"),
        (lambda data: data.replace(b'"cursor"', b'"curse"'), "damaged"),
        (lambda data: data.replace(b"identifier", b"identifying"), "damaged"),
        (lambda data: data.replace(b":[", b": [", 1), "canonical"),
        (lambda data: b"[" * 100_000, "not a payload"),
    ],
)
def test_damaged_and_foreign_bytes_are_refused(damage, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(PayloadError, match=message):
        Payload.decode(damage(filled(2).encode()))


# --- merging ---


@given(PAYLOADS, PAYLOADS, PAYLOADS)
def test_merge_does_not_care_for_order_grouping_or_repetition(a: Payload, b: Payload, c: Payload) -> None:
    whole = merge((a, b, c))
    assert merge((c, a, b)) == whole
    assert merge((merge((a, b)), c)) == whole
    assert merge((a, merge((b, c)))) == whole
    assert merge((whole, a, whole)) == whole
    assert merge((a, a)) == a


def test_the_cursor_is_the_furthest_and_brings_its_style() -> None:
    early = Payload(cursor=Cursor(1, 0, 5), style="Style: z.")
    late = Payload(cursor=Cursor(1, 1, 0), style="Style: a.", openings=("> ",))
    found = merge((late, early))
    assert (found.cursor, found.style, found.openings) == (Cursor(1, 1, 0), "Style: a.", ("> ",))


def test_each_payload_names_the_one_before_it() -> None:
    chain = [Sealed.first()]
    for segment in range(3):
        chain.append(advance(chain[-1], Payload(Ledger().merge([fact(segment)]), Cursor(1, 0, segment + 1)), 16384))
    assert [after.payload.previous for after in chain[1:]] == [before.digest for before in chain[:-1]]
    assert len({sealed.digest for sealed in chain}) == 4
    assert json.loads(chain[-1].data)["cursor"] == [1, 0, 3]


# --- the byte budget ---


@settings(max_examples=40)
@given(st.integers(LEAST_BUDGET, 9000), st.integers(0, 60))
def test_never_over_budget_and_never_more_dropped_than_needed(budget: int, count: int) -> None:
    payload = filled(count)
    sealed = payload.within(budget)
    assert len(sealed.data) <= budget
    assert sealed.data == sealed.payload.encode()
    lost = set(payload.ledger.facts) - set(sealed.payload.ledger.facts)
    assert sealed.payload.dropped == len(lost)
    if lost:  # the newest of what went would not fit as well
        newest = max(lost, key=lambda each: each.sentence.position)
        fuller = replace(sealed.payload, ledger=sealed.payload.ledger.merge([newest]), dropped=len(lost) - 1)
        assert len(fuller.encode()) > budget - 16
    else:
        assert sealed.payload == payload


def test_what_goes_first() -> None:
    guess, given_name = fact(1, hypothetical=True), fact(2, Kind.NAME, role="user")
    name, code = fact(3, Kind.NAME), fact(4)
    payload = Payload(Ledger().merge([guess, given_name, name, code] + [fact(i) for i in range(5, 40)]))
    order: list[Fact] = []
    size = len(payload.encode())
    for budget in range(size - 1, LEAST_BUDGET - 1, -40):
        kept = set(payload.within(budget).payload.ledger.facts)
        order += sorted(set(payload.ledger.facts) - kept - set(order), key=lambda each: each.sentence.position)
    assert order[:4] == [guess, name, code, fact(5)]
    assert given_name not in order  # what the user gave outlives what was generated


def test_even_the_least_budget_holds_a_payload() -> None:
    sealed = replace(filled(100), style="x" * 2000).within(LEAST_BUDGET)
    assert len(sealed.data) <= LEAST_BUDGET
    assert sealed.payload.style == ""
    with pytest.raises(PayloadError, match="at least 1024 bytes"):
        filled(1).within(LEAST_BUDGET - 1)
