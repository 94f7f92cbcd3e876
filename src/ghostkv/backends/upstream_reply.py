"""The choices of an upstream's replies as tokens, by whatever names the ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ghostkv.backends.upstream import Json
from ghostkv.errors import EngineFault
from ghostkv.request import Token

_NAMED = "token_id:"


def choice_of(reply: Json) -> Json | None:
    """The one choice of a reply or chunk; None in a chunk that has none, such as one of usage."""
    choices = reply.get("choices")
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None


def named_id(name: object) -> int | None:
    """The id of a token that is shown as `token_id:7`."""
    found = name.removeprefix(_NAMED) if isinstance(name, str) and name.startswith(_NAMED) else ""
    return int(found) if found.isdecimal() else None


def token_logprobs(choice: Json) -> list[float | None]:
    """Of a choice's tokens; empty where it gives none."""
    logprobs = choice.get("logprobs")
    found = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
    return found if isinstance(found, list) else []


def top_logprobs(choice: Json, most: int) -> list[tuple[tuple[int, float], ...]]:
    """The `most` most probable tokens at each place, best first; those that are not named by id are left out."""
    logprobs = choice.get("logprobs")
    found = logprobs.get("top_logprobs") if isinstance(logprobs, dict) else None
    return [_best(each, most) if isinstance(each, dict) else () for each in found or ()]


def _best(values: dict[str, Any], most: int) -> tuple[tuple[int, float], ...]:
    pairs = [(found, value) for name, value in values.items() if (found := named_id(name)) is not None]
    return tuple(sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:most])


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads the tokens of choices."""

    ids: bool  # choices name them
    encode: Callable[[str], Sequence[int]]  # text to ids, where they do not

    def tokens(self, choice: Json, best: int | None) -> tuple[Token, ...]:
        """The choice's tokens; with log-probabilities, and the `best` best beside each, where `best` is not None."""
        ids = choice.get("token_ids") if self.ids else self.encode(str(choice.get("text") or ""))
        if ids is None:
            ids = ()
        if not isinstance(ids, list | tuple) or not all(type(token_id) is int for token_id in ids):
            raise EngineFault("the upstream names tokens by something that is no list of ids")
        if best is None or not ids:
            return tuple(map(Token, ids))
        chosen, tops = token_logprobs(choice), top_logprobs(choice, best)
        if len(chosen) != len(ids):
            raise EngineFault(f"the upstream gave {len(chosen)} log-probabilities for {len(ids)} tokens")
        tops += [()] * (len(ids) - len(tops))
        return tuple(Token(*each) for each in zip(ids, chosen, tops))
