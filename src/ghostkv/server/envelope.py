"""What is common to both endpoints' replies, whole or streamed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ghostkv.request import FinishReason
from ghostkv.server.extension import reply_extension
from ghostkv.session.turn import Finished, Output, Turn
from ghostkv.session.worker import Worker

Json = dict[str, Any]


class ChoiceWriter(Protocol):
    """Writes one answer as one endpoint wants it."""

    def opening(self) -> Json | None:
        """The chunk that comes before all others, if there is one."""
        ...

    def pieces(self, output: Output) -> Iterable[Json]:
        """The chunks of some output; none if it has nothing to say."""
        ...

    def closing(self, reason: str) -> Iterable[Json]:
        """The last chunks, at least one."""
        ...

    def whole(self, text: str, output: Output, reason: str) -> Json:
        """The whole answer; `output` holds all its tokens."""
        ...


@dataclass(frozen=True, slots=True)
class Envelope:
    """Writes the objects around choices."""

    id: str
    kind: str  # the `object` of whole replies
    chunk_kind: str
    worker: Worker
    per_prompt: int  # answers to each prompt; the answers of one prompt are neighbours
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, choices: Sequence[Json], ends: Sequence[Finished], residency: str) -> Json:
        """A reply that is not streamed."""
        usage = self.usage(ends)
        return {**self._head(self.kind), "choices": choices, "usage": usage, "ghostkv": self.extension(ends, residency)}

    def chunk(self, choices: Sequence[Json], usage: Json | None = None, **more: Any) -> Json:
        """One event of a stream."""
        return {**self._head(self.chunk_kind), "choices": choices, "usage": usage, **more}

    def extension(self, ends: Sequence[Finished], residency: str) -> Json:
        """What ghostkv says about answers."""
        return reply_extension(ends, residency, self.worker.manifest)

    def usage(self, ends: Sequence[Finished]) -> Json:
        """Token counts. A prompt counts once, whatever the number of answers to it; so do its cached tokens."""
        completion = sum(end.completion_tokens for end in ends)
        groups = [ends[at : at + self.per_prompt] for at in range(0, len(ends), self.per_prompt)]
        prompt = sum(group[0].prompt_tokens for group in groups)
        cached = sum(min(map(_cached, group)) for group in groups)
        return {**counts(prompt, completion), "prompt_tokens_details": {"cached_tokens": cached}}

    def _head(self, kind: str) -> Json:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.worker.name,
            "system_fingerprint": self.worker.manifest,
        }


def counts(prompt: int, completion: int) -> Json:
    """The three numbers of a usage object."""
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def finish_reason(reason: FinishReason) -> str:
    """In OpenAI's words."""
    return "stop" if reason is FinishReason.STOP else "length"


def choices_of(turn: Turn, count: int) -> list[Turn]:
    """The turn and its siblings: `count` answers to one prompt, which differ in what keys their random numbers."""
    return [
        replace(turn, id=f"{turn.id}-{index}", sampling=replace(turn.sampling, choice=index)) for index in range(count)
    ]


def prompt_tokens(worker: Worker, turns: Sequence[Turn], per_prompt: int) -> int:
    """Tokens of all prompts, each counted once."""
    return sum(worker.prompt_tokens(turn) for turn in turns[::per_prompt])


def _cached(end: Finished) -> int:
    return min(end.segments[0].usage.cached_tokens, end.prompt_tokens) if end.segments else 0
