"""The reader: one result however the text is cut, no text that it cannot read, and time linear in its length."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ghostkv.protocol.facts import Fact, Kind, Sentence
from ghostkv.protocol.reader import Reader

STORY = (
    'The habitat is at 21.4 °C. Dr. Okafor lives in Lisbon. She said: "The limit is 6 GB." It rose to 22 C. The crew '
    "slept,\nand the pump, rated v2.4.1,\nwent on. Call me at 5 p.m. today... or not! 第一章。ここまで。\n\n"
    "# Log\n- one: 5 km\n- two\n  goes on\n1. First item. With more.\n> quoted. Twice.\n\n"
    "| a | b |\n|---|---|\n| x | 3 m |\n"
    "```python\nx = 5\ndef run(): pass\n```\n"
    "port: 8080\nCaptain: Mira Voss\n2026-03-14 10:02:11 WARN disk at 91%. Full.\n"
    "A long line that is wrapped by its editor because it is longer than sixty characters\n"
    "goes on here and ends. Next.\n"
)
PIECES = st.one_of(
    st.sampled_from(
        [
            ". ",
            "? ",
            "\n",
            "\n\n",
            "```\n",
            "~~~",
            "- ",
            "| ",
            "# ",
            "> ",
            ": ",
            " = ",
            '"',
            "“",
            "(",
            "5 C. The ",
            "Mr. ",
            "1. ",
        ]
    ),
    st.sampled_from(
        [
            "It was ",
            "Aster-7 ",
            "the price rose to ",
            "$5",
            "km",
            "、",
            "。",
            "\r",
            "\u2028",
            "\t",
            "x" * 70,
            " " * 70,
            "*",
        ]
    ),
    st.text(max_size=5),
)


def read(pieces: Sequence[str]) -> tuple[tuple[Sentence, ...], tuple[Fact, ...]]:
    reader = Reader(3, "user")
    sentences: list[Sentence] = []
    facts: list[Fact] = []
    for segment, piece in enumerate(pieces):
        reader, reading = reader.feed(piece, segment, final=segment == len(pieces) - 1)
        sentences.extend(reading.sentences)
        facts.extend(reading.facts)
    assert reader.pending == ""
    blank = [replace(sentence, segment=0) for sentence in sentences]
    return tuple(blank), tuple(replace(fact, sentence=replace(fact.sentence, segment=0)) for fact in facts)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_the_cuts_of_the_story_do_not_show(data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(STORY)), max_size=12)))
    pieces = [STORY[a:b] for a, b in zip([0, *cuts], [*cuts, len(STORY)])]
    assert read(pieces) == read([STORY])


@settings(max_examples=200, deadline=None)
@given(st.lists(PIECES, min_size=1, max_size=40), st.data())
def test_the_cuts_of_any_text_do_not_show(parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)])]
    assert read(pieces) == read([text])


def test_character_by_character() -> None:
    text = STORY + "word " * 400 + "x" * 2000 + "\n" + STORY
    assert read(list(text)) == read([text])


def test_sentences_and_lines_of_the_story() -> None:
    sentences, _ = read([STORY])
    assert [sentence.text for sentence in sentences] == [
        "The habitat is at 21.4 °C.",
        "Dr. Okafor lives in Lisbon.",
        'She said: "The limit is 6 GB."',
        "It rose to 22 C.",
        "The crew slept, and the pump, rated v2.4.1, went on.",
        "Call me at 5 p.m. today... or not!",
        "第一章。",
        "ここまで。",
        "Log",
        "one: 5 km",
        "two goes on",
        "First item.",
        "With more.",
        "quoted.",
        "Twice.",
        "| a | b |",
        "| x | 3 m |",
        "x = 5",
        "def run(): pass",
        "port: 8080",
        "Captain: Mira Voss",
        "2026-03-14 10:02:11 WARN disk at 91%. Full.",
        "A long line that is wrapped by its editor because it is longer than sixty characters goes on here and ends.",
        "Next.",
    ]
    for sentence in sentences:
        written = " ".join(STORY[sentence.position.offset :].split())
        assert written.startswith(sentence.text)


def test_what_may_go_on_stays_pending() -> None:
    reader, reading = Reader(0, "assistant").feed("The habitat of the crew that lives on the far side is at 21.4", 0)
    assert reading.sentences == ()
    reader, reading = reader.feed(" °C. It has", 1)
    assert [sentence.text for sentence in reading.sentences] == [
        "The habitat of the crew that lives on the far side is at 21.4 °C."
    ]
    assert reading.sentences[0].segment == 1
    assert [fact.value for fact in reading.facts] == ["21.4 °C"]
    reader, reading = reader.feed("", 1, final=True)
    assert [(sentence.text, sentence.segment) for sentence in reading.sentences] == [("It has", 1)]


def test_a_sentence_belongs_to_the_segment_in_which_it_ends() -> None:
    reader, first = Reader(0, "assistant").feed("The price of the first of the two lots is 5 dollars. The second ", 7)
    reader, second = reader.feed("costs 9 dollars.", 8)
    reader, third = reader.feed(" And there is no third one at all, as far as anybody knows.", 9, final=True)
    ends = [
        (sentence.segment, sentence.text[:9]) for reading in (first, second, third) for sentence in reading.sentences
    ]
    assert ends == [(7, "The price"), (8, "The secon"), (9, "And there")]


def found(text: str) -> list[tuple[str, str, str, str]]:
    return [(fact.kind.value, fact.subject, fact.attribute, fact.value) for fact in read([text])[1]]


def test_tables_entries_and_code() -> None:
    assert found(
        "| Pump | Pressure | Port |\n|---|---|---|\n| **A** | 3.2 bar | north |\n| B | 3.4 bar | south |\n"
    ) == [
        ("quantity", "A", "pressure", "3.2 bar"),
        ("entry", "A", "port", "north"),
        ("quantity", "B", "pressure", "3.4 bar"),
        ("entry", "B", "port", "south"),
    ]
    assert found("[server]\nport = 80\n[client]\nport = 90\n") == [
        ("quantity", "server", "port", "80"),
        ("quantity", "client", "port", "90"),
    ]
    assert {
        kind for kind, *_ in found("```\nx = 5 km\ny = 7\nMira Voss called run() on 5 May 2026\ndef go(): pass\n```\n")
    } <= {
        "code",
        "entry",
    }


@pytest.mark.parametrize(
    ("text", "topic"),
    [
        ("The concentration is 0.05 mol/L. It is now 0.08 mol/L.", "The concentration"),
        ("Dr. Okafor lives in Lisbon. She moved in May.", "Dr. Okafor"),
        ("Module Eos is warm. It was cold before.", "Module Eos"),
        ("Mira Voss opened the hatch. It creaked.", ""),
        ("Mira Voss is happy. It rains.", ""),
        ("Mira Voss is with Elena Holm. She smiles.", ""),
        ("Mira Voss is the aunt of Elena Holm. She smiles.", ""),
        ("The captain is tall. It rains.", ""),
        ("Is the price 5 dollars? It is.", ""),
        ("Nobody came. It rained.", ""),
        ("The valve feeds the pump. It is red.", ""),
    ],
)
def test_a_pronoun_is_resolved_only_where_that_is_safe(text: str, topic: str) -> None:
    assert [sentence.topic for sentence in read([text])[0]][1:] == [topic]


HOSTILE = [
    "a" * 100_000,
    "word " * 20_000,
    '"' * 50_000,
    '"“' * 25_000 + "x",
    ".!?" * 33_000,
    "1," * 50_000,
    "1.1." * 25_000,
    "-" * 100_000,
    "a@" * 50_000,
    "a." * 50_000,
    "/a" * 50_000,
    "A-1" * 33_000,
    "Ab " * 33_000,
    "Ab-" * 33_000,
    "a_" * 50_000,
    "0x" + "f" * 100_000,
    "(" * 100_000,
    "`" * 100_000,
    "if from to " * 9_000,
    "from 1 to " * 10_000,
    "The price is now " * 6_000,
    "| " * 50_000,
    "\n" * 100_000,
    " " * 100_000,
    "key: " * 20_000,
    "a=" * 50_000,
    "مرحبا بالعالم ٣٫٥ " * 5_000,
    "温度は二十二度。" * 12_000,
    "🙂👩‍👩‍👧‍👦" * 9_000,
    "\x00\x01\x02\x1b[0m\u202e\ufeff" * 10_000,
    "\ud800\udfff x " * 10_000,
    "```\n" + "x" * 100_000,
    "> " * 50_000,
    "1 1/2 " * 16_000,
    "²³¼ ٤٥ ⅷ " * 10_000,
]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: repr(text[:12]))
def test_hostile_text_is_read_in_linear_time(text: str) -> None:
    def cost(part: str) -> float:
        """The best of three, which noise only makes longer."""
        found = []
        for _ in range(3):
            start = time.process_time()
            read([part])
            found.append(time.process_time() - start)
        return min(found)

    tenth, whole = cost(text[: len(text) // 10]), cost(text)
    assert whole < 5.0
    assert whole < 30 * max(tenth, 0.01)


def test_an_open_line_does_not_cost_more_as_it_grows() -> None:
    reader = Reader(0, "assistant")
    for segment in range(200):
        reader, _ = reader.feed("x" * 500, segment)
        assert len(reader.pending) < 2_000


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=300))
def test_any_text_can_be_read(text: str) -> None:
    sentences, facts = read([text])
    for fact in facts:
        assert fact.value in fact.sentence.text
        assert fact.value
        assert fact.kind in Kind
    positions = [sentence.position for sentence in sentences]
    assert positions == sorted(set(positions))
