"""Tools in prompts: natively where a template knows them (transformers is the oracle), else as plain messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from fakes import CHATML_TEMPLATE, byte_tokenizer
from ghostkv.request import Message, Tool, ToolCall
from ghostkv.text.template import ChatTemplate
from ghostkv.text.tokenizer import Tokenizer
from ghostkv.text.tool_template import ToolTemplate

TOKENIZER = byte_tokenizer()

NATIVE = """{% if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }} {% endif %}TOOLS{% for tool in tools %}
{{ tool | tojson }}{% endfor %}

Answer <tool_call>{"name": NAME, "arguments": OBJECT}</tool_call><|im_end|>
{% endif %}{% for m in messages %}{% if not (tools and loop.first and m.role == 'system') %}<|im_start|>{{ m.role }}
{{ m.content }}{% for call in m.tool_calls %}<tool_call>{"name": "{{ call.function.name }}", \
"arguments": {{ call.function.arguments | tojson }}}</tool_call>{% endfor %}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
OTHER_FORM = NATIVE.replace("<tool_call>", "[CALL]").replace("</tool_call>", "[END]")
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system messages') }}{% endif %}" + CHATML_TEMPLATE
)
DROPS_TOOLS_RESULTS = NATIVE.replace("{{ m.content }}", "{{ m.content if m.role != 'tool' }}")

FUNCTION: dict[str, Any] = {
    "name": "pressure",
    "description": "Read it, ≤ 3 digits",
    "parameters": {"type": "object", "properties": {"room": {"type": "string"}}, "required": ["room"]},
}
DEFINITION: dict[str, Any] = {"type": "function", "function": FUNCTION}
TOOL = Tool("pressure", json.dumps(DEFINITION, ensure_ascii=False))
CALL = ToolCall("call_1", "pressure", '{"room":  "A-7"}')
CALLED = Message("assistant", "", tool_calls=(CALL,))
RESULT = Message("tool", "68.2 kPa", tool_call_id="call_1")
SYSTEM, ASK = Message("system", "Be brief."), Message("user", "How high is it?")
TALK = (SYSTEM, ASK, CALLED, RESULT)


def template(source: str) -> ToolTemplate:
    return ToolTemplate(ChatTemplate(source, TOKENIZER), TOKENIZER)


def shown(ids: Sequence[int], tokenizer: Tokenizer = TOKENIZER) -> str:
    data = b"".join(
        tokenizer.token_text(i).encode() if i in tokenizer.control_ids else tokenizer.token_bytes(i) for i in ids
    )
    return data.decode()


@pytest.mark.parametrize(
    ("source", "native"),
    [(NATIVE, True), (CHATML_TEMPLATE, False), (OTHER_FORM, False), (NO_SYSTEM, False), (DROPS_TOOLS_RESULTS, False)],
)
def test_a_probe_tells_which_templates_know_tools(source: str, native: bool) -> None:
    assert template(source).native is native


def test_ids_of_a_native_template_equal_transformers() -> None:
    oracle = PreTrainedTokenizerFast(tokenizer_object=TOKENIZER._markup, chat_template=NATIVE)
    rows: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How high is it?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "pressure", "arguments": {"room": "A-7"}},
                }
            ],
        },
        {"role": "tool", "content": "68.2 kPa", "tool_call_id": "call_1", "name": "pressure"},
    ]
    for tools, definitions in ((), None), ((TOOL,), [DEFINITION]):
        expected = oracle.apply_chat_template(
            rows, tools=definitions, add_generation_prompt=True, tokenize=True, return_dict=False
        )
        assert template(NATIVE).render_ids(TALK, tools) == expected


def test_other_templates_are_given_plain_messages() -> None:
    text = shown(template(CHATML_TEMPLATE).render_ids(TALK, (TOOL,)))
    system, user, assistant, result, end = text.removeprefix("<|im_start|>").split("<|im_start|>")
    assert system.startswith("system\nBe brief.\n\n# Tools\n")
    assert f"<tools>\n{TOOL.definition}\n</tools>" in system
    assert user == "user\nHow high is it?<|im_end|>\n"
    called = '{"name": "pressure", "arguments": {"room":  "A-7"}}'  # the arguments as the client wrote them
    assert assistant == f"assistant\n<tool_call>\n{called}\n</tool_call><|im_end|>\n"
    assert result == "user\n<tool_response>\n68.2 kPa\n</tool_response><|im_end|>\n"
    assert end == "assistant\n"


def test_the_example_in_the_instruction_is_a_call() -> None:
    text = shown(template(CHATML_TEMPLATE).render_ids((ASK,), (TOOL,)))
    example = text.rpartition("<tool_call>\n")[2].partition("\n</tool_call>")[0]
    assert set(json.loads(example)) == {"name", "arguments"}


def test_conversations_without_tools_and_calls_are_as_they_were() -> None:
    for source in (NATIVE, CHATML_TEMPLATE):
        plain = (SYSTEM, ASK, Message("assistant", "68.2 kPa."), Message("user", "And now?"))
        assert template(source).render_ids(plain) == ChatTemplate(source, TOKENIZER).render_ids(plain)


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ((ASK,), "<|im_start|>system\n# Tools"),  # none was given
        ((Message("developer", "Be brief."), ASK), "<|im_start|>developer\nBe brief.\n\n# Tools"),
        ((Message("system", ""), ASK), "<|im_start|>system\n# Tools"),
        ((ASK, Message("assistant", "Yes."), SYSTEM, ASK), "<|im_start|>system\n# Tools"),
    ],
)
def test_the_block_stands_in_one_system_message_at_the_front(messages: Sequence[Message], expected: str) -> None:
    text = shown(template(CHATML_TEMPLATE).render_ids(messages, (TOOL,)))
    assert text.startswith(expected)
    assert text.count("# Tools") == 1
    for message in messages:
        assert message.content in text


def test_a_template_without_system_messages_has_the_block_before_the_question() -> None:
    text = shown(template(NO_SYSTEM).render_ids((ASK, CALLED, RESULT), (TOOL,)))
    assert text.startswith("<|im_start|>user\n# Tools\n")
    assert "</tool_call>\n\nHow high is it?<|im_end|>" in text
    text = shown(template(NO_SYSTEM).render_ids((CALLED, RESULT), (TOOL,)))  # the question was left out
    assert "user\n# Tools\n" in text and "</tool_call>\n\n<tool_response>" in text


def test_results_of_one_round_stand_in_the_order_of_its_calls() -> None:
    calls = tuple(ToolCall(name, name, "{}") for name in "abc")
    results = [Message("tool", f"of {name}", tool_call_id=name) for name in "cxab"]
    talk = (ASK, Message("assistant", "I look.", tool_calls=calls), *results, Message("assistant", "Done."), ASK)
    for source in (NATIVE, CHATML_TEMPLATE):
        text = shown(template(source).render_ids(talk))
        assert [text.index(f"of {name}") for name in "abcx"] == sorted(text.index(f"of {name}") for name in "abcx")
        assert "I look." in text
    assert text.count("user\n") == 3  # the results are one message


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ("", "{}"),
        (" \n", "{}"),
        ('{"a": 1e400, "a": 00}', json.dumps('{"a": 1e400, "a": 00}')),
        ('{"a": NaN}', json.dumps('{"a": NaN}')),
        ('{"b": 1.50, "a": 2}', '{"b": 1.50, "a": 2}'),
        ("[" * 100_000, json.dumps("[" * 100_000)),
        ("3", "3"),
    ],
)
def test_arguments_that_are_no_json_stay_what_they_are(arguments: str, written: str) -> None:
    called = Message("assistant", "", tool_calls=(ToolCall("1", "f", arguments),))
    text = shown(template(CHATML_TEMPLATE).render_ids((ASK, called)))
    assert f'{{"name": "f", "arguments": {written}}}\n</tool_call>' in text
    template(NATIVE).render_ids((ASK, called))


def talk_with(text: str) -> tuple[tuple[Message, ...], tuple[Tool, ...]]:
    """`text` wherever a client can put it."""
    function = {"name": "f", "description": text, "parameters": {"properties": {text: {"enum": [text]}}}}
    call = ToolCall(text, "f", json.dumps({text: text}))
    raw = ToolCall("2", "f", text)
    messages = (
        ASK,
        Message("assistant", text, tool_calls=(call, raw)),
        Message("tool", text, tool_call_id="2"),
        Message("tool", text, tool_call_id=text, name=text),
    )
    definition = json.dumps({"type": "function", "function": function}, ensure_ascii=False)
    return messages, (Tool("f", definition),)


@pytest.mark.parametrize("source", [NATIVE, CHATML_TEMPLATE, NO_SYSTEM])
def test_special_token_strings_in_anything_about_tools_are_ordinary_text(source: str) -> None:
    rendering = template(source)
    parts = ["<|im_end|>", "<|im_start|>", "<|im_", "end|>", "<|", "|>", "system", "\n", " ", '"', "\\", "a"]

    def controls(text: str) -> list[int]:
        return [i for i in rendering.render_ids(*talk_with(text)) if i in TOKENIZER.control_ids]

    expected = controls("a")

    @settings(max_examples=40, deadline=None)
    @given(st.lists(st.sampled_from(parts), max_size=6).map("".join))
    def check(text: str) -> None:
        assert controls(text) == expected
        assert shown(rendering.render_ids(*talk_with(text))).count(text) >= 2  # content and result, unchanged

    check()


def test_the_real_template(smollm2: Tokenizer, smollm2_metadata: Mapping[str, object]) -> None:
    source = smollm2_metadata["tokenizer.chat_template"]
    assert isinstance(source, str)
    rendering = ToolTemplate(ChatTemplate(source, smollm2), smollm2)
    assert not rendering.native
    text = shown(rendering.render_ids(TALK, (TOOL,)), smollm2)
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n") and TOOL.definition in text
    assert "<|im_start|>user\n<tool_response>\n68.2 kPa\n</tool_response><|im_end|>\n<|im_start|>assistant\n" in text
