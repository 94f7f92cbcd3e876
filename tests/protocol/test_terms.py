"""Terms and concepts of text, by example."""

from __future__ import annotations

import pytest

from ghostkv.protocol.concepts import wanted
from ghostkv.protocol.facts import Kind
from ghostkv.protocol.recall import Query
from ghostkv.protocol.stems import stem
from ghostkv.protocol.terms import terms


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The captain of AX-4471", "captain ~leader ax4471 ax 4471"),
        ("paid $1,250.50 at 14:35", "paid ~cost ~income $ ~cost 1250.50 14:35"),
        ("v2.4.1 on 2031-05-04", "v2.4.1 v 2.4.1 20310504 2031"),
        ("maxTokens, snake_name", "max token snak nam ~name"),
        ("Müller's ﬁle", "muller fil"),
        ("温度は21.4 °C", "温度 度は 21.4 ° ~temperature c"),
        ("हिन्दी ไทย", "हिन्दी ไท ทย"),
        ("____ --- the of", ""),
    ],
)
def test_terms(text: str, expected: str) -> None:
    assert " ".join(terms(text)) == expected


@pytest.mark.parametrize(
    "words",
    [
        "house houses housed housing",
        "city cities",
        "run runs running",
        "carry carried carries carrying",
        "name named naming",
        "box boxes",
        "quick quickly",
    ],
)
def test_forms_of_a_word_share_a_stem(words: str) -> None:
    assert len(set(map(stem, words.split()))) == 1


def test_words_that_only_look_like_forms_keep_apart() -> None:
    assert len(set(map(stem, "ring sing king need status gas glass universe university".split(" ")))) == 9  # noqa: SIM905


@pytest.mark.parametrize(
    ("question", "kinds"),
    [
        ("Who leads it?", (Kind.NAME,)),
        ("When did it open?", (Kind.DATE, Kind.TIME)),
        ("Where is it?", (Kind.PLACE,)),
        ("How heavy is it?", (Kind.QUANTITY,)),
        ("What is the serial number?", (Kind.IDENTIFIER,)),
        ("Go on.", ()),
    ],
)
def test_a_question_tells_what_would_answer_it(question: str, kinds: tuple[Kind, ...]) -> None:
    assert wanted(question)[0] == kinds


def test_a_query_weighs_identifiers_above_words_above_concepts_above_the_tail() -> None:
    weights = dict(Query.of("Which captain sealed AX-4471?", "A valve").terms)
    order = [weights[term] for term in ("ax4471", "captain", "~leader", "valv")]
    assert order == sorted(set(order), reverse=True)
