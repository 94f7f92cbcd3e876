"""Reading calls out of an answer: what is read does not depend on how the text comes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ghostkv.server.tool_reader import Arguments, CallBegins, Content, Piece, ToolReader

NAMES = ("f", "g.h-1")
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from(['}"', "\\", "</tool_call>", "{"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.text(max_size=4), VALUES, max_size=3)
CALLS = st.lists(st.tuples(st.sampled_from(NAMES), OBJECTS), max_size=3)
TEXTS = st.text(max_size=12).filter(lambda text: "<tool_call>" not in text)


PARTS = [
    *("<tool", "_call>", "</tool_call>", '{"name": "f", ', '"arguments": {'),
    *('"a": "}', '"}', "}", "\\", "x", " ", "\n"),
]


def read(parts: Iterable[str], **how: bool) -> tuple[ToolReader, list[Piece]]:
    reader = ToolReader(NAMES, **{"required": False, **how})
    pieces = [piece for part in parts for piece in reader.feed(part)]
    return reader, [*pieces, *reader.close()]


def content(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, Content))


def calls(pieces: Sequence[Piece]) -> list[tuple[str, str]]:
    """As a client puts them together."""
    found: list[tuple[str, str]] = []
    for piece in pieces:
        if isinstance(piece, CallBegins):
            assert piece.index == len(found)
            found.append((piece.name, ""))
        elif isinstance(piece, Arguments):
            name, arguments = found[piece.index]
            found[piece.index] = name, arguments + piece.text
    return found


def written(name: str, arguments: object, gap: str = "\n") -> str:
    return f'<tool_call>{gap}{{"name": {json.dumps(name)}, "arguments": {json.dumps(arguments)}}}{gap}</tool_call>'


@given(TEXTS, CALLS, st.sampled_from(("", "\n", " \n")))
def test_text_and_calls_are_read_back(text: str, made: list[tuple[str, dict[str, Any]]], gap: str) -> None:
    reader, pieces = read([text + "\n".join(written(*call, gap) for call in made)])
    assert content(pieces) == (text.rstrip() if made else text)
    assert [(name, json.loads(arguments)) for name, arguments in calls(pieces)] == made
    assert reader.complete is bool(made)


@given(
    st.lists(st.sampled_from(PARTS), max_size=14),
    st.data(),
    st.booleans(),
    st.booleans(),
)
def test_how_the_text_is_divided_makes_no_difference(
    parts: list[str], data: st.DataObject, required: bool, apart: bool
) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    divided = [text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole, whole_pieces = read([text], required=required, apart=apart)
    reader, pieces = read(divided, required=required, apart=apart)
    assert content(pieces) == content(whole_pieces)
    assert calls(pieces) == calls(whole_pieces) == [(call.name, call.arguments) for call in reader.calls]
    assert reader.complete == whole.complete


@pytest.mark.parametrize(
    ("text", "said", "made", "complete"),
    [
        ("", "", [], False),
        ("Hello <tool", "Hello <tool", [], False),
        ("a < b  ", "a < b  ", [], False),
        ("Wait.\n<tool_call>", "Wait.", [], False),
        ('<tool_call>{"name": "f", "argum', "", [], False),
        ('<tool_call>{"name": "f", "arguments": ', "", [], False),
        ('<tool_call>{"name": "f", "arguments": {', "", [("f", "{")], False),
        ('<tool_call>{"name": "f", "arguments": {"a": "}', "", [("f", '{"a": "}')], False),
        ('<tool_call>{"name": "f", "arguments": {}', "", [("f", "{}")], True),  # the end of the call can be told
        ('<tool_call>{"name": "f", "arguments": {x}}</tool_call>', "", [("f", "{x}")], False),
        ('<tool_call>{"name": "k", "arguments": {}}</tool_call>', None, [], False),
        ("<tool_call>no</tool_call>", None, [], False),
    ],
)
def test_cut_and_broken_calls(text: str, said: str | None, made: list[tuple[str, str]], complete: bool) -> None:
    reader, pieces = read([text])
    assert content(pieces) == (text if said is None else said)
    assert calls(pieces) == made
    assert reader.complete is complete


def test_of_an_answer_that_begins_with_a_call_half_a_tag_is_no_content() -> None:
    assert read(["<tool_ca"], required=True)[1] == []


def test_where_content_stands_alone_a_tag_in_it_is_content() -> None:
    said = f'{{"answer": "{written("f", {})} and <tool_call>"}}'
    assert content(read([said], apart=True)[1]) == said
    assert calls(read([written("f", {})], apart=True)[1]) == [("f", "{}")]


def test_content_and_arguments_come_as_they_are_written() -> None:
    reader = ToolReader(NAMES, required=False)
    assert reader.feed("Wait ") == [Content("Wait")]
    assert reader.feed("a <") == [Content(" a")]
    assert reader.feed("b") == [Content(" <b")]
    assert reader.feed('\n<tool_call>\n{"name": "f", "arguments":') == []
    assert reader.feed(' {"') == [CallBegins(0, "f"), Arguments(0, '{"')]
    assert reader.feed("x") == [Arguments(0, "x")]
    assert reader.feed('": 1}}\n') == [Arguments(0, '": 1}')]
    assert reader.feed("</tool_call>") == []
