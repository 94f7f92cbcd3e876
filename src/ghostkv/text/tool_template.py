"""A chat template that takes tools: natively where the model's own knows them, else written out as messages.

A template counts as knowing tools if it shows their definitions and results, and writes calls in the form that answers
are read in (`tool_markup`). Any other is given messages of the plain roles only: one system block for the definitions,
calls as an assistant's text, results as a user's. Which of the two is asked once, by rendering a probe.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from ghostkv.errors import InvalidRequest
from ghostkv.request import Message, Tool, ToolCall
from ghostkv.text.template import ChatTemplate
from ghostkv.text.tokenizer import Tokenizer
from ghostkv.text.tool_markup import CALL_CLOSES, CALL_OPENS, tools_block, written_calls, written_result

_SYSTEM = ("system", "developer")
_FUNCTION = {
    "name": "sentinel_one",
    "description": "Sentinel two.",
    "parameters": {"type": "object", "properties": {"sentinel_three": {"type": "integer"}}},
}
_TOOL = Tool("sentinel_one", json.dumps({"type": "function", "function": _FUNCTION}))
_ARGUMENTS = {"sentinel_three": 68}
_SAID = Message("system", "Sentinel four.")
_TALK = (
    Message("user", "Sentinel five."),
    Message("assistant", "", tool_calls=(ToolCall("call00001", "sentinel_one", json.dumps(_ARGUMENTS)),)),
    Message("tool", "Sentinel six.", tool_call_id="call00001"),
)
_CALL = re.compile(f"{CALL_OPENS}(.*?){CALL_CLOSES}", re.DOTALL)


class ToolTemplate:
    """Messages and tools to prompt ids. Conversations without either tools or calls render as they do without it."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        """Ask the template what it knows."""
        self._template = template
        self.native = any(_knows_tools(self._shown(tokenizer, talk, (_TOOL,))) for talk in ((_SAID, *_TALK), _TALK))
        """Whether the template itself writes tools."""
        self._takes_system = _SAID.content in self._shown(tokenizer, (_SAID, _TALK[0]))

    def render_ids(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """See `ChatTemplate.render_ids`. Special-token strings in anything about tools are ordinary text as well."""
        if self.native:
            return self._natively(messages, tools)
        return self._template.render_ids(_plain(messages, tools, takes_system=self._takes_system))

    def _natively(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        definitions = [json.loads(tool.definition) for tool in tools]
        return self._template.render_ids(_matched(messages), tools=definitions or None)

    def _shown(self, tokenizer: Tokenizer, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
        """A probe's rendering as text; "" where the template refuses it."""
        try:
            return tokenizer.decode(self._natively(messages, tools))
        except InvalidRequest:
            return ""


def _knows_tools(shown: str) -> bool:
    """Whether the probe's definition, call and result are shown, in this order."""
    result = shown.rfind("Sentinel six.")
    call = next((match.start() for match in _CALL.finditer(shown) if _reads_back(match[1])), -1)
    return 0 <= shown.find("Sentinel two.") < call < result


def _reads_back(call: str) -> bool:
    try:
        return bool(json.loads(call) == {"name": "sentinel_one", "arguments": _ARGUMENTS})
    except ValueError:
        return False


def _matched(messages: Sequence[Message]) -> list[Message]:
    """With the results of one round in the order of its calls, since text shows no ids, and named like them."""
    matched: list[Message] = []
    names: dict[str, str] = {}
    for is_result, run in groupby(messages, _is_result):
        if is_result:
            places = {call_id: place for place, call_id in enumerate(names)}
            ordered = sorted(run, key=lambda message: places.get(message.tool_call_id, len(places)))
            matched += [replace(each, name=each.name or names.get(each.tool_call_id, "")) for each in ordered]
        else:
            matched += run
            names = {call.id: call.name for call in matched[-1].tool_calls}
    return matched


def _plain(messages: Sequence[Message], tools: Sequence[Tool], *, takes_system: bool) -> list[Message]:
    """The same conversation in system, user and assistant messages; results in a row become one message."""
    plain: list[Message] = []
    for is_result, run in groupby(_matched(messages), _is_result):
        if is_result:
            plain.append(Message("user", "\n".join(written_result(message.content) for message in run)))
        else:
            plain += [_without_calls(message) for message in run]
    return _with_block(plain, tools_block(tools), takes_system=takes_system) if tools else plain


def _without_calls(message: Message) -> Message:
    if not message.tool_calls:
        return message
    return Message(message.role, written_calls(message), name=message.name)


def _with_block(messages: list[Message], block: str, *, takes_system: bool) -> list[Message]:
    """With `block` at the end of the first system message, or before what a user says first where there can be none."""
    roles = _SYSTEM if takes_system else ("user",)
    at = next((i for i, message in enumerate(messages) if message.role in roles), None)
    if at is None or (takes_system and at > 0):
        return [Message(roles[0], block), *messages]
    content = messages[at].content
    joined = (content, block) if takes_system else (block, content)
    message = replace(messages[at], content="\n\n".join(part for part in joined if part), ids=())
    return [*messages[:at], message, *messages[at + 1 :]]


def _is_result(message: Message) -> bool:
    return message.role == "tool"
