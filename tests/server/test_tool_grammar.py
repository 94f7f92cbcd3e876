"""Which texts an answer that may call tools can be, byte by byte."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from fakes import byte_tokenizer
from ghostkv.request import Tool
from ghostkv.server.structure import Structure
from ghostkv.server.tool_grammar import ToolGrammar
from ghostkv.server.tools import Calling
from ghostkv.text.grammar import Grammars

TOKENIZER = byte_tokenizer()


def tool(name: str, parameters: dict[str, Any] | None = None) -> Tool:
    function = {"name": name} if parameters is None else {"name": name, "parameters": parameters}
    return Tool(name, json.dumps({"type": "function", "function": function}))


def referring(kind: str) -> dict[str, Any]:
    """Schemas of several functions use one name for different things."""
    return {
        "properties": {"x": {"$ref": "#/$defs/X"}},
        "required": ["x"],
        "additionalProperties": False,
        "$defs": {"X": {"type": kind}},
    }


TOOLS = (tool("count", referring("integer")), tool("say", referring("string")), tool("now"), tool("any", {}))
NAMES = tuple(each.name for each in TOOLS)


def call(name: str, arguments: str, gap: str = "\n") -> str:
    return f'<tool_call>{gap}{{"name": "{name}", "arguments": {arguments}}}{gap}</tool_call>'


COUNT, SAY, NOW = call("count", '{"x": 3}'), call("say", '{"x": "a <tool_call> b"}'), call("now", "{}")


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    yield TOKENIZER.grammars


def matches(grammars: Grammars, written: ToolGrammar, text: str) -> bool | None:
    """Whether an answer may be `text`; None where it may only begin so."""
    matcher = written.compiled(grammars, "").start()
    for byte in text.encode():
        if not matcher.allowed()[byte // 32] >> (byte % 32) & 1:
            return False
        matcher.accept(byte)
    end = TOKENIZER.eos_ids[0]
    bits = matcher.allowed()
    return True if matcher.complete or bits[end // 32] >> (end % 32) & 1 else None


@pytest.mark.parametrize(
    ("text", "auto", "required"),
    [
        ("", True, None),
        ("Hello < <tool_ca", True, False),
        (NOW, True, True),
        (f"Wait.\n{NOW}", True, False),
        (f"{NOW}\n{COUNT}", True, True),
        (f"{NOW}{COUNT}", True, True),
        (SAY, True, True),
        (call("say", '{"x":"é\\n"}', ""), True, True),
        (call("any", '{"a": [1, {"b": null}]}'), True, True),
        (f"{NOW} more", False, False),
        (call("count", '{"x": "3"}'), False, False),
        (call("say", '{"x": 3}'), False, False),
        (call("say", "{}"), False, False),
        (call("now", '{"x": 3}'), False, False),
        (call("any", "3"), False, False),
        (call("absent", "{}"), False, False),
        ("<tool_call>\n\n\n", False, False),
        ("<tool_call>no", False, False),
        (NOW.removesuffix("</tool_call>"), None, None),
    ],
)
def test_what_may_be_written(grammars: Grammars, text: str, auto: bool | None, required: bool | None) -> None:
    for must, expected in ((False, auto), (True, required)):
        calling = Calling(TOOLS, NAMES, frozenset(NAMES), required=must, parallel=True)
        assert matches(grammars, ToolGrammar(calling), text) is expected


@pytest.mark.parametrize("required", [False, True])
def test_at_most_one_call_where_they_may_not_be_parallel(grammars: Grammars, required: bool) -> None:
    written = ToolGrammar(Calling(TOOLS, NAMES, frozenset(), required=required, parallel=False))
    assert matches(grammars, written, NOW) is True
    assert matches(grammars, written, NOW + "\n") is False
    assert matches(grammars, written, NOW + "<") is False


def test_only_what_is_allowed_can_be_called(grammars: Grammars) -> None:
    written = ToolGrammar(Calling(TOOLS, ("now",), frozenset(), required=True, parallel=False))
    assert matches(grammars, written, NOW) is True
    assert matches(grammars, written, COUNT) is False


def test_content_with_a_structure_stands_alone(grammars: Grammars) -> None:
    said = Structure("json_schema", {"type": "object", "properties": {"a": {"type": "string"}}}, "response_format")
    written = ToolGrammar(Calling(TOOLS, NAMES, frozenset(), required=False, parallel=False), said)
    assert matches(grammars, written, '{"a": "<tool_call>"}') is True
    assert matches(grammars, written, NOW) is True
    for text in ("Hello", '{"a": 3}', f'{{"a": "b"}}\n{NOW}'):
        assert matches(grammars, written, text) is False


def test_what_is_not_strict_is_enforced_as_far_as_it_can_be(grammars: Grammars) -> None:
    parameters = {
        "properties": {
            "x": {"type": "string", "pattern": "^(?!a)b$"},
            "y": {"type": "array", "uniqueItems": True},
            "z": {"oneOf": [{"type": "integer"}, {"type": "null"}]},
        }
    }
    written = ToolGrammar(Calling((tool("f", parameters),), ("f",), frozenset(), required=True, parallel=False))
    assert matches(grammars, written, call("f", '{"x": "anything", "y": [1, 1], "z": null}')) is True
    for arguments in ('{"x": 3}', '{"y": "no"}', '{"z": "no"}'):
        assert matches(grammars, written, call("f", arguments)) is False
