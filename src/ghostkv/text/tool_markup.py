"""The one form in which tools, their calls and their results are written as text: Hermes function calling.

It is what templates without tools are given, what the grammar of an answer allows, and what is read out of one. The
form is NousResearch's, which many models are trained on (Hermes-Function-Calling, 2024); the wording is our own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from ghostkv.request import Message, Tool, ToolCall

CALL_OPENS = "<tool_call>"
CALL_CLOSES = "</tool_call>"

_INTRODUCTION = "You may call functions. These are their definitions, one to a line:"
_INSTRUCTION = (
    f"To call a function, write its name and its arguments as a JSON object between {CALL_OPENS} and {CALL_CLOSES}, "
    "once for each call:"
)
_EXAMPLE = '{"name": "function_name", "arguments": {"argument_name": "value"}}'


def tools_block(tools: Sequence[Tool]) -> str:
    """What a system message says about tools. The definitions stand in it as the client wrote them."""
    definitions = (tool.definition for tool in tools)
    call = f"{CALL_OPENS}\n{_EXAMPLE}\n{CALL_CLOSES}"
    return "\n".join(("# Tools", "", _INTRODUCTION, "<tools>", *definitions, "</tools>", "", _INSTRUCTION, call))


def written_calls(message: Message) -> str:
    """An assistant message's text and then its calls, as a model writes them."""
    calls = (f"{CALL_OPENS}\n{_call(call)}\n{CALL_CLOSES}" for call in message.tool_calls)
    return "\n".join((*([message.content] if message.content else ()), *calls))


def written_result(content: str) -> str:
    """What a function returned."""
    return f"<tool_response>\n{content}\n</tool_response>"


def arguments_value(call: ToolCall) -> object:
    """The arguments as a value; what is no JSON stays the text that it is, and no text at all is no arguments."""
    try:
        value: object = json.loads(call.arguments.strip() or "{}", parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return call.arguments
    return value


def _call(call: ToolCall) -> str:
    """The arguments stand in it as the client wrote them, if they are JSON."""
    arguments = call.arguments.strip() or "{}"
    if arguments_value(call) is call.arguments:
        arguments = json.dumps(call.arguments, ensure_ascii=False)
    return f'{{"name": {json.dumps(call.name, ensure_ascii=False)}, "arguments": {arguments}}}'


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")
