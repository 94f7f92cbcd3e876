"""The requests that clients send. Types and names only: ranges are `session.limits`'s, meanings are below.

What is not honoured is in `UNSUPPORTED` or `WITHOUT_EFFECT`; see `fields` for how they are treated.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, PlainValidator, model_validator

from ghostkv.errors import InvalidRequest
from ghostkv.protocol.payload import DEFAULT_BUDGET
from ghostkv.protocol.plan import Plan
from ghostkv.request import Grammar, Message, Sampling
from ghostkv.residency import DEFAULT_RESIDENCY
from ghostkv.server.access import Tenant
from ghostkv.server.fields import Schema
from ghostkv.server.message_schema import ChatMessage
from ghostkv.server.structure import ResponseFormat, Structure, StructureExtension, only
from ghostkv.server.tool_schema import MOST_TOOLS, FunctionTool, ToolChoice, calling_of, check_answered
from ghostkv.server.tools import Calling
from ghostkv.session.deterministic import OPEN
from ghostkv.session.limits import MOST_LOGPROBS
from ghostkv.session.planning import asked_plan
from ghostkv.session.turn import LongPrompt, Turn

MOST_ANSWERS = 128
"""Answers of one HTTP request, over all its prompts."""

MOST_SECONDS = 86_400
"""Of a deadline."""

MOST_DECISIONS = 10_000
"""Of a record that is to be followed."""

MOST_ID = 128
"""Characters of a session's or a program's id."""

UNSUPPORTED = frozenset(
    {
        "audio",
        "function_call",
        "functions",
        "modalities",
        "moderation",
        "prediction",
        "reasoning_effort",
        "verbosity",
        "web_search_options",
    }
)
"""Fields of OpenAI's API that are refused by name."""
WITHOUT_EFFECT = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
"""Fields of OpenAI's API that are accepted and change nothing here."""


class StreamOptions(Schema):
    """What a stream says besides its pieces."""

    without_effect = frozenset({"include_obfuscation"})
    include_usage: bool = False
    continuous_usage_stats: bool = False


AskedPlan: TypeAlias = Literal["auto", "model"] | list[Any]


class ReplayedDecision(Schema):
    """One of a reply's `decisions`, as it stands there; what only explains it has no effect."""

    without_effect = frozenset({"kind", "reason", "gain", "waited_s", "waiting"})
    at: Annotated[int, Field(ge=0)]
    decision: Literal["keep", "flush"]


class Extension(StructureExtension):
    """What ghostkv adds to the API."""

    residency: str = DEFAULT_RESIDENCY
    replay: Annotated[list[ReplayedDecision], Field(max_length=MOST_DECISIONS)] | None = None  # of a reply
    long_prompt: Annotated[LongPrompt, BeforeValidator(LongPrompt)] = LongPrompt.REFUSE
    session: Annotated[str, Field(min_length=1, max_length=MOST_ID)] | None = None
    program: Annotated[str, Field(min_length=1, max_length=MOST_ID)] | None = None  # of many calls; else the session
    payload_budget: int = DEFAULT_BUDGET
    deadline_s: Annotated[float, Field(gt=0, le=MOST_SECONDS)] | None = None  # from now on, for all answers asked for
    plan: Annotated[
        Plan | Literal["auto", "model"] | None, PlainValidator(asked_plan, json_schema_input_type=AskedPlan)
    ] = None
    strict: bool = False  # refuse what would not be exact
    deterministic: bool = False  # or refuse; without a residency: full where it fits, else segment

    @property
    def chosen(self) -> str:
        """The residency that is asked for; OPEN where it is the server's choice."""
        return OPEN if self.deterministic and "residency" not in self.model_fields_set else self.residency

    @property
    def flushes(self) -> tuple[int, ...] | None:
        """Output tokens before each flush of the record that is to be followed; None where there is none."""
        if self.replay is None:
            return None
        return tuple(each.at for each in self.replay if each.decision == "flush")

    def turn(
        self,
        answer_id: str,
        tenant: Tenant,
        sampling: Sampling,
        max_tokens: int | None,
        grammar: Grammar | None,
    ) -> Turn:
        """A turn with all that the extension asks for, and nothing to answer yet; `max_tokens` None: the default."""
        return Turn(
            id=answer_id,
            sampling=sampling,
            max_tokens=max_tokens or 0,
            residency=self.chosen,
            replay=self.flushes,
            strict=self.strict,
            deterministic=self.deterministic,
            tenant=tenant.name,
            program=self.program or self.session or "",
            share_group=tenant.share_group,
            payload_budget=self.payload_budget,
            long_prompt=self.long_prompt,
            plan=self.plan,
            deadline_s=self.deadline_s,
            grammar=grammar,
        )


def _listed(stop: object) -> object:
    return [stop] if isinstance(stop, str) else stop


def _bias(given: object) -> object:
    if not isinstance(given, dict):
        return given
    for key in given:
        if not (isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) < 10):
            raise InvalidRequest(f"logit_bias: {str(key)[:20]!r} is not a token id", param="logit_bias")
    return {int(key): value for key, value in given.items()}


class GenerationRequest(Schema):
    """What both endpoints take."""

    unsupported = UNSUPPORTED
    without_effect = WITHOUT_EFFECT
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
    logit_bias: Annotated[dict[int, float], BeforeValidator(_bias, json_schema_input_type=dict[str, float])] = Field(
        default_factory=dict
    )
    stop: Annotated[list[str], BeforeValidator(_listed, json_schema_input_type=str | list[str])] = Field(
        default_factory=list
    )
    stop_token_ids: list[int] = Field(default_factory=list)
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    ghostkv: Extension = Extension()

    @property
    def structure(self) -> Structure | None:
        """What the answer must match. Raises InvalidRequest where several things ask for it."""
        return self.ghostkv.structure

    @model_validator(mode="after")
    def _consistent(self) -> GenerationRequest:
        _ = self.structure
        if self.ghostkv.replay is not None and self.n * len(getattr(self, "prompt", ())[:2] or (0,)) > 1:
            raise InvalidRequest("replay: a record is one answer's, so one prompt and n = 1", param="ghostkv.replay")
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
    tools: Annotated[list[FunctionTool], Field(max_length=MOST_TOOLS)] = Field(default_factory=list)
    tool_choice: ToolChoice | None = None  # none without tools, else auto
    parallel_tool_calls: bool = True
    response_format: ResponseFormat | None = None

    @classmethod
    def recorded(cls, parameters: str) -> ChatRequest:
        """The request of a session's answer, from its record; its conversation is the session's and not in it."""
        given = json.loads(parameters) | {"messages": [{"role": "user", "content": ""}]}
        return cls.model_validate_json(json.dumps(given))

    @property
    def structure(self) -> Structure | None:
        """As above."""
        asked = None if self.response_format is None else self.response_format.structure()
        return only(asked, self.ghostkv.structure)

    @model_validator(mode="after")
    def _logprobs_asked(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
        return self

    @model_validator(mode="after")
    def _tools_known(self) -> ChatRequest:
        check_answered(self.conversation)
        _ = self.calling
        return self

    @cached_property
    def conversation(self) -> tuple[Message, ...]:
        """The messages as values."""
        return tuple(message.message for message in self.messages)

    @cached_property
    def calling(self) -> Calling | None:
        """What the answer may call."""
        return calling_of(self.tools, self.tool_choice, parallel=self.parallel_tool_calls)
