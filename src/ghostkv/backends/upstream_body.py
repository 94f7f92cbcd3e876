"""A segment as a request to /v1/completions, or to vLLM. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ghostkv.backends.upstream import Json
from ghostkv.backends.upstream_probe import Findings
from ghostkv.engine.randomness import uniform
from ghostkv.errors import InvalidRequest, Unsupported
from ghostkv.request import SegmentRequest
from ghostkv.text.tokenizer import Tokenizer

_SEEDS = 2**31  # that every server takes


def body_of(
    request: SegmentRequest, generated: Sequence[int], tokens: int, found: Findings, tokenizer: Tokenizer
) -> Json:
    """Asks for at most `tokens` tokens after the prompt and what was `generated`. Raises Unsupported, by field."""
    sampling = request.sampling
    body: Json = {
        "model": found.model,
        "prompt": _prompt((*request.prompt, *generated), found, tokenizer),
        **sampling_fields(request, len(generated), tokens, tokenizer),
    }
    if found.token_ids:
        body["return_token_ids"] = True
    if sampling.logprobs is not None:
        body |= {"logprobs": sampling.logprobs, "return_tokens_as_token_ids": True}
    for name in found.lacks & body.keys():
        raise Unsupported(f"the upstream does not honour {name}", param=name)
    return body


def sampling_fields(request: SegmentRequest, generated: int, tokens: int, tokenizer: Tokenizer) -> dict[str, Any]:
    """How at most `tokens` tokens after `generated` ones are chosen and what ends them, in vLLM's words.

    Those are OpenAI's where that has any.
    """
    sampling, emitted = request.sampling, request.state.emitted + generated
    asked = {"max_tokens": tokens, "temperature": sampling.temperature, **_filters(request)}
    asked |= _ends(request, emitted, tokens, tokenizer)
    if request.repeatable and sampling.temperature:
        # One for each request: an engine that began each segment with the same numbers would repeat itself.
        asked["seed"] = int(uniform(sampling.seed, sampling.choice, sampling.node, emitted) * _SEEDS)
    return asked


def scoring_body(request: SegmentRequest, best: int, found: Findings) -> Json:
    """Asks for the log-probabilities of the prompt's tokens, and the `best` best beside each."""
    if not found.score:
        raise Unsupported("the upstream gives no log-probabilities of a prompt", param="echo")
    return {
        "model": found.model,
        "prompt": list(request.prompt),
        "max_tokens": 0,
        "echo": True,
        "temperature": 0.0,
        "logprobs": max(1, best),
        "return_tokens_as_token_ids": True,
    }


def _filters(request: SegmentRequest) -> dict[str, Any]:
    """What differs from neutral, so that a server need not know what is not asked for."""
    sampling = request.sampling
    neutral = {
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }
    asked: dict[str, Any] = {name: value for name, off in neutral.items() if (value := getattr(sampling, name)) != off}
    if sampling.logit_bias:
        asked["logit_bias"] = dict(sampling.logit_bias)
    return asked


def _ends(request: SegmentRequest, emitted: int, tokens: int, tokenizer: Tokenizer) -> dict[str, Any]:
    """Our own rules end the answer; the engine need only know what it may not choose yet, and what ends nothing."""
    sampling = request.sampling
    asked: dict[str, Any] = {}
    if not set(tokenizer.eos_ids) <= set(sampling.terminators):
        asked["ignore_eos"] = True
    if (least := sampling.min_tokens - emitted) > 0:
        asked["min_tokens"] = min(least, tokens)  # more than is asked for is refused
        if own := [token_id for token_id in sampling.terminators if token_id not in tokenizer.eos_ids]:
            asked["stop_token_ids"] = own
    return asked


def _prompt(ids: Sequence[int], found: Findings, tokenizer: Tokenizer) -> list[int] | str:
    """The ids, or for a server that takes none their text, if control tokens in it are those that were meant."""
    if found.prompt_ids:
        return list(ids)
    if ids[: len(tokenizer.prefix)] == tokenizer.prefix:
        ids = ids[len(tokenizer.prefix) :]  # which the server puts before a text itself
    names = {token_id: name for name, token_id in tokenizer.control.items()}
    text = b"".join(
        names[token_id].encode() if token_id in names else tokenizer.token_bytes(token_id) for token_id in ids
    ).decode("utf-8", errors="replace")
    read = [token_id for token_id, _, _ in tokenizer.encode_markup(text) if token_id in names]
    if read != [token_id for token_id in ids if token_id in names]:
        message = "a content holds the string of a special token, which this upstream would take for the token itself"
        raise InvalidRequest(message, param="messages")
    return text
