"""The requests of a soak: every endpoint and way to end, in mixed lengths; and what is a right reply to each."""

from __future__ import annotations

import json
import random
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from http_client import Reply

TEXT = "the ship left Lisbon with salt and cloth before the storm came over harbour walls that nobody had mended"
ENDS = ("stop", "length", "tool_calls")
TURN = {
    "type": "function",
    "function": {
        "name": "turn",
        "parameters": {
            "type": "object",
            "properties": {"way": {"enum": ["left", "right"]}},
            "required": ["way"],
            "additionalProperties": False,
        },
    },
}


@dataclass(frozen=True, slots=True)
class Request:
    """One request; `answers`: how many ends its reply must have, 0 where it is not an answer of a model."""

    kind: str
    path: str
    body: dict[str, Any]
    answers: int = 1
    refused: int = 0  # the status that it must get
    session: str = ""  # made before it, deleted after it


Kind = Callable[[random.Random, str], Request]


def text(chance: random.Random, most: int) -> str:
    """Some words, mostly few."""
    return " ".join(chance.choices(TEXT.split(), k=1 + int(chance.random() ** 2 * most)))


def lengths(chance: random.Random) -> dict[str, Any]:
    """Mostly short answers, now and then one of several segments."""
    most = chance.choice([1, 2, 5, 10, 20, 40, 80]) if chance.random() < 0.95 else 300
    return {"max_tokens": most, "temperature": chance.choice([0, 1]), "ignore_eos": chance.random() < 0.5}


def chat(chance: random.Random, model: str) -> Request:
    """Whole or streamed, one answer or more, of any residency."""
    n = chance.choice([1, 1, 1, 3])
    messages = [{"role": "user", "content": text(chance, 120)}]
    body = {"model": model, "messages": messages, "n": n, "stream": chance.random() < 0.6, **lengths(chance)}
    body["ghostkv"] = {"residency": chance.choice(["segment", "segment", "full"])}
    return Request("chat", "/v1/chat/completions", body, n)


def completion(chance: random.Random, model: str) -> Request:
    """Prompts of text, several at once now and then, with log-probabilities and stop strings."""
    prompts = [text(chance, 150) for _ in range(chance.choice([1, 1, 1, 4]))]
    body = {"model": model, "prompt": prompts, "stream": chance.random() < 0.6, **lengths(chance)}
    body |= chance.choice([{}, {"logprobs": 3}, {"stop": ["e", "."]}, {"logprobs": 1, "stop": "a"}])
    return Request("completion", "/v1/completions", body, len(prompts))


def echo(chance: random.Random, model: str) -> Request:
    """A prompt that is scored, and nothing generated."""
    body = {"model": model, "prompt": text(chance, 150), "max_tokens": 0, "echo": True, "logprobs": 1}
    return Request("echo", "/v1/completions", body)


def response(chance: random.Random, model: str) -> Request:
    """Stored or not."""
    body = {"model": model, "input": text(chance, 80), "stream": chance.random() < 0.5, "store": chance.random() < 0.5}
    return Request("response", "/v1/responses", body | {"max_output_tokens": chance.choice([16, 30, 60])})


def structured(chance: random.Random, model: str) -> Request:
    """An answer that a grammar holds."""
    messages = [{"role": "user", "content": text(chance, 20)}]
    body = {"model": model, "messages": messages, "max_tokens": chance.choice([3, 40])}
    body |= {"stream": chance.random() < 0.5, "ghostkv": {"regex": "(yes|no|perhaps), [a-z ]{3,20}"}}
    return Request("structured", "/v1/chat/completions", body)


def tool(chance: random.Random, model: str) -> Request:
    """A call that must be made, though not always in time."""
    messages = [{"role": "user", "content": text(chance, 20)}]
    body = {"model": model, "messages": messages, "tools": [TURN], "tool_choice": "required"}
    return Request(
        "tool",
        "/v1/chat/completions",
        body | {"max_tokens": chance.choice([5, 60]), "stream": chance.random() < 0.5},
    )


def in_session(chance: random.Random, model: str) -> Request:
    """An answer that outlives its reader for a moment."""
    name = uuid.UUID(int=chance.getrandbits(128)).hex
    body = {"model": model, "messages": [{"role": "user", "content": text(chance, 60)}], **lengths(chance)}
    body |= {"stream": chance.random() < 0.7, "ghostkv": {"session": name}}
    return Request("session", "/v1/chat/completions", body, session=name)


def late(chance: random.Random, model: str) -> Request:
    """An answer with hardly any time."""
    body = {"model": model, "prompt": text(chance, 60), "max_tokens": 200, "stream": chance.random() < 0.5}
    return Request("late", "/v1/completions", body | {"ghostkv": {"deadline_s": chance.uniform(0.01, 2)}})


def tokens(chance: random.Random, model: str) -> Request:
    """No answer of a model."""
    return Request("tokenize", "/tokenize", {"model": model, "prompt": text(chance, 200)}, 0)


def bad(chance: random.Random, model: str) -> Request:
    """What is wrong in itself."""
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "stream": chance.random() < 0.5}
    wrongs: list[dict[str, Any]] = [{"max_tokens": -1}, {"model": "none"}, {"colour": "red"}, {"messages": []}]
    wrong = chance.choice(wrongs)
    return Request("bad", "/v1/chat/completions", body | wrong, 0, 404 if "model" in wrong else 400)


KINDS: tuple[Kind, ...] = (
    *(chat,) * 4,
    *(completion,) * 4,
    *(response,) * 2,
    *(in_session,) * 2,
    *(echo, structured, tool, late, tokens, bad),
)


def outcome(request: Request, reply: Reply) -> str:
    """How it ended, in a word. Raises ValueError where that is not exactly one right terminal answer."""
    if not reply.whole:
        raise ValueError(f"cut off after {len(reply.body)} bytes, status {reply.status}")
    if request.refused:
        if reply.status != request.refused or "error" not in json.loads(reply.body):
            raise ValueError(f"status {reply.status} in place of {request.refused}")
        return f"refused {reply.status}"
    if reply.status != 200:
        if reply.status not in (408, 429) or "error" not in json.loads(reply.body):
            raise ValueError(f"status {reply.status}: {reply.body[:300]!r}")
        return str(reply.status)
    if request.path == "/v1/responses":
        return _response(request, reply)
    if reply.event_stream:
        return _stream(request, reply)
    body = json.loads(reply.body)
    if request.answers:
        ended = [choice["index"] for choice in body["choices"] if choice["finish_reason"] in ENDS]
        _check_ends(request, Counter(ended))
    return "whole"


def _stream(request: Request, reply: Reply) -> str:
    events = reply.events
    if events.count("[DONE]") != 1 or events[-1] != "[DONE]":
        raise ValueError(f"{events.count('[DONE]')} [DONE], the last event is {events[-1:]}")
    chunks = [json.loads(event) for event in events[:-1]]
    errors = [chunk["error"]["code"] for chunk in chunks if "error" in chunk]
    choices = [choice for chunk in chunks for choice in chunk.get("choices", ())]
    ends = Counter(choice["index"] for choice in choices if choice["finish_reason"] is not None)
    if not errors:
        _check_ends(request, ends)
        return "stream"
    if errors != ["deadline_exceeded"] or "error" not in chunks[-1] or max(ends.values(), default=0) > 1:
        raise ValueError(f"errors {errors}, ends {ends}")
    return "late stream"


def _response(request: Request, reply: Reply) -> str:
    if not reply.event_stream:
        status = json.loads(reply.body)["status"]
    else:
        kinds = [json.loads(event)["type"] for event in reply.events if event != "[DONE]"]
        ends = [kind for kind in kinds if kind in ("response.completed", "response.incomplete", "response.failed")]
        if len(ends) != 1 or kinds[-1] != ends[0]:
            raise ValueError(f"ends {ends}, the last event is {kinds[-1:]}")
        status = ends[0].removeprefix("response.")
    if status not in ("completed", "incomplete"):
        raise ValueError(f"status {status}")
    return "stream" if reply.event_stream else "whole"


def _check_ends(request: Request, ends: Counter[int]) -> None:
    if ends != Counter(range(request.answers)):
        raise ValueError(f"{request.answers} answers, of which ended: {dict(ends)}")
