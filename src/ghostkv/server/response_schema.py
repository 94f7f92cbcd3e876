"""The requests of /v1/responses."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from ghostkv.errors import InvalidRequest, Unsupported
from ghostkv.request import Message, Sampling
from ghostkv.server.fields import Schema
from ghostkv.server.response_input import InputItem, messages_of
from ghostkv.server.schema import Extension
from ghostkv.server.structure import Structure, only
from ghostkv.server.tool_schema import (
    MOST_TOOLS,
    Function,
    FunctionName,
    FunctionTool,
    NamedFunction,
    calling_of,
    function_only,
)
from ghostkv.server.tools import Calling
from ghostkv.session.limits import MOST_LOGPROBS

LOGPROBS = "message.output_text.logprobs"
_MOST_METADATA = 16
_SHOWN = 40  # characters of a wrong value that an error repeats


def _items(given: object) -> object:
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


class TextFormat(Schema):
    """The form of the answer's text. A schema is followed whether or not it is `strict`."""

    model_config = ConfigDict(serialize_by_alias=True)
    type: Literal["text", "json_object", "json_schema"] = "text"
    name: Annotated[str, Field(pattern=r"\A[A-Za-z0-9_-]+\z", max_length=64)] | None = None
    description: str | None = None
    definition: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _consistent(self) -> TextFormat:
        given = None not in (self.name, self.definition)
        if (self.type == "json_schema") != given:
            raise ValueError("name and schema must be given with the type json_schema, and only with it")
        return self

    @property
    def structure(self) -> Structure | None:
        """None for plain text."""
        if self.type == "text":
            return None
        if self.definition is None:
            return Structure("json_schema", {"type": "object"}, "text.format")
        return Structure("json_schema", self.definition, "text.format.schema")


class TextOptions(Schema):
    """What the answer's text is like."""

    unsupported = frozenset({"verbosity"})
    format: TextFormat = TextFormat()


class FlatFunction(Function):
    """A function tool as this endpoint writes it: without an object of its own."""

    unsupported = frozenset({"defer_loading", "output_schema"})
    without_effect = frozenset({"allowed_callers"})
    type: Literal["function"]

    @model_validator(mode="before")
    @classmethod
    def _functions_only(cls, data: object) -> object:
        return function_only(data, "tools")

    @property
    def nested(self) -> FunctionTool:
        """As chat completions write it."""
        return FunctionTool(type="function", function=Function(**self.model_dump(exclude={"type"})))


class FlatName(FunctionName):
    """One function of `tools`."""

    type: Literal["function"]


class ResponseRequest(Schema):
    """POST /v1/responses."""

    unsupported = frozenset(
        {"background", "context_management", "conversation", "max_tool_calls", "moderation", "prompt", "reasoning"}
    )
    without_effect = frozenset(
        {
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
            "safety_identifier",
            "service_tier",
            "stream_options",
            "user",
        }
    )
    model: str
    input: Annotated[
        list[InputItem], BeforeValidator(_items, json_schema_input_type=str | list[InputItem]), Field(min_length=1)
    ]
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] = 0
    include: list[Literal["message.output_text.logprobs"]] = Field(default_factory=list)
    text: TextOptions = TextOptions()
    tools: Annotated[list[FlatFunction], Field(max_length=MOST_TOOLS)] = Field(default_factory=list)
    tool_choice: Literal["none", "auto", "required"] | FlatName | None = None
    parallel_tool_calls: bool = True
    truncation: Literal["disabled"] = "disabled"
    metadata: Annotated[
        dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
        Field(max_length=_MOST_METADATA),
    ] = Field(default_factory=dict)
    store: bool = True
    stream: bool = False
    seed: int | None = None  # not OpenAI's
    ghostkv: Extension = Extension()

    @model_validator(mode="after")
    def _consistent(self) -> ResponseRequest:
        if self.top_logprobs and not self.include:
            raise InvalidRequest(f'top_logprobs needs include: ["{LOGPROBS}"]', param="top_logprobs")
        if self.ghostkv.session is not None:
            raise Unsupported(
                "a response has no session: it goes on from previous_response_id", param="ghostkv.session"
            )
        _ = self.calling, self.structure
        return self

    @cached_property
    def structure(self) -> Structure | None:
        """What the answer's text must match."""
        return only(self.text.format.structure, self.ghostkv.structure)

    @cached_property
    def messages(self) -> tuple[Message, ...]:
        """The input as messages."""
        return messages_of(self.input)

    @cached_property
    def calling(self) -> Calling | None:
        """What the answer may call."""
        choice: Any = self.tool_choice
        if isinstance(choice, FlatName):
            choice = NamedFunction(type="function", function=FunctionName(name=choice.name))
        return calling_of([tool.nested for tool in self.tools], choice, parallel=self.parallel_tool_calls)

    def sampling(self, seed: int) -> Sampling:
        """How tokens are chosen."""
        logprobs = self.top_logprobs if self.include else None
        return Sampling(temperature=self.temperature, top_p=self.top_p, seed=seed, logprobs=logprobs)
