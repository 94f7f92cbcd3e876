"""Tools as chat requests write them: definitions, which of them may be called, calls and who answers them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from ghostkv.errors import InvalidRequest, Unsupported
from ghostkv.request import Message, Tool, ToolCall
from ghostkv.server.fields import Schema
from ghostkv.server.tools import Calling

MOST_TOOLS = 128

_SHOWN = 60  # characters of a wrong value that an error repeats


def function_only(data: object, param: str) -> object:
    """Refuses what is of a known type that is not supported, such as custom tools."""
    if isinstance(data, dict) and isinstance(kind := data.get("type"), str) and kind != "function":
        raise Unsupported(f"{param}: the type {kind[:_SHOWN]!r} is not supported, only 'function'", param=param)
    return data


class Function(Schema):
    """What a function is called, what it does and what it takes."""

    name: Annotated[str, Field(pattern=r"\A[A-Za-z0-9_.-]+\z", max_length=64)]
    description: str | None = None
    parameters: dict[str, Any] | None = None  # a JSON schema of an object; none: no arguments
    strict: bool = False  # what cannot be enforced of the schema is refused

    @field_validator("parameters")
    @classmethod
    def _object(cls, parameters: dict[str, Any] | None) -> dict[str, Any] | None:
        kind = "object" if parameters is None else parameters.get("type", "object")
        if kind != "object":
            raise ValueError(f'the schema of arguments must have "type": "object", not {json.dumps(kind)[:_SHOWN]}')
        return parameters


class FunctionTool(Schema):
    """A function that may be called."""

    type: Literal["function"]
    function: Function

    @model_validator(mode="before")
    @classmethod
    def _known_type(cls, data: object) -> object:
        return function_only(data, "tools")

    @property
    def tool(self) -> Tool:
        """The definition as the prompt shows it: name, description and parameters as they were sent."""
        function = self.function
        said = {"name": function.name, "description": function.description, "parameters": function.parameters}
        definition = {name: value for name, value in said.items() if value is not None}
        return Tool(function.name, _json({"type": "function", "function": definition}))


class FunctionName(Schema):
    """The name of one."""

    name: str


class NamedFunction(Schema):
    """One function of `tools`."""

    type: Literal["function"]
    function: FunctionName


class AllowedFunctions(Schema):
    """Some of `tools`."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedFunction], Field(min_length=1, max_length=MOST_TOOLS)]


class AllowedTools(Schema):
    """Only these may be called; all are shown to the model."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedFunctions


def _kind(choice: object) -> str | None:
    if isinstance(choice, str):
        return "mode"
    kind = choice.get("type") if isinstance(choice, dict) else getattr(choice, "type", None)
    if kind == "custom":
        raise Unsupported("tool_choice: the type 'custom' is not supported", param="tool_choice")
    return kind if isinstance(kind, str) else None


ToolChoice: TypeAlias = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("mode")]
    | Annotated[NamedFunction, Tag("function")]
    | Annotated[AllowedTools, Tag("allowed_tools")],
    Discriminator(_kind),
]


class CalledFunction(Schema):
    """What is called, and with what. Arguments are text that a model wrote: they need not be JSON."""

    without_effect = frozenset({"parsed_arguments"})  # OpenAI's Python library adds it to what it hands back
    name: str
    arguments: str


class MessageCall(Schema):
    """One call of an assistant message."""

    without_effect = frozenset({"index"})  # of a streamed call, which some clients keep
    id: Annotated[str, Field(min_length=1)]
    type: Literal["function"] = "function"
    function: CalledFunction

    @model_validator(mode="before")
    @classmethod
    def _known_type(cls, data: object) -> object:
        return function_only(data, "messages")

    @property
    def call(self) -> ToolCall:
        """The value."""
        return ToolCall(self.id, self.function.name, self.function.arguments)


def calling_of(tools: Sequence[FunctionTool], choice: ToolChoice | None, *, parallel: bool) -> Calling | None:
    """What an answer may call; None: nothing. Raises InvalidRequest for a choice that `tools` do not have."""
    named = _named(choice)
    known = [tool.function.name for tool in tools]
    if twice := next((name for i, name in enumerate(known) if name in known[:i]), None):
        raise InvalidRequest(f"tools: two functions are called {twice!r}", param="tools")
    if missing := next((name for name in named if name not in known), None):
        there = f"there are {', '.join(known)}" if known else "there are none"
        raise InvalidRequest(
            f"tool_choice: no function in tools is called {missing[:_SHOWN]!r}: {there[:500]}", param="tool_choice"
        )
    required = choice == "required" or isinstance(choice, NamedFunction)
    if isinstance(choice, AllowedTools):
        required = choice.allowed_tools.mode == "required"
    if required and not tools:
        raise InvalidRequest("tool_choice: a call is required, but there are no tools", param="tool_choice")
    if not tools or choice == "none":
        return None
    callable_names = tuple(name for name in known if not named or name in named)
    parallel = parallel and not isinstance(choice, NamedFunction)
    strict = frozenset(tool.function.name for tool in tools if tool.function.strict)
    return Calling(tuple(tool.tool for tool in tools), callable_names, strict, required=required, parallel=parallel)


def check_answered(messages: Iterable[Message]) -> None:
    """Raises InvalidRequest for a result that answers no earlier call."""
    called: set[str] = set()
    for index, message in enumerate(messages):
        called.update(call.id for call in message.tool_calls)
        if message.role == "tool" and message.tool_call_id not in called:
            raise InvalidRequest(
                f"messages[{index}].tool_call_id: no earlier assistant message has a call with the id "
                f"{message.tool_call_id[:_SHOWN]!r}",
                param="messages",
            )


def _named(choice: ToolChoice | None) -> list[str]:
    if isinstance(choice, NamedFunction):
        return [choice.function.name]
    if isinstance(choice, AllowedTools):
        return [tool.function.name for tool in choice.allowed_tools.tools]
    return []


def _json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise InvalidRequest(f"tools: a definition is not JSON: {error}", param="tools") from None
