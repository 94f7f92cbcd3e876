"""What a client may ask for: the range of every sampling value, and the sizes of lists that cost time in each step.

One table for server, library and command line. It checks values; whether a turn fits memory is `fit`'s business.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ghostkv.errors import InvalidRequest
from ghostkv.protocol.payload import LEAST_BUDGET, MOST_BUDGET
from ghostkv.request import Sampling
from ghostkv.session.turn import LongPrompt, Turn

MOST_LOGPROBS = 20
_MOST_STOPS = 16
_MOST_STOP_CHARACTERS = 1000  # a stop string's every prefix is kept, so its cost grows with the square
_MOST_IDS = 1024
RANGES = {
    "temperature": (0.0, 2.0),
    "top_k": (0, 2**31 - 1),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 10.0),  # beyond, logits leave the range of float32
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "seed": (-(2**63), 2**63 - 1),
}
_MOST_BIAS = 100.0


def check_values(turn: Turn, vocabulary: int) -> None:
    """Raises InvalidRequest naming field and limit. `vocabulary` is the number of token ids."""
    sampling = turn.sampling
    for name, (least, most) in RANGES.items():
        _check_range(name, getattr(sampling, name), least, most)
    if not 0.0 < sampling.top_p <= 1.0:
        raise InvalidRequest(f"top_p must be above 0 and at most 1, not {sampling.top_p}", param="top_p")
    if turn.prompt and turn.long_prompt is LongPrompt.CONDENSE:
        raise InvalidRequest(
            "long_prompt: only the question of a conversation can be condensed, not a raw prompt",
            param="ghostkv.long_prompt",
        )
    _check_range("payload_budget", turn.payload_budget, LEAST_BUDGET, MOST_BUDGET)
    if sampling.logprobs is not None:
        _check_range("logprobs", sampling.logprobs, 0, MOST_LOGPROBS)
    if not 0 <= sampling.min_tokens <= turn.max_tokens:
        raise InvalidRequest(
            f"min_tokens must be between 0 and max_tokens ({turn.max_tokens}), not {sampling.min_tokens}",
            param="min_tokens",
        )
    _check_bias(sampling, vocabulary)
    _check_stops(turn)
    _check_ids("stop_token_ids", turn.stop_ids, vocabulary)
    _check_count("stop_token_ids", len(turn.stop_ids), _MOST_IDS)
    _check_ids("prompt", turn.prompt, vocabulary)


def check_steering(turn: Turn, vectors: Collection[str]) -> None:
    """Raises InvalidRequest for a control vector that is not among `vectors`, those that the backend has."""
    unknown = next((name for name, _ in turn.steering.parts if name not in vectors), None)
    if unknown is not None:
        known = f"there are {', '.join(vectors)}" if vectors else "this model has none"
        raise InvalidRequest(f"steering: no control vector is named {unknown[:40]!r}: {known}", param="steering")


def _check_range(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:  # false for NaN as well
        raise InvalidRequest(f"{name} must be between {least} and {most}, not {str(value)[:40]}", param=name)


def _check_count(name: str, count: int, most: int) -> None:
    if count > most:
        raise InvalidRequest(f"{name} may have at most {most} entries, not {count}", param=name)


def _check_ids(name: str, ids: Iterable[int], vocabulary: int) -> None:
    bad = next((token_id for token_id in ids if not 0 <= token_id < vocabulary), None)
    if bad is not None:
        raise InvalidRequest(f"{name}: {bad} is not a token id: they run from 0 to {vocabulary - 1}", param=name)


def _check_bias(sampling: Sampling, vocabulary: int) -> None:
    _check_count("logit_bias", len(sampling.logit_bias), _MOST_IDS)
    _check_ids("logit_bias", (token_id for token_id, _ in sampling.logit_bias), vocabulary)
    for _, bias in sampling.logit_bias:
        _check_range("logit_bias", bias, -_MOST_BIAS, _MOST_BIAS)


def _check_stops(turn: Turn) -> None:
    _check_count("stop", len(turn.stop), _MOST_STOPS)
    for stop in turn.stop:
        if not 1 <= len(stop) <= _MOST_STOP_CHARACTERS:
            raise InvalidRequest(
                f"a stop string must have 1 to {_MOST_STOP_CHARACTERS} characters, not {len(stop)}", param="stop"
            )
