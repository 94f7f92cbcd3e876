"""Messages of a conversation, as chat completions write them."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from ghostkv.errors import Unsupported
from ghostkv.request import Message
from ghostkv.server.fields import Schema
from ghostkv.server.tool_schema import MessageCall


class TextPart(Schema):
    """One part of a message's content."""

    type: Literal["text"]
    text: str

    @model_validator(mode="before")
    @classmethod
    def _text_only(cls, data: object) -> object:
        if isinstance(data, dict) and isinstance(kind := data.get("type"), str) and kind != "text":
            raise Unsupported(f"messages: content of type {kind[:20]!r} is not supported, only text", param="messages")
        return data


Content: TypeAlias = str | list[TextPart] | None


def _parts(content: object) -> object:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


class ChatMessage(Schema):
    """One message of a conversation."""

    unsupported = frozenset({"annotations", "audio", "function_call", "refusal"})
    without_effect = frozenset({"parsed"})  # OpenAI's Python library adds it to what it hands back
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[list[TextPart] | None, BeforeValidator(_parts, json_schema_input_type=Content)] = None
    name: str = ""
    tool_calls: list[MessageCall] = Field(default_factory=list)
    tool_call_id: str = ""

    @model_validator(mode="before")
    @classmethod
    def _known_role(cls, data: object) -> object:
        if isinstance(data, dict) and data.get("role") == "function":
            raise Unsupported("messages: the role 'function' is not supported, only 'tool'", param="messages")
        return data

    @model_validator(mode="after")
    def _complete(self) -> ChatMessage:
        if self.content is None and not self.tool_calls:
            raise ValueError("content is missing: only an assistant message with tool_calls may have none")
        if self.tool_calls and self.role != "assistant":
            raise ValueError("tool_calls can only stand in an assistant message")
        if (self.role == "tool") != bool(self.tool_call_id):
            raise ValueError("tool_call_id must stand in a tool message, and only there")
        return self

    @property
    def message(self) -> Message:
        """The value; parts of its content are separate lines."""
        content = "\n".join(part.text for part in self.content or ())
        calls = tuple(call.call for call in self.tool_calls)
        return Message(self.role, content, tool_calls=calls, tool_call_id=self.tool_call_id, name=self.name)
