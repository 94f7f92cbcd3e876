"""The ranker against a recomputation without index, and against questions whose answers are known."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ghostkv.protocol.facts import Kind, Position, Sentence
from ghostkv.protocol.recall import Hit, Query, search
from ghostkv.protocol.sentence_index import SentenceIndex
from ghostkv.protocol.terms import terms
from questions import HELD_OUT, KNOWN, Question, document

VOCABULARY = (
    "reactor valve Eos captain commander leads temperature warm warmer degrees cost price AX-4471 4471 21.4 ° € "
    "locate location located it the Ilse Vargas is was when 温度計 administrator administers founded"
)
WORDS = VOCABULARY.split()
TEXTS = st.builds(
    "{}{}{}".format,
    st.sampled_from(["", "", "", "# ", "### ", "- ", "It ", "They "]),
    st.lists(st.sampled_from(WORDS), max_size=7).map(" ".join),
    st.sampled_from([".", ".", "?", ":", ""]),
)
SENTENCES = st.lists(
    st.tuples(st.integers(0, 2), TEXTS, st.sampled_from(["", "", "The valve"])), min_size=1, max_size=14
).map(
    lambda rows: [
        Sentence(Position(message, 0, 10 * number), 0, "assistant", text, topic)
        for number, (message, text, topic) in enumerate(sorted(rows, key=lambda row: row[0]))
    ]
)
QUERIES = st.builds(
    Query.of,
    st.builds("{} {}?".format, st.sampled_from(["Who", "When", "How much", "Tell"]), TEXTS),
    st.one_of(st.just(""), TEXTS),
)


def said(*texts: str, message: int = 0) -> list[Sentence]:
    return [Sentence(Position(message, 0, 10 * i), 0, "assistant", text) for i, text in enumerate(texts)]


def texts_of(hits: Sequence[Hit]) -> list[str]:
    return [hit.sentence.text for hit in hits]


def holds_number(sentence: Sentence) -> tuple[Kind, ...]:
    return (Kind.QUANTITY,) if re.search(r"\d", sentence.text) else ()


# --- oracle: every number from the sentences themselves ---


def level(sentences: Sequence[Sentence], i: int) -> int:
    text = sentences[i].text
    marks = len(text) - len(text.lstrip("#"))
    if 1 <= marks <= 6 and text[marks : marks + 1] == " ":
        return marks
    if text[-1:] and text[-1] in ".!?,;":
        return 8
    first = i == 0 or sentences[i - 1].position.message != sentences[i].position.message
    return 0 if first else 7 if text.endswith(":") else 8


def borrowed(sentences: Sequence[Sentence], i: int) -> list[Sentence]:
    """Headings above a sentence and the sentence that its pronoun needs."""
    found: list[Sentence] = []
    below = level(sentences, i)
    j = i
    while j > 0 and sentences[j - 1].position.message == sentences[i].position.message:
        j -= 1
        if level(sentences, j) < below:
            below = level(sentences, j)
            found.append(sentences[j])
    pronoun = sentences[i].text.split(" ")[0].lower() in {"it", "they"} and not sentences[i].topic
    if pronoun and i > 0 and sentences[i - 1].position.message == sentences[i].position.message:
        found.append(sentences[i - 1])
    return found


def impacts(sentences: Sequence[Sentence]) -> list[dict[str, int]]:
    result = []
    for i, sentence in enumerate(sentences):
        counts = Counter(terms(sentence.resolved))
        length = sum(counts.values())
        own = {}
        for term, count in counts.items():
            norm = Fraction(12, 10) * (Fraction(6, 10) + Fraction(4, 10) * length / 14)
            worth = int(64 * count * Fraction(22, 10) / (count + norm))
            own[term] = worth // 2 if sentence.text.endswith("?") else worth
        for other in borrowed(sentences, i):
            for term in terms(other.resolved):
                own.setdefault(term, 32)
        result.append(own)
    return result


def idf(total: int, holding: int) -> int:
    ratio = Fraction(2 * total + 2, 2 * holding + 1)
    sixteenths = 0
    while ratio**16 >= 2 ** (sixteenths + 1):
        sixteenths += 1
    return max(1, sixteenths)


def expected(
    sentences: Sequence[Sentence], query: Query, limit: int, kinds: Callable[[Sentence], tuple[Kind, ...]] | None
) -> list[tuple[Sentence, int]]:
    table = impacts(sentences)
    vocabulary = {term for row in table for term in row}
    weights = list(query.terms)
    for term, weight in query.terms:
        for other in sorted(vocabulary - {term for term, _ in query.terms}):
            if not (term.isalpha() and other.isalpha() and min(len(term), len(other)) > 3 and term[:3] == other[:3]):
                continue
            one, two = ({f"^{word}"[i : i + 3] for i in range(len(word) - 1)} for word in (term, other))
            percent = 200 * len(one & two) // (len(one) + len(two))
            part = weight * percent // (400 if term in vocabulary else 200)
            if percent >= 50 and part:
                weights.append((other, part))
    holding = Counter(term for row in table for term in row)
    gains = [(term, weight * idf(len(sentences), holding[term])) for term, weight in weights if holding[term]]
    best = max((gain for _, gain in gains), default=0)
    ranked = []
    for i, row in enumerate(table):
        score = sum(gain * row.get(term, 0) for term, gain in gains if gain >= best // 16)
        if score and kinds is not None and set(query.kinds) & set(kinds(sentences[i])):
            score += 16 * 64 * 32
        if score:
            ranked.append((score, i))
    result: dict[str, tuple[Sentence, int]] = {}
    for score, i in sorted(ranked, reverse=True):
        result.setdefault(sentences[i].resolved, (sentences[i], score))
    return list(result.values())[:limit]


@settings(max_examples=300, deadline=None)
@given(SENTENCES, QUERIES, st.integers(0, 5), st.sampled_from([None, holds_number]))
def test_search_is_what_the_formula_says(
    sentences: list[Sentence],
    query: Query,
    limit: int,
    kinds: Callable[[Sentence], tuple[Kind, ...]] | None,
) -> None:
    hits = search(SentenceIndex().append(sentences), query, limit, kinds=kinds)
    assert [(hit.sentence, hit.score) for hit in hits] == expected(sentences, query, limit, kinds)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), SENTENCES), min_size=1, max_size=6), QUERIES)
def test_an_index_grown_in_forks_equals_one_rebuilt(steps: list[tuple[int, list[Sentence]]], query: Query) -> None:
    known: list[tuple[SentenceIndex, list[Sentence]]] = [(SentenceIndex(), [])]
    for chosen, sentences in steps:
        index, before = known[chosen % len(known)]
        known.append((index.append(sentences), before + sentences))
    for index, sentences in known:
        rebuilt = SentenceIndex().append(sentences)
        assert index == rebuilt
        assert search(index, query, 4) == search(rebuilt, query, 4)
        one_by_one = SentenceIndex()
        for sentence in sentences:
            one_by_one = one_by_one.append([sentence])
        assert search(one_by_one, query, 4) == search(rebuilt, query, 4)


# --- behaviour ---


def find(question: str, *texts: str, tail: str = "", limit: int = 6) -> list[str]:
    return texts_of(search(SentenceIndex().append(said(*texts)), Query.of(question, tail), limit))


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What is 4471?", "Unit AX-4471 was sealed."),
        ("Where is AX4471?", "Unit AX-4471 was sealed."),
        ("what is max tokens", "Set maxTokens first."),
        ("Wer ist Herr Muller?", "Müller sprach zuerst."),
        ("温度計はどこですか", "東の温度計は壊れた。"),
        ("What costs 1250?", "They asked for 1,250 in all."),
        ("Who administered it?", "The administrator slept."),
        ("How warm was it?", "The reading was 21.4 °C."),
    ],
)
def test_what_is_written_differently_is_found(question: str, answer: str) -> None:
    others = ("The day went by.", "Unit BX-9 was moved.", "西の橋は長い。", "They asked for 1,260 in vain.")
    assert find(question, *others, answer)[0] == answer


def test_of_equal_sentences_the_later_comes_first_and_a_text_once() -> None:
    index = SentenceIndex().append(said("Valve one leaks.", "Valve two leaks.", "Valve one leaks."))
    found = search(index, Query.of("valve"), 6)
    assert [(hit.sentence.text, hit.sentence.position.offset) for hit in found] == [
        ("Valve one leaks.", 20),
        ("Valve two leaks.", 10),
    ]
    assert found[0].score == found[1].score


def test_the_question_outweighs_the_tail() -> None:
    texts = ("The harbour was rebuilt.", "The orchard was replanted.")
    assert find("Tell me about the orchard.", *texts, tail="At the harbour they")[0] == texts[1]
    assert find("", *texts, tail="At the harbour they") == [texts[0]]


def test_what_is_skipped_makes_room() -> None:
    index = SentenceIndex().append(said("Valve one is open.", "Valve two is open.", "Valve three is open."))
    found = search(index, Query.of("Which valve is open?"), 2, skip=lambda sentence: "three" in sentence.text)
    assert texts_of(found) == ["Valve two is open.", "Valve one is open."]


def test_a_kind_that_the_question_asks_for_decides_between_equals() -> None:
    index = SentenceIndex().append(said("Eos has 12 beds.", "Eos has many beds."))
    query = Query.of("How many beds has Eos?")
    assert query.kinds == (Kind.QUANTITY,)
    assert texts_of(search(index, query, 1)) == ["Eos has many beds."]
    assert texts_of(search(index, query, 1, kinds=holds_number)) == ["Eos has 12 beds."]


def test_of_two_with_one_text_the_one_with_the_fact_wins() -> None:
    index = SentenceIndex().append(said("Eos has 12 beds.", "Eos has 12 beds."))
    query = Query.of("How many beds has Eos?")
    found = search(index, query, 2, kinds=lambda one: () if one.position.offset else (Kind.QUANTITY,))
    assert [hit.sentence.position.offset for hit in found] == [0]


def test_a_pronoun_brings_the_sentence_before_it() -> None:
    index = SentenceIndex().append(said("The lamp stands in Tarvos.", "It burns whale oil.", "Rain fell."))
    hit = search(index, Query.of("What does the lamp of Tarvos burn as fuel?"), 1)[0]
    assert hit.text == "The lamp stands in Tarvos. It burns whale oil."
    shown = search(index, Query.of("whale oil"), 1, skip=lambda sentence: "Tarvos" in sentence.text)[0]
    assert shown.text == "It burns whale oil."
    resolved = Sentence(Position(0, 0, 0), 0, "user", "It burns whale oil.", "The lamp")
    assert search(SentenceIndex().append([resolved]), Query.of("lamp"), 1)[0].text == "The lamp burns whale oil."


def test_a_heading_stands_for_what_is_under_it() -> None:
    texts = (
        "# Gold card",
        "## Fees",
        "- 25 a year",
        "## Limits",
        "- 900 a day",
        "# Blue card",
        "## Fees",
        "- 30 a year",
    )
    hits = search(SentenceIndex().append(said(*texts)), Query.of("yearly fees of the gold card"), 1)
    assert texts_of(hits) == ["- 25 a year"]
    assert [heading.text for heading in hits[0].headings] == ["# Gold card", "## Fees"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=60), max_size=6), st.text(max_size=80), st.text(max_size=80))
def test_any_text_can_be_searched(texts: list[str], question: str, tail: str) -> None:
    index = SentenceIndex().append(said(*texts))
    hits = search(index, Query.of(question, tail), 3, kinds=lambda sentence: (Kind.NAME,))
    assert all(hit.score > 0 for hit in hits)


HOSTILE = (
    "a-" * 30_000,
    "1.1," * 30_000,
    "温" * 60_000,
    "\ud800\udc00\0" * 9_000,
    "#" * 50_000 + " x",
    "who " * 20_000,
)


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:4].encode("unicode_escape").decode())
def test_a_huge_line_is_no_harder_than_its_length(text: str) -> None:
    index = SentenceIndex().append(said(text, "The valve is shut."))
    assert len(Query.of(text).terms) <= 60
    search(index, Query.of(text, text), 2)
    assert texts_of(search(index, Query.of("valve"), 2)) == ["The valve is shut."]


PROGRAM = """
import random
from questions import HELD_OUT, document
from ghostkv.protocol.recall import Query, search
from ghostkv.protocol.sentence_index import SentenceIndex
sentences, _, questions = document(random.Random(4), HELD_OUT, entities=3)
index = SentenceIndex().append(sentences)
for question in questions:
    print(Query.of(question.text, sentences[0].text), search(index, Query.of(question.text, sentences[0].text), 6))
"""


def test_no_hash_seed_shows() -> None:
    tests = Path(__file__).parents[1]
    outputs = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(tests)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert outputs.pop().count(b"Hit(") > 200


# --- quality ---


def overlap(sentences: Sequence[Sentence], question: Question) -> list[Sentence]:
    asked = set(re.findall(r"\w+", question.text.lower()))
    return sorted(
        sentences,
        key=lambda one: (len(asked.intersection(re.findall(r"\w+", one.text.lower()))), one.position),
        reverse=True,
    )[:6]


def share(found: Sequence[bool]) -> float:
    return 100 * sum(found) / len(found)


@pytest.mark.parametrize("attributes", [KNOWN, HELD_OUT], ids=["known", "held out"])
def test_paraphrased_questions_find_their_answer(attributes: tuple[object, ...]) -> None:
    """Measured: 100 % of direct questions, 88 and 96 % of paraphrases; word overlap finds 45 and 48 % of those."""
    sentences, kinds, questions = document(random.Random(1), HELD_OUT if attributes is HELD_OUT else KNOWN)
    index = SentenceIndex().append(sentences)
    hits = [(question, texts_of(search(index, Query.of(question.text), 6))) for question in questions]
    assert share([question.answer.text in found for question, found in hits if not question.paraphrased]) == 100
    assert share([question.answer.text in found for question, found in hits if question.paraphrased]) >= 80
    assert share([q.answer in overlap(sentences, q) for q in questions if q.paraphrased]) <= 60
    of = dict(zip(sentences, kinds, strict=True))
    with_kinds = [
        question.answer
        in [hit.sentence for hit in search(index, Query.of(question.text), 6, kinds=lambda one: (of[one] or Kind.URL,))]
        for question in questions
        if question.paraphrased
    ]
    assert share(with_kinds) >= 88
