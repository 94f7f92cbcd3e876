"""The ledger: a set that merges in any order, and what may take the place of what."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ghostkv.protocol.facts import Fact, Kind, Position, Sentence
from ghostkv.protocol.ledger import Ledger
from ghostkv.protocol.reader import Reader

ROLES = ["system", "developer", "user", "assistant", "tool"]
RANKS = {"system": 3, "developer": 3, "user": 2, "assistant": 1, "tool": 0}


def read(*messages: str, role: str = "user", roles: tuple[str, ...] = ()) -> tuple[list[Sentence], list[Fact]]:
    sentences: list[Sentence] = []
    facts: list[Fact] = []
    for index, text in enumerate(messages):
        _, reading = Reader(index, roles[index] if roles else role).feed(text, 0, final=True)
        sentences.extend(reading.sentences)
        facts.extend(reading.facts)
    return sentences, facts


def values(ledger: Ledger) -> list[str]:
    return [standing.fact.value for standing in ledger.standings() if standing.current]


def numbers(*messages: str, roles: tuple[str, ...] = ()) -> list[str]:
    ledger = Ledger(tuple(read(*messages, roles=roles)[1]))
    return [s.fact.value for s in ledger.standings() if s.current and s.fact.kind is Kind.QUANTITY]


@st.composite
def assertions(draw: st.DrawFn) -> Fact:
    kind, value, normal = draw(
        st.sampled_from(
            [
                (Kind.QUANTITY, "21.4 °C", "21.4 °C"),
                (Kind.QUANTITY, "21 °C", "21 °C"),
                (Kind.QUANTITY, "30 °C", "30 °C"),
                (Kind.NAME, "Mira Voss", "mira voss"),
                (Kind.NAME, "Voss", "voss"),
                (Kind.NAME, "Elena Voss", "elena voss"),
                (Kind.IDENTIFIER, "A-1", "a-1"),
            ]
        )
    )
    position = Position(draw(st.integers(0, 3)), 0, draw(st.integers(0, 3)) * 100)
    sentence = Sentence(
        position, 0, ROLES[position.message], "It is 21.4 °C, 21 °C or 30 °C, by Mira Voss, Elena Voss and A-1."
    )
    return Fact(
        sentence,
        kind,
        draw(st.sampled_from(["", "Eos", "the Eos", "Kestrel"])),
        draw(st.sampled_from(["temperature", "captain", kind.value])),
        value,
        normal,
        changes=draw(st.booleans()),
        hypothetical=draw(st.booleans()),
    )


FACTS = st.lists(assertions(), max_size=10)


@settings(max_examples=80, deadline=None)
@given(FACTS, FACTS, FACTS)
def test_merging_is_set_union(a: list[Fact], b: list[Fact], c: list[Fact]) -> None:
    whole = Ledger(tuple({*a, *b, *c}))
    assert set(whole.facts) == {*a, *b, *c}
    for order in permutations((a, b, c)):
        ledger = Ledger()
        for part in order:
            ledger = ledger.merge(part)
        assert ledger == whole
        assert ledger.standings() == whole.standings()
    left = Ledger(tuple(a)).merge(Ledger(tuple(b)).merge(c).facts)
    assert left == whole == left.merge(a) == left.merge(left.facts)
    assert left.standings() == left.merge(b).standings() == whole.standings()


@settings(max_examples=150, deadline=None)
@given(FACTS)
def test_what_never_takes_the_place_of_anything(facts: list[Fact]) -> None:
    ledger = Ledger(tuple(facts))
    assert sum(standing.mentions for standing in ledger.standings()) == len(set(facts))
    for standing in ledger.standings():
        by = standing.superseded_by
        assert standing.last >= standing.fact.sentence.position or standing.mentions > 1
        if by is None:
            continue
        assert not standing.fact.hypothetical
        assert by.changes or not by.hypothetical
        assert RANKS[by.sentence.role] >= RANKS[standing.fact.sentence.role]
        assert by.sentence.position >= standing.fact.sentence.position
        successor = ledger.successor(standing)
        assert successor is None or successor.current


@settings(max_examples=120, deadline=None)
@given(FACTS)
def test_no_rewritten_sentence_shows_a_superseded_value(facts: list[Fact]) -> None:
    ledger = Ledger(tuple(facts))
    for fact in facts:
        text = ledger.current(fact.sentence)
        if text is None:
            continue
        said = [f for f in facts if f.sentence == fact.sentence]
        if len(said) == 1 and (standing := ledger.standing(fact)) and standing.superseded_by:
            assert not fact.hypothetical or standing.fact != fact
            now = ledger.successor(standing)
            assert now is not None
            assert now.fact.value in text


def test_the_older_sentence_is_rewritten_and_the_newer_one_is_named() -> None:
    (old, new), facts = read("The habitat is at 21.4 °C and 68.2 kPa. The temperature rose to 22 °C.")
    ledger = Ledger(tuple(facts))
    assert ledger.current(old) == "The habitat is at 22 °C and 68.2 kPa."
    assert ledger.current(old, was=True) == "The habitat is at 22 °C (was 21.4 °C) and 68.2 kPa."
    assert ledger.current(new) == new.text
    assert ledger.is_stale(old)
    assert not ledger.is_stale(new)
    assert ledger.announced(new) == (old,)
    assert ledger.announced(old) == ()
    then = next(s for s in ledger.standings() if s.fact.value == "21.4 °C")
    assert [s.fact.value for s in ledger.history(then)] == ["21.4 °C", "22 °C"]


def test_a_chain_of_changes_leads_to_the_last() -> None:
    (first, second, third), facts = read(
        "The price of the lot is 5 dollars. It rose to 7 dollars. The price is now 9 dollars."
    )
    ledger = Ledger(tuple(facts))
    assert values(ledger) == ["9 dollars"]
    assert ledger.current(first) == "The price of the lot is 9 dollars."
    assert ledger.current(second) == "The price of the lot rose to 9 dollars."
    assert ledger.announced(third) == (second,)
    assert [s.fact.value for s in ledger.history(ledger.standings()[0])] == ["5 dollars", "7 dollars", "9 dollars"]


def test_a_change_from_a_to_b_is_shown_as_long_as_b_holds() -> None:
    (told, later), facts = read("The queue length rose from 120 to 950. The queue length fell to 80.")
    assert Ledger(tuple(f for f in facts if f.sentence == told)).current(told) == told.text
    ledger = Ledger(tuple(facts))
    assert ledger.current(told) is None
    assert ledger.current(later) == later.text


def test_no_longer_ends_a_value_without_a_successor() -> None:
    (said, ended), facts = read("The captain of the Kestrel is Mira Voss. The captain is no longer Mira Voss.")
    ledger = Ledger(tuple(facts))
    assert ledger.is_stale(said)
    assert ledger.current(said) is None
    assert "Mira Voss" not in values(ledger)
    assert ledger.current(ended) == ended.text
    assert (
        values(Ledger(tuple(read("The captain is Mira Voss. If the captain is no longer Mira Voss, we sail.")[1])))[0]
        == "Mira Voss"
    )


def test_a_value_that_stands_twice_is_not_rewritten() -> None:
    (old, _), facts = read("The limit is 5 of 5 boxes. The limit is now 7.")
    ledger = Ledger(tuple(facts))
    assert ledger.is_stale(old)
    assert ledger.current(old) is None


def test_a_number_inside_another_is_not_touched() -> None:
    (old, _), facts = read("At 15:05 on 5.5.2026 the level of the tank was 5. The level of the tank is now 8.")
    assert Ledger(tuple(facts)).current(old) == "At 15:05 on 5.5.2026 the level of the tank was 8."


@pytest.mark.parametrize(
    ("messages", "left"),
    [
        (("The length of the hall is 1.2 km.", "The length of the hall is 1200 m."), ["1.2 km"]),
        (("The pressure of the lock is 21 kPa.", "The pressure of the lock is 21.4 kPa."), ["21.4 kPa"]),
        (("The pressure of the lock is 21.4 kPa.", "The pressure of the lock is 21 kPa."), ["21.4 kPa"]),
        (("The pressure of the lock is 21.4 kPa.", "The pressure of the lock rose to 22 kPa."), ["22 kPa"]),
        (("The price of the lot is $21.40.", "The price of the lot is $21."), ["$21"]),
        (("The lock holds 21 crates.", "The barge holds 22 crates."), ["21", "22"]),
        (("The price is 5 dollars.", "The price is 6 dollars."), ["5 dollars", "6 dollars"]),
        (("port: 80", "port: 90"), ["90"]),
        (("port: 80\nport: 90",), ["80", "90"]),
        (("The wall is 3 m from the door.", "The wall is 5 m from the gate."), ["3 m", "5 m"]),
    ],
)
def test_equal_finer_and_other_values(messages: tuple[str, ...], left: list[str]) -> None:
    assert numbers(*messages) == left


@pytest.mark.parametrize("old", ROLES)
@pytest.mark.parametrize("new", ROLES)
def test_a_lower_role_never_takes_the_place_of_a_higher_one(old: str, new: str) -> None:
    left = numbers("The limit of the lot is 5 GB.", "The limit of the lot is now 9 GB.", roles=(old, new))
    assert left == (["9 GB"] if RANKS[new] >= RANKS[old] else ["5 GB", "9 GB"])


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("Mira Voss", True),
        ("Captain Mira Voss", True),
        ("Voss", True),
        ("M. Voss", True),
        ("Elena Voss", False),
        ("Mira Holm", False),
        ("Mirá Voss", True),
    ],
)
def test_aliases(name: str, same: bool) -> None:
    def said(offset: int, value: str) -> Fact:
        sentence = Sentence(Position(0, 0, offset), 0, "user", f"The captain of the Kestrel is {value}.")
        return Fact(sentence, Kind.NAME, "Kestrel", "captain", value, value.casefold())

    ledger = Ledger((said(0, "Mira Voss"), said(90, name)))
    assert len(ledger.standings()) == (1 if same else 2)


def test_an_ambiguous_short_name_is_nobody() -> None:
    _, facts = read("We met Mira Voss and then Elena Voss. Then we met Voss again.")
    assert [s.mentions for s in Ledger(tuple(facts)).standings()] == [1, 1, 1]


def test_mentions_and_last() -> None:
    sentences, facts = read("We saw Aster-7 today.", "Then we saw Aster-7 again.", "And Aster-7 saw us.")
    (standing,) = Ledger(tuple(facts)).standings()
    assert (standing.mentions, standing.last) == (3, sentences[-1].position)


def test_a_merge_does_not_change_the_ledger_that_it_extends() -> None:
    _, facts = read("The limit of the lot is 5 GB. The limit of the lot is now 9 GB.")
    ledger = Ledger().merge(facts[:1])
    before = ledger.standings()
    ledger.merge(facts[1:])
    assert ledger.standings() == before
    assert Ledger().standings() == ()


DOCUMENTS = [
    "## Fees\n| Fee | Amount |\n|---|---|\n| Monthly fee | $20 |\n| Monthly fee | $25 |\n\n"
    "Notice period: 3 days\nNotice period: 7 days\n",
    "## Fees\n| Fee | Amount |\n|---|---|\n| Monthly fee | $50 |\n\nNotice period: 9 days\nThe monthly fee is $50.\n",
]


def test_records_that_repeat_a_key_do_not_supersede_each_other() -> None:
    _, facts = read(*DOCUMENTS, role="tool")
    assert all(standing.superseded_by is None for standing in Ledger(tuple(facts)).standings())
    _, facts = read("Status: open", "Status: closed", role="tool")
    assert [s.superseded_by for s in Ledger(tuple(facts)).standings()] == [None, None]


def test_the_old_value_may_be_named_after_the_new_one() -> None:
    assert numbers("The rent was corrected to 1,180 euros from 1,810 euros.") == ["1,180 euros"]


def test_from_a_to_b_ends_a_and_not_its_neighbour() -> None:
    _, facts = read("The office moved from Baker Street to Canal Street. The office moved from Mill Lane to Dock Road.")
    assert [v for v in values(Ledger(tuple(facts))) if " " in v] == ["Canal Street", "Dock Road"]
