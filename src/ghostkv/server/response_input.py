"""The items that a conversation of /v1/responses is made of, and the messages that they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from ghostkv.errors import Unsupported
from ghostkv.request import Message, ToolCall
from ghostkv.server.fields import Schema

_SHOWN = 40  # characters of a wrong value that an error repeats


class Text(Schema):
    """One part of a message."""

    without_effect = frozenset({"annotations", "logprobs", "parsed"})  # of an answer that is sent back
    type: Literal["input_text", "output_text"]
    text: str

    @model_validator(mode="before")
    @classmethod
    def _text_only(cls, data: object) -> object:
        kind = data.get("type") if isinstance(data, dict) else None
        if isinstance(kind, str) and kind not in ("input_text", "output_text"):
            raise Unsupported(f"input: content of type {kind[:_SHOWN]!r} is not supported, only text", param="input")
        return data


def _parts(content: object) -> object:
    return [{"type": "input_text", "text": content}] if isinstance(content, str) else content


Parts: TypeAlias = Annotated[list[Text], BeforeValidator(_parts, json_schema_input_type=str | list[Text])]
_OF_AN_ANSWER = frozenset({"id", "phase", "status"})  # of an item that was answered and is sent back


class InputMessage(Schema):
    """A message."""

    without_effect = _OF_AN_ANSWER
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Parts


class InputCall(Schema):
    """A call that the model made."""

    without_effect = _OF_AN_ANSWER | {"parsed_arguments"}
    type: Literal["function_call"]
    call_id: Annotated[str, Field(min_length=1)]
    name: str
    arguments: str


class InputResult(Schema):
    """What a call gave."""

    without_effect = _OF_AN_ANSWER
    type: Literal["function_call_output"]
    call_id: Annotated[str, Field(min_length=1)]
    output: Parts


def _kind(item: object) -> str | None:
    kind = item.get("type") or "message" if isinstance(item, dict) else getattr(item, "type", None)
    if isinstance(kind, str) and kind not in ("message", "function_call", "function_call_output"):
        raise Unsupported(f"input: items of type {kind[:_SHOWN]!r} are not supported", param="input")
    return kind if isinstance(kind, str) else None


InputItem: TypeAlias = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[InputCall, Tag("function_call")]
    | Annotated[InputResult, Tag("function_call_output")],
    Discriminator(_kind),
]


def messages_of(items: Sequence[InputMessage | InputCall | InputResult]) -> tuple[Message, ...]:
    """The items as messages; calls stand in the assistant's message before them, if there is one."""
    messages: list[Message] = []
    for item in items:
        if isinstance(item, InputMessage):
            messages.append(Message(item.role, _joined(item.content)))
        elif isinstance(item, InputResult):
            messages.append(Message("tool", _joined(item.output), tool_call_id=item.call_id))
        else:
            call = ToolCall(item.call_id, item.name, item.arguments)
            before = messages.pop() if messages and messages[-1].role == "assistant" else Message("assistant", "")
            messages.append(Message("assistant", before.content, tool_calls=(*before.tool_calls, call)))
    return tuple(messages)


def _joined(parts: Sequence[Text]) -> str:
    return "\n".join(part.text for part in parts)
