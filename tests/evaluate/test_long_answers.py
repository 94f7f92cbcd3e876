"""Constraints, instructions and drift against texts whose figures are known by construction."""

from __future__ import annotations

import pytest

from ghostkv.evaluate.constraints import CONSTRAINTS, whole_sentences
from ghostkv.evaluate.drift import distinct, figures, precision, reopenings, scaffolding
from ghostkv.evaluate.generations import Session
from ghostkv.evaluate.instructions import checked
from ghostkv.request import Message

BY_NAME = {constraint.name: constraint for constraint in CONSTRAINTS}


@pytest.mark.parametrize(
    ("name", "text", "kept"),
    [
        ("no commas", "one and two", True),
        ("no commas", "one, two", False),
        ("lower case", "all is small. 7 things; été", True),
        ("lower case", "all is Small", False),
        ("no digits", "seven", True),
        ("no digits", "room 7", False),
        ("without 'very'", "every thing", True),
        ("without 'very'", "It is VERY good", False),
        ("with 'water'", "Water is wet. I drink water.", True),
        ("with 'water'", "Waterfall water", False),
        ("short sentences", f"{'cut ' * 30}off. A short one. {'open ' * 30}", True),
        ("short sentences", f"Cut off. {'Long ' * 21}one. And open", False),
        ("exclamations", "end of one. All right! So it goes! And open", True),
        ("exclamations", "end of one! All right. So it goes! And open", False),
        ("exclamations", 'Cut! "So it goes!" And on', True),
        ("bullets", "rest of a line\n- one\n- two\n\n* three\n- cut", True),
        ("bullets", "rest\n- one\nprose here\n- cut", False),
        ("bullets", "prose without lines", False),
    ],
)
def test_constraints(name: str, text: str, kept: bool) -> None:
    assert BY_NAME[name].kept(text) is kept


def test_only_whole_sentences_are_looked_at() -> None:
    assert whole_sentences("tail of one. Two here. Three here! and four") == ["Two here."]
    assert whole_sentences("tail of one. Two here. Three here! And four") == ["Two here.", "Three here!"]
    assert whole_sentences("nothing whole") == []


def session(*segments: str, asked: str = "Tell me about Aster-7 at 21.4 degrees.") -> Session:
    return Session((Message("user", asked),), 0, (), segments, tuple(map(len, segments)), 100.0, 200)


def test_instructions_kept_at_both_ends() -> None:
    commas, digits = BY_NAME["no commas"], BY_NAME["no digits"]
    answers = [session(*["good"] * 4, "bad, bad", "bad, bad"), session(*["good"] * 6), session(*["1", "good"] * 3)]
    found = checked([commas, commas, digits], answers, 6)
    assert found["by_segment"] == [2 / 3, 1, 2 / 3, 1, 1 / 3, 2 / 3]
    assert found["first"]["estimate"] == pytest.approx(7 / 9) and found["last"]["estimate"] == pytest.approx(6 / 9)
    assert found["last_to_first"] == pytest.approx(6 / 7)
    assert found["by_constraint"] == {"no commas": pytest.approx(10 / 12), "no digits": 0.5}


def test_an_answer_that_ended_early_counts_as_far_as_it_goes() -> None:
    found = checked([BY_NAME["no commas"]] * 2, [session("a", "b"), session("a,")], 5)
    assert found["by_segment"] == [0.5, 1.0, None, None, None]
    assert found["last"]["low"] == 0 and found["last"]["high"] == 1 and found["last_to_first"] is None


BLOCK = "Known facts you should keep in mind: the captain is Ilse."


def test_scaffolding_is_what_the_prompt_added_and_the_answer_repeats() -> None:
    prompts = [f"user Tell me. {BLOCK if index else ''} assistant" for index in range(4)]
    answer = session("It began on a cold day at sea.", "It went on.", f"And {BLOCK}", "The known facts are few.")
    assert scaffolding(answer, prompts) == [False, True, False]
    quoted = session("He said: the captain is a tall man indeed.", "Yes, the captain is a tall man.", "So.", "End.")
    recalled = ["", *["Known facts: the captain is a tall man indeed."] * 3]
    assert scaffolding(quoted, recalled) == [False, False, False]  # the answer's own words, brought back


def test_reopenings() -> None:
    first = "In the year of the great storm nobody dared to leave the house. Then it rained."
    assert reopenings([first, "The rain went on. It stopped.", f"end. {first}", "Another thing entirely. Yes."]) == [
        False,
        True,
        False,
    ]
    assert reopenings(["One. Two. Three words here.", "One. Two. Other words."]) == [False]


def test_distinct_falls_where_words_repeat() -> None:
    assert distinct(["a b c d", "e f g h"], 2) == 1
    assert distinct(["a a a a"], 1) == 0.25
    assert distinct(["a b a b a b", "x"], 2) == pytest.approx(2 / 5)
    assert distinct([], 1) == 0


def test_facts_in_a_prompt_that_nobody_stated() -> None:
    answer = session("The pressure was 68.2 when Ilse Varnholt came.", "Later it was cold.", "End.")
    asked = "Tell me about Aster-7 at 21.4 degrees."
    prompts = [asked, f"{asked} Known: 68.2, 70.1, Ilse Varnholt.", f"{asked} Known: 68.2 and Ilse Varnham."]
    assert precision(answer, prompts) == (3, 5)


def test_figures_without_a_state_block() -> None:
    found = figures([session("One two three four five six.", "Seven eight nine ten eleven.")], [["p", "p"]])
    assert found["scaffolding"]["estimate"] == found["reopenings"]["estimate"] == 0
    assert found["distinct"] == {"1": 1, "2": 1, "3": 1}
    assert (found["fact_precision"]["low"], found["fact_precision"]["high"]) == (0.0, 1.0)
