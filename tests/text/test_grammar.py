"""Compiled grammars: their masks against brute force over finite languages, and what is refused."""

from __future__ import annotations

import gc
import itertools
import json
import re
import signal
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import byte_tokenizer
from ghostkv.errors import InvalidRequest, Unsupported
from ghostkv.request import Grammar
from ghostkv.text.grammar import Grammars
from ghostkv.text.grammar_trial import Trial
from grammars import allowed_by, ids_of, reading

TOKENIZER = byte_tokenizer()
GRAMMARS = TOKENIZER.grammars


def check_masks(grammar: Grammar, language: set[bytes]) -> None:
    """In every state that any tokenisation reaches, the mask is what brute force allows."""
    for ids in itertools.islice(reading(language, TOKENIZER), 200):
        matcher = grammar.start()
        seen = ids_of(matcher.allowed())
        for token_id in ids:
            assert token_id in seen
            matcher.accept(token_id)
            assert not matcher.failure
            seen = ids_of(matcher.allowed())
        text = b"".join(map(TOKENIZER.token_bytes, ids))
        assert seen == allowed_by(language, TOKENIZER, text)
        assert matcher.complete == (text in language and not any(t != text and t.startswith(text) for t in language))
        assert not matcher.failure


def patterns() -> st.SearchStrategy[tuple[str, int]]:
    """Regular expressions in the syntax that Python and Rust share, over three letters, with their longest text."""
    return st.recursive(
        st.sampled_from([("h", 1), ("e", 1), ("l", 1), ("he", 2), ("[hl]", 1), ("[^h]", 1), (".", 1)]),
        lambda inner: (
            st.tuples(inner, inner).map(lambda both: (both[0][0] + both[1][0], both[0][1] + both[1][1]))
            | st.tuples(inner, inner).map(lambda both: (f"({both[0][0]}|{both[1][0]})", max(both[0][1], both[1][1])))
            | inner.map(lambda one: (f"({one[0]})?", one[1]))
            | inner.map(lambda one: (f"({one[0]}){{1,2}}", 2 * one[1]))
        ),
        max_leaves=4,
    ).filter(lambda found: found[1] <= 6)


@settings(max_examples=40)
@given(patterns())
def test_masks_of_a_regular_expression_are_those_of_brute_force(found: tuple[str, int]) -> None:
    pattern, longest = found
    letters = pattern.replace("[^h]", "[el]").replace(".", "[hel]")  # of the three
    texts = ("".join(t) for length in range(longest + 1) for t in itertools.product("hel", repeat=length))
    language = {text.encode() for text in texts if re.fullmatch(letters, text)}
    if language != {b""}:
        check_masks(GRAMMARS.regex(letters), language)


@settings(max_examples=30)
@given(st.sets(st.text("heloé漢 {", max_size=5), min_size=1, max_size=5))
def test_masks_of_an_enumeration_are_those_of_brute_force(texts: set[str]) -> None:
    language = {json.dumps(text, ensure_ascii=False).encode() for text in texts}
    check_masks(GRAMMARS.json_schema({"enum": sorted(texts)}), language)


def test_masks_of_a_lark_grammar_are_those_of_brute_force() -> None:
    grammar = GRAMMARS.lark('start: item ("," item)~0..2\nitem: "he" | "in"')
    items = ["he", "in"]
    language = {",".join(of).encode() for n in (1, 2, 3) for of in itertools.product(items, repeat=n)}
    check_masks(grammar, language)


def test_white_space_is_bounded_and_nothing_stands_around_the_document() -> None:
    grammar = GRAMMARS.json_schema({"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]})

    def reads(text: str) -> bool:
        matcher = grammar.start()
        for byte in text.encode():
            if byte not in ids_of(matcher.allowed()):
                return False
            matcher.accept(byte)
        return True

    for good in ('{"a":null}', '{"a": null}', '{\n    "a" : null\n}', '{"a":null, "b":[1, {"c": 2}]}'):
        assert reads(good)
    for bad in (' {"a":null}', '{"a":null}\n', '{  "a":null}', '{\n\n"a":null}', '{"a":null,"a":1}', "[]"):
        assert not reads(bad)


SCHEMAS: list[tuple[object, str]] = [
    ({"type": "objekt"}, "objekt"),
    ("not a schema", "a string"),
    (None, "null"),
    ([{"type": "object"}], "a list"),
    (True, "a boolean"),
    ({"$ref": "#/nowhere"}, "nowhere"),
    ({"$ref": "https://example.com/schema.json"}, "example.com"),
    ({"not": {"type": "string"}}, "not"),
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "oneOf"),
    ({"type": "string", "pattern": "(?=a)b"}, "look-ahead"),
    ({"type": "string", "format": "mine"}, "mine"),
    ({"type": "integer", "minimum": 3, "maximum": 2}, "minimum"),
    ({"enum": []}, "Unsatisfiable"),
    ({"$ref": "#"}, "NoExtension"),
    ({"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}, "NoExtension"),
    ({"const": float("nan")}, "JSON"),
    ({"const": {1, 2}}, "JSON"),
    ({"enum": [f"value {i}" for i in range(30_000)]}, "bytes"),
    ({"type": "object", "properties": {f"p{i}": {} for i in range(9_000)}}, "takes more than"),
    ({"allOf": [{"type": "integer", "multipleOf": n} for n in (9973, 9967, 9949, 9941)]}, "takes more than"),
    ({"allOf": [{"oneOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(25)]}, "large"),
]


@pytest.mark.parametrize(("schema", "said"), SCHEMAS)
def test_a_schema_that_cannot_be_enforced_is_refused_by_name(schema: object, said: str) -> None:
    for _ in range(2):  # what was found out is remembered
        with pytest.raises(InvalidRequest, match=re.escape(said)) as refusal:
            GRAMMARS.json_schema(schema, "the.field")
        assert refusal.value.param == "the.field"
        assert refusal.value.message.startswith("the.field: ")
        assert len(refusal.value.message) < 600
    assert GRAMMARS.json_object().start().allowed().any()  # whatever it did to the compiler, the next one is served


def test_a_schema_nested_without_end_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(20_000):
        deep = {"not": deep}
    with pytest.raises(InvalidRequest, match="not JSON"):
        GRAMMARS.json_schema(deep)


CHAIN = "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(15_000)) + '\nr15000: "a"'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "start"),
        ("start: foo", "foo"),
        ("start: start", "NoExtension"),
        ('start: "x" <|im_end|>', "im_end"),
        ("start: <[265]>", "Token range"),
        ("start: @answer", "NoExtension"),
        ('start: ""', "empty text"),
        (CHAIN, "nests too deep"),  # overflows the compiler's stack, which ends its process
        ("start: " + "(" * 3000 + '"a"' + ")" * 3000, "nested"),
    ],
)
def test_a_lark_grammar_that_cannot_be_used_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        GRAMMARS.lark(text)
    assert GRAMMARS.regex("[a-z]+").start().allowed().any()


@pytest.mark.parametrize(
    ("pattern", "said"),
    [("a(", "unclosed"), ("", "empty text"), ("(?=a)b", "look"), (r"(a)\1", "backref"), ("\ud800", "surrogate")],
)
def test_a_regular_expression_that_cannot_be_used_is_refused(pattern: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        GRAMMARS.regex(pattern)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("regex", "(((a{1000}){1000}){1000}){1000}"),
        ("lark", 'start: x x x x x x x x\nx: x x | "a" | '),
        ("lark", "start: x\nx: x x | /[a-z]/ | x x x | x x x x"),
        ("regex", "(.*[ab].{30}[cd]){3}"),
    ],
)
def test_what_is_hard_to_match_costs_little_per_token_or_ends_in_words(kind: str, text: str) -> None:
    matcher = (GRAMMARS.regex if kind == "regex" else GRAMMARS.lark)(text).start()
    begun = time.process_time()
    for step in range(200):
        found = sorted(ids_of(matcher.allowed()) - set(TOKENIZER.eos_ids))
        if not found:
            break
        matcher.accept(found[step * 7 % len(found)])
    assert not matcher.complete
    assert matcher.failure or step == 199
    assert time.process_time() - begun < 10  # minutes, without limits


def test_a_token_that_is_not_allowed_is_a_failure_and_not_an_error() -> None:
    matcher = GRAMMARS.regex("abc").start()
    matcher.allowed()
    matcher.accept(ord("z"))
    assert "z" in matcher.failure
    assert not matcher.complete
    assert not matcher.allowed().any()


def test_matchers_of_one_grammar_do_not_know_each_other() -> None:
    grammar = GRAMMARS.regex("(hello|help)")
    first, second = grammar.start(), grammar.start()
    first.allowed()
    for byte in b"hel":
        first.accept(byte)
    assert ids_of(first.allowed()) == {ord("l"), ord("p")}
    assert ids_of(second.allowed()) == allowed_by([b"hello", b"help"], TOKENIZER, b"")
    assert ids_of(grammar.start().allowed()) == ids_of(second.allowed())


def test_compiled_grammars_are_kept_for_their_domain_and_not_after_a_failure() -> None:
    grammars = Grammars(TOKENIZER)
    kept = grammars.regex("[a-c]+x", domain="one")
    assert grammars.regex("[a-c]+x", domain="one") is kept
    assert grammars.regex("[a-c]+x", domain="two") is not kept
    for i in range(80):
        grammars.regex(f"[a-c]{{{i + 1}}}", domain="two")
    assert grammars.regex("[a-c]+x", domain="one") is not kept  # bounded
    again = grammars.regex("[a-c]+x", domain="one")
    matcher = again.start()
    matcher.accept(ord("x"))
    assert matcher.failure
    assert grammars.regex("[a-c]+x", domain="one") is not again


def test_the_process_that_tries_grammars_comes_back_and_goes_with_its_owner() -> None:
    trial = Trial({})
    assert trial.error('start: "a"') == ""
    first = trial._process
    assert first is not None
    first.kill()
    first.wait()
    assert "takes more than" in trial.error('start: "a"')  # it could not know better
    assert trial.error('start: "a"') == ""
    second = trial._process
    assert second is not None and second.pid != first.pid
    del trial
    gc.collect()
    assert second.wait(10) == -signal.SIGKILL


def test_the_process_that_tries_grammars_ends_when_its_input_does() -> None:
    trial = Trial({})
    assert trial.error('start: "a"') == ""
    process = trial._process
    assert process is not None and process.stdin is not None
    process.stdin.close()  # as when the server is killed
    assert process.wait(10) == 0


def test_an_older_llguidance_is_refused_by_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment with vLLM has one: what it reads otherwise must not be taken for a grammar."""
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.7.6")
    with pytest.raises(Unsupported, match=r"response_format: grammars need llguidance 1\.9, and here is 1\.7\.6"):
        Grammars(byte_tokenizer()).json_object()
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.10.0")
    assert Grammars(byte_tokenizer()).regex("a+").digest
