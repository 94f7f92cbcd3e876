"""The requests of /v1/completions."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from ghostkv.errors import InvalidRequest, Unsupported
from ghostkv.server.schema import MOST_ANSWERS, UNSUPPORTED, GenerationRequest
from ghostkv.session.limits import MOST_LOGPROBS


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


Prompt: TypeAlias = Annotated[str | list[int], BeforeValidator(_prompt, json_schema_input_type=str | list[int])]
_SOME = Field(min_length=1)
Prompts: TypeAlias = str | Annotated[list[str], _SOME] | Annotated[list[int], _SOME] | Annotated[list[list[int]], _SOME]


class CompletionRequest(GenerationRequest):
    """POST /v1/completions."""

    unsupported = UNSUPPORTED | {"response_format", "suffix"}
    prompt: Annotated[list[Prompt], BeforeValidator(_prompts, json_schema_input_type=Prompts)]
    max_tokens: Annotated[int, Field(ge=0)] | None = None  # 0: the prompt is only read
    logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    echo: bool = False
    best_of: int | None = None
    return_token_ids: bool = False  # in choices, beside the text; vLLM's field
    return_tokens_as_token_ids: bool = False  # in log-probabilities, as "token_id:7"; likewise

    @property
    def scores_prompt(self) -> bool:
        """Whether the log-probabilities of the prompt's own tokens are asked for."""
        return self.echo and self.logprobs is not None

    @model_validator(mode="after")
    def _consistent_prompts(self) -> CompletionRequest:
        if self.best_of not in (None, self.n):
            raise Unsupported(
                f"best_of {self.best_of} is not supported: every answer is returned, so it can only equal n ({self.n})",
                param="best_of",
            )
        if self.max_tokens == 0 and not self.echo:
            raise InvalidRequest("max_tokens 0 only reads the prompt, which needs echo: true", param="max_tokens")
        if len(self.prompt) * self.n > MOST_ANSWERS:
            raise InvalidRequest(
                f"{len(self.prompt)} prompts times n {self.n} are more than {MOST_ANSWERS} answers", param="prompt"
            )
        return self
