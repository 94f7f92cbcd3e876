"""What an upstream can do: asked at start by a dozen small requests, whose answers count and not its name.

A field that a server does not know may be refused or passed over, so each is tried where it must change the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ghostkv.backends.remote import LACKING
from ghostkv.backends.upstream import FailedTry, Failure, Json, Upstream
from ghostkv.backends.upstream_reply import choice_of, named_id, token_logprobs, top_logprobs
from ghostkv.backends.upstream_text import ModelText
from ghostkv.errors import ConfigError, InvalidRequest

_SAMPLE = (
    "The café's 1,024 guests (of 37) — all naïve — paid €21.50; nobody's watch said 09:30?\n\n  def f(x): return x"
)
_UNKNOWN_CONTEXT = 2048  # tokens, where nobody says: small, since what is sent must fit

_COSTS = {
    "ignore_eos": "ignore_eos is refused",
    "min_tokens": "min_tokens is refused",
    "logit_bias": "logit_bias is refused",
    "top_k": "top_k is refused",
    "min_p": "min_p is refused",
    "repetition_penalty": "repetition_penalty is refused",
    "logprobs": "logprobs are refused",
    "top_logprobs": "logprobs are those of the chosen tokens only",
}


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found."""

    model: str  # its id there
    max_context: int  # tokens
    prompt_ids: bool  # prompts may be token ids
    token_ids: bool  # choices name their tokens
    score: bool  # gives the log-probabilities of a prompt
    lacks: frozenset[str]  # fields of requests that change nothing there
    sample: str = ""  # how it continues a sample of text

    @classmethod
    def common(cls, found: Sequence[Findings]) -> Findings:
        """What all of several upstreams can do; named as the first has it."""
        return replace(
            found[0],
            max_context=min(each.max_context for each in found),
            prompt_ids=all(each.prompt_ids for each in found),
            token_ids=all(each.token_ids for each in found),
            score=all(each.score for each in found),
            lacks=frozenset().union(*(each.lacks for each in found)),
        )

    def adapted(self, found: Findings) -> Findings:
        """How an upstream like `found` is asked where this is offered. Raises ConfigError naming what it lacks."""
        missing = sorted(found.lacks - self.lacks)
        missing += [name for name in ("prompt_ids", "token_ids", "score") if getattr(self, name) > getattr(found, name)]
        missing += [f"a context of {self.max_context} tokens"] if found.max_context < self.max_context else []
        if missing:
            raise ConfigError(f"it lacks what is offered since the start: {', '.join(missing)}")
        return replace(self, model=found.model)

    @property
    def costs(self) -> tuple[str, ...]:
        """What clients do without, for people."""
        said = list(LACKING)
        if not self.prompt_ids:
            said.append("prompts are sent as text: a content with a special token's string is refused")
        if not self.token_ids:
            said.append("tokens are those of our own reading of the text, so counts are about right only")
        if not self.score:
            said.append("echo with logprobs is refused")
        return (*said, *(text for field, text in _COSTS.items() if field in self.lacks))


def shares(found: Mapping[str, Findings]) -> list[str]:
    """What several upstreams, by address, cannot do and which of them is why, for people."""
    offered = Findings.common(list(found.values()))
    said = []
    for cost in offered.costs:
        why = [address for address, each in found.items() if cost in each.costs]
        said.append(cost if len(why) == len(found) else f"{cost} (because of {', '.join(why)})")
    for address, each in found.items():
        if each.max_context > offered.max_context:
            said.append(f"of the {each.max_context} tokens of context at {address} {offered.max_context} are used")
        if each.sample != offered.sample:
            said.append(f"{address} continues a sample otherwise than the first: its weights or kernels are others")
    return said


async def discover(upstream: Upstream, text: ModelText, model: str = "") -> Findings:
    """Ask. `model` is the upstream's id of it; "" if it serves only one.

    Raises ConfigError if it serves no such model, does not complete prompts, or has another tokenizer than `text`, and
    FailedTry if it does not answer.
    """
    try:
        name, context = await _served(upstream, text, model)
        return await _Probe(upstream, text, name).findings(context)
    except InvalidRequest as error:
        raise ConfigError(error.message) from error


async def own_files(upstream: Upstream, model: str = "") -> Path:
    """Where the upstream's model is on this machine, as it says.

    Raises ConfigError where it does not say so, and FailedTry if it does not answer.
    """
    entries = await _listed(upstream)
    said = [str(entry.get(name) or "") for entry in entries for name in ("root", "id") if model in ("", entry["id"])]
    for place in said:
        if place and (path := Path(place)).is_absolute() and path.exists():
            return path
    raise ConfigError(f"the upstream {upstream.address} does not say where its tokenizer is: name one with --model")


async def _listed(upstream: Upstream) -> list[Json]:
    """The entries of /v1/models. Raises ConfigError where there are none."""
    listed = (await upstream.get("/v1/models") or {}).get("data")
    models = (
        [entry for entry in listed if isinstance(entry, dict) and "id" in entry] if isinstance(listed, list) else []
    )
    if not models:
        raise ConfigError(f"the upstream {upstream.address} names no model at /v1/models")
    return models


async def _served(upstream: Upstream, text: ModelText, model: str) -> tuple[str, int]:
    """(id, context) of the model."""
    models = {str(entry["id"]): entry for entry in await _listed(upstream)}
    name = model or (next(iter(models)) if len(models) == 1 else text.name)
    if name not in models:
        names = ", ".join(models)
        raise ConfigError(f"the upstream {upstream.address} serves {names}: choose one with --upstream-model")
    said: list[Any] = [models[name].get("max_model_len")]
    if not said[0]:
        settings = (await upstream.get("/props") or {}).get("default_generation_settings")  # llama.cpp's server
        said.append(settings.get("n_ctx") if isinstance(settings, dict) else None)
    known = [count for count in (*said, text.context) if isinstance(count, int) and count > 0]
    return name, min(known, default=_UNKNOWN_CONTEXT)


class _Probe:
    """One upstream's questions."""

    def __init__(self, upstream: Upstream, text: ModelText, model: str) -> None:
        self._upstream = upstream
        self._tokenizer = text.tokenizer
        self._model = model
        self._ids = [*text.tokenizer.prefix, *text.tokenizer.encode(_SAMPLE)]
        self._prompt: str | list[int] = self._ids

    async def findings(self, context: int) -> Findings:
        prompt_ids = await self._reads_ids()
        if not prompt_ids:
            self._prompt = _SAMPLE
        await self._check_tokenizer()
        named = await self._ask(max_tokens=1, return_token_ids=True)
        token_ids = named is not None and isinstance(named.get("token_ids"), list)
        sample = await self._text()
        lacks = {*await self._ends(), *await self._filters(sample), *await self._logprobs(token_ids=token_ids)}
        score = prompt_ids and await self._scores()
        return Findings(self._model, context, prompt_ids, token_ids, score, frozenset(lacks), str(sample))

    async def _reads_ids(self) -> bool:
        reply = await self._tried(max_tokens=1)
        return reply is not None and self._read(reply) in (0, len(self._ids))

    async def _check_tokenizer(self) -> None:
        """Text costs as many tokens there as here, but for a BOS. Also: it completes prompts at all."""
        reply = await self._reply(prompt=_SAMPLE, max_tokens=1)
        if choice_of(reply) is None:
            raise ConfigError(f"the upstream {self._upstream.address} completes no prompts at /v1/completions")
        read, own = self._read(reply), len(self._tokenizer.encode(_SAMPLE))
        if read and not own <= read <= own + 1:
            raise ConfigError(
                f"the upstream's {self._model} reads a sample as {read} tokens and our tokenizer as {own}: "
                f"name its own checkpoint with --model"
            )

    async def _ends(self) -> list[str]:
        """Tried on an answer that a bias ends at once."""
        eos = self._tokenizer.eos_ids[:1]
        ending = {"max_tokens": 3, "logit_bias": {str(token_id): 100 for token_id in eos}}
        plain = await self._ask(**ending)
        if not eos or plain is None or plain.get("finish_reason") != "stop":
            return ["logit_bias", "ignore_eos", "min_tokens"]
        ignoring = await self._ask(**ending, ignore_eos=True)
        lacks = [] if ignoring is not None and ignoring.get("finish_reason") == "length" else ["ignore_eos"]
        longer = await self._ask(**ending, min_tokens=3)
        return lacks if longer is not None and longer.get("finish_reason") == "length" else [*lacks, "min_tokens"]

    async def _filters(self, greedy: object) -> list[str]:
        """A filter that leaves one token makes a hot draw greedy; a penalty far below 1 brings words of the prompt."""
        hot = await self._text(temperature=2.0)
        honoured = {
            "top_k": hot != greedy == await self._text(temperature=2.0, top_k=1),
            "min_p": hot != greedy == await self._text(temperature=2.0, min_p=1.0),
            "repetition_penalty": await self._text(repetition_penalty=0.01) not in (None, greedy),
        }
        return [name for name, works in honoured.items() if not works]

    async def _text(self, **fields: Any) -> object:
        """How the sample goes on."""
        choice = await self._ask(max_tokens=8, **fields)
        return None if choice is None else choice.get("text")

    async def _logprobs(self, *, token_ids: bool) -> list[str]:
        """Only where they can be told apart by token."""
        more = {"return_token_ids": True} if token_ids else {}
        best = await self._ask(max_tokens=2, logprobs=2, return_tokens_as_token_ids=True, **more)
        if best is not None and any(top_logprobs(best, 2)) and len(token_logprobs(best)) == 2:
            return []
        chosen = await self._ask(max_tokens=2, logprobs=1, **more)
        if token_ids and chosen is not None and len(token_logprobs(chosen)) == 2:
            return ["top_logprobs"]
        return ["logprobs", "top_logprobs"]

    async def _scores(self) -> bool:
        """One for each token but the first."""
        read = await self._ask(max_tokens=0, echo=True, logprobs=1, return_tokens_as_token_ids=True)
        if read is None or len(values := token_logprobs(read)) != len(self._ids):
            return False
        tokens = read["logprobs"].get("tokens")
        named = isinstance(tokens, list) and [named_id(token) for token in tokens] == self._ids
        return named and all(isinstance(value, float | int) for value in values[1:])

    async def _ask(self, **fields: Any) -> Json | None:
        """The choice; None where the upstream refuses."""
        reply = await self._tried(**fields)
        return None if reply is None else choice_of(reply)

    async def _tried(self, **fields: Any) -> Json | None:
        """The reply; None where the upstream refuses, or fails as some do with what they do not expect."""
        try:
            return await self._reply(**fields)
        except InvalidRequest:
            return None
        except FailedTry as failed:
            if failed.kind is not Failure.FAULT:
                raise
            return None

    async def _reply(self, **fields: Any) -> Json:
        body = {"model": self._model, "prompt": self._prompt, "temperature": 0.0, **fields}
        return await self._upstream.complete(body)

    def _read(self, reply: Json) -> int:
        """Prompt tokens, as the upstream counts them; 0 where it does not."""
        usage = reply.get("usage")
        count = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        return count if isinstance(count, int) else 0
