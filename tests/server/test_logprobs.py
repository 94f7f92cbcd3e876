"""Log-probabilities on both endpoints."""

from __future__ import annotations

import codecs
import itertools
import math
from typing import Any

import pytest

from services import Service

CHAT: dict[str, Any] = {"model": "small", "messages": [{"role": "user", "content": "hi"}], "temperature": 0}


@pytest.mark.parametrize("top", [None, 0, 5])
def test_chat(small: Service, top: int | None) -> None:
    """D05, with the next."""
    body = CHAT | {"max_tokens": 12, "logprobs": True, "top_logprobs": top}
    reply = small.http.post("/v1/chat/completions", json=body).json()
    content = reply["choices"][0]["logprobs"]["content"]
    assert len(content) == reply["usage"]["completion_tokens"] == 12
    for entry in content:
        assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
        assert math.isfinite(entry["logprob"])
        assert entry["logprob"] <= 0
        best = entry["top_logprobs"]
        assert len(best) == (top or 0)
        if best:
            assert best[0] == {name: entry[name] for name in ("token", "logprob", "bytes")}
            values = [other["logprob"] for other in best]
            assert values == sorted(values, reverse=True)
    data = b"".join(bytes(entry["bytes"]) for entry in content)
    assert data.decode("utf-8", "replace") == reply["choices"][0]["message"]["content"]


@pytest.mark.parametrize("wrong", [{"logprobs": False, "top_logprobs": 5}, {"logprobs": True, "top_logprobs": 10000}])
def test_chat_refusals(small: Service, wrong: dict[str, Any]) -> None:
    reply = small.http.post("/v1/chat/completions", json=CHAT | wrong)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "top_logprobs")


def test_they_are_those_of_the_model(small: Service) -> None:
    """Against the backend's own teacher-forced scores."""
    import asyncio

    body = CHAT | {"max_tokens": 6, "logprobs": True}
    content = small.http.post("/v1/chat/completions", json=body).json()["choices"][0]["logprobs"]["content"]
    from ghostkv.request import Message

    prompt = list(small.worker.context.template((Message("user", "hi"),)))
    by_bytes = {small.worker.tokenizer.token_bytes(i): i for i in range(small.worker.tokenizer.vocab_size)}
    ids = [by_bytes[bytes(entry["bytes"])] for entry in content]
    expected = asyncio.run(small.worker.backend.score([*prompt, *ids], len(prompt)))
    assert [entry["logprob"] for entry in content] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("count", [0, 1, 4])
def test_completions(small: Service, count: int) -> None:
    body = {"model": "small", "prompt": "hi", "temperature": 0, "max_tokens": 12, "logprobs": count}
    reply = small.http.post("/v1/completions", json=body).json()
    found, text = reply["choices"][0]["logprobs"], reply["choices"][0]["text"]
    assert {len(values) for values in found.values()} == {12}
    for token, logprob, best in zip(found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True):
        assert best[token] == logprob == max(best.values())
        assert len(best) == max(count, 1)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    lengths = [len(decoder.decode(bytes_of(token))) for token in found["tokens"]]
    assert found["text_offset"] == [0, *itertools.accumulate(lengths[:-1])]
    assert sum(lengths) <= len(text) <= sum(lengths) + 1  # an incomplete character at the end counts when it is closed


def bytes_of(shown: str) -> bytes:
    """The inverse of how tokens are shown."""
    if not shown.startswith("bytes:"):
        return shown.encode()
    return bytes.fromhex(shown.removeprefix("bytes:").replace("\\x", ""))


def test_completions_refuse_too_many(small: Service) -> None:
    reply = small.http.post("/v1/completions", json={"model": "small", "prompt": "hi", "logprobs": 21})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "logprobs")
