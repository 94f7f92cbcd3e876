"""The requests that clients send. Types and names only: ranges are `session.limits`'s, meanings are below.

`null` for an optional field means absent. A field that OpenAI's API knows and this server does not honour is refused by
name, unless its value asks for nothing; a field that nobody knows is refused as well.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, model_validator

from ghostkv.errors import InvalidRequest, Unsupported
from ghostkv.launch import DEFAULT_RESIDENCY
from ghostkv.protocol.payload import DEFAULT_BUDGET
from ghostkv.protocol.plan import Plan
from ghostkv.request import Sampling
from ghostkv.session.limits import MOST_LOGPROBS
from ghostkv.session.planning import asked_plan
from ghostkv.session.turn import LongPrompt

MOST_ANSWERS = 128
"""Answers of one HTTP request, over all its prompts."""

UNSUPPORTED = frozenset(
    {
        "audio",
        "best_of",
        "echo",
        "function_call",
        "functions",
        "modalities",
        "moderation",
        "prediction",
        "reasoning_effort",
        "response_format",
        "suffix",
        "tool_choice",
        "tools",
        "verbosity",
        "web_search_options",
    }
)
"""Fields of OpenAI's API that are refused by name."""
_NEUTRAL: dict[str, object] = {  # asks for nothing; so do false, empty strings, lists and objects
    "best_of": 1,
    "function_call": "none",
    "modalities": ["text"],
    "response_format": {"type": "text"},
    "tool_choice": "none",
}

Ignored: TypeAlias = Annotated[Any, Field(default=None)]
"""Accepted and without effect here."""


class _Schema(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
    unsupported: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _only_what_is_asked(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        asked = {name: value for name, value in data.items() if value is not None}
        for name in cls.unsupported & asked.keys():
            value = asked.pop(name)
            if value and (isinstance(value, bool) or value != _NEUTRAL.get(name)):
                raise Unsupported(f"{name} is not supported by this server", param=name)
        return asked


class StreamOptions(_Schema):
    """What a stream says besides its pieces."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Extension(_Schema):
    """What ghostkv adds to the API."""

    residency: str = DEFAULT_RESIDENCY
    long_prompt: Annotated[LongPrompt, BeforeValidator(LongPrompt)] = LongPrompt.REFUSE
    payload_budget: int = DEFAULT_BUDGET
    plan: Annotated[Plan | Literal["auto", "model"] | None, PlainValidator(asked_plan)] = None


class TextPart(_Schema):
    """One part of a message's content."""

    type: Literal["text"]
    text: str

    @model_validator(mode="before")
    @classmethod
    def _text_only(cls, data: object) -> object:
        if isinstance(data, dict) and isinstance(kind := data.get("type"), str) and kind != "text":
            raise Unsupported(f"messages: content of type {kind[:20]!r} is not supported, only text", param="messages")
        return data


def _parts(content: object) -> object:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


class ChatMessage(_Schema):
    """One message of a conversation."""

    unsupported = frozenset({"annotations", "audio", "function_call", "name", "refusal", "tool_call_id", "tool_calls"})
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[list[TextPart], BeforeValidator(_parts)]

    @model_validator(mode="before")
    @classmethod
    def _no_tools(cls, data: object) -> object:
        if isinstance(data, dict) and data.get("role") in ("tool", "function"):
            raise Unsupported(f"messages: the role {data['role']!r} is not supported by this server", param="messages")
        return data

    @property
    def text(self) -> str:
        """The content; parts are separate lines."""
        return "\n".join(part.text for part in self.content)


def _listed(stop: object) -> object:
    return [stop] if isinstance(stop, str) else stop


def _bias(given: object) -> object:
    if not isinstance(given, dict):
        return given
    for key in given:
        if not (isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) < 10):
            raise InvalidRequest(f"logit_bias: {str(key)[:20]!r} is not a token id", param="logit_bias")
    return {int(key): value for key, value in given.items()}


class GenerationRequest(_Schema):
    """What both endpoints take."""

    unsupported = UNSUPPORTED
    model: str
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    min_tokens: int = 0
    n: Annotated[int, Field(ge=1, le=MOST_ANSWERS)] = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # -1, as others write it, means 0: all tokens
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Annotated[dict[int, float], BeforeValidator(_bias)] = Field(default_factory=dict)
    stop: Annotated[list[str], BeforeValidator(_listed)] = Field(default_factory=list)
    stop_token_ids: list[int] = Field(default_factory=list)
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    ghostkv: Extension = Extension()
    user: Ignored
    metadata: Ignored
    store: Ignored
    service_tier: Ignored
    safety_identifier: Ignored
    prompt_cache_key: Ignored
    prompt_cache_options: Ignored
    prompt_cache_retention: Ignored
    parallel_tool_calls: Ignored

    @model_validator(mode="after")
    def _consistent(self) -> GenerationRequest:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options is only allowed with stream: true", param="stream_options")
        return self

    def sampling(self, *, seed: int, logprobs: int | None) -> Sampling:
        """How the tokens of the first answer are chosen."""
        return Sampling(
            temperature=self.temperature,
            top_k=0 if self.top_k == -1 else self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=tuple(self.logit_bias.items()),
            logprobs=logprobs,
            min_tokens=self.min_tokens,
            seed=seed,
        )


class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None  # where both are given the smaller counts
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] = 0

    @model_validator(mode="after")
    def _logprobs_asked(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
        return self


def _prompts(given: object) -> object:
    """One list of prompts from any of the four forms."""
    if isinstance(given, str) or (isinstance(given, list) and given and not isinstance(given[0], str | list)):
        return [given]
    if isinstance(given, list) and not given:
        raise InvalidRequest("prompt must not be empty", param="prompt")
    return given


def _prompt(given: object) -> object:
    if isinstance(given, str):
        return given
    if isinstance(given, list) and all(type(token_id) is int for token_id in given):
        return given
    raise InvalidRequest("prompt must be a string, a list of token ids, or a list of either", param="prompt")


Prompt: TypeAlias = Annotated[str | list[int], BeforeValidator(_prompt)]


class CompletionRequest(GenerationRequest):
    """POST /v1/completions."""

    prompt: Annotated[list[Prompt], BeforeValidator(_prompts)]
    logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None

    @model_validator(mode="after")
    def _few_enough(self) -> CompletionRequest:
        if len(self.prompt) * self.n > MOST_ANSWERS:
            raise InvalidRequest(
                f"{len(self.prompt)} prompts times n {self.n} are more than {MOST_ANSWERS} answers", param="prompt"
            )
        return self
