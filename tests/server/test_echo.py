"""Completions that repeat their prompt, and the log-probabilities of a prompt's own tokens."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest

from services import Scripted, Service, saying

TEXT = "hello there, in the other town the 漢 sign was on a wall again"
BODY: dict[str, Any] = {"model": "small", "prompt": TEXT, "temperature": 0, "max_tokens": 4}


def post(service: Service, body: dict[str, Any]) -> dict[str, Any]:
    reply = service.http.post("/v1/completions", json=body)
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def streamed(service: Service, body: dict[str, Any]) -> list[dict[str, Any]]:
    with service.http.stream("POST", "/v1/completions", json=body | {"stream": True}) as reply:
        lines = [line.removeprefix("data: ") for line in reply.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def expected(service: Service, ids: list[int]) -> list[float]:
    return asyncio.run(service.worker.backend.score(ids, 1))


@pytest.mark.parametrize("form", ["text", "ids"])
def test_echo_comes_before_the_answer(small: Service, form: str) -> None:
    prompt = TEXT if form == "text" else list(small.worker.encode(TEXT))
    plain = post(small, BODY | {"prompt": prompt})
    echoed = post(small, BODY | {"prompt": prompt, "echo": True})
    assert echoed["choices"][0]["text"] == TEXT + plain["choices"][0]["text"]
    assert echoed["choices"][0]["logprobs"] is None
    assert echoed["usage"]["completion_tokens"] == 4
    assert echoed["ghostkv"]["residency"] == "auto"


def test_special_tokens_of_the_prompt_are_not_text(small: Service) -> None:
    ids = [small.worker.tokenizer.eos_ids[0], *small.worker.tokenizer.encode("abc")]
    assert post(small, BODY | {"prompt": ids, "echo": True, "max_tokens": 0})["choices"][0]["text"] == "abc"


@pytest.mark.parametrize("tokens", [0, 1, 6])
@pytest.mark.parametrize("top", [0, 1, 5])
def test_log_probabilities_of_the_prompt_are_those_of_the_model(small: Service, tokens: int, top: int) -> None:
    ids = list(small.worker.encode(TEXT))
    reply = post(small, BODY | {"prompt": ids, "echo": True, "logprobs": top, "max_tokens": tokens})
    assert reply["ghostkv"]["residency"] == "full"
    assert reply["ghostkv"]["exact"]
    assert reply["usage"]["prompt_tokens"] == len(ids)
    assert reply["usage"]["completion_tokens"] == tokens
    choice = reply["choices"][0]
    assert choice["finish_reason"] == "length"
    found = choice["logprobs"]
    assert {len(values) for values in found.values()} == {len(ids) + tokens}
    assert found["token_logprobs"][0] is found["top_logprobs"][0] is None
    assert found["token_logprobs"][1 : len(ids)] == expected(small, ids)
    for token, logprob, best in list(
        zip(*(found[n] for n in ("tokens", "token_logprobs", "top_logprobs")), strict=True)
    )[1:]:
        assert best[token] == logprob <= max(best.values())
        assert top <= len(best) <= top + 1 or top == 0 == len(best) - 1
    ends = [*found["text_offset"][1:], len(choice["text"])]
    for token, start, end in zip(found["tokens"], found["text_offset"], ends, strict=True):
        assert token.startswith("bytes:") or choice["text"][start:end].endswith(token)


@pytest.mark.parametrize("tokens", [0, 5])
@pytest.mark.parametrize("logprobs", [None, 2])
def test_a_stream_says_the_same_as_a_whole_reply(small: Service, tokens: int, logprobs: int | None) -> None:
    body = BODY | {"echo": True, "max_tokens": tokens, "logprobs": logprobs, "n": 2, "best_of": 2}
    whole = post(small, body)
    chunks = [chunk["choices"][0] for chunk in streamed(small, body)]
    for choice in whole["choices"]:
        own = [chunk for chunk in chunks if chunk["index"] == choice["index"]]
        assert own[0]["text"] == TEXT
        assert "".join(chunk["text"] for chunk in own) == choice["text"]
        if logprobs is not None:
            parts = [chunk["logprobs"] for chunk in own if chunk["logprobs"] is not None]
            joined = {name: [value for part in parts for value in part[name]] for name in parts[0]}
            assert joined == choice["logprobs"]
        assert [chunk["finish_reason"] for chunk in own if chunk["finish_reason"]] == [choice["finish_reason"]]


def test_a_batch_as_evaluation_harnesses_send_it(small: Service) -> None:
    """Lists of token ids, one generated token that is dropped: EleutherAI's lm-evaluation-harness, loglikelihood."""
    texts = ["the town", "a wall on the hill", TEXT]
    prompts = [list(small.worker.encode(text)) for text in texts]
    body = BODY | {"prompt": prompts, "echo": True, "logprobs": 1, "max_tokens": 1, "seed": 1234}
    reply = post(small, body)
    for choice, ids in zip(sorted(reply["choices"], key=lambda choice: choice["index"]), prompts, strict=True):
        context = 2
        scores = choice["logprobs"]["token_logprobs"][context:-1]
        best = choice["logprobs"]["top_logprobs"][context:-1]
        assert sum(scores) == pytest.approx(sum(expected(small, ids)[context - 1 :]), abs=1e-9)
        assert all(score <= max(top.values()) for score, top in zip(scores, best, strict=True))
    greedy = post(small, BODY | {"prompt": prompts[0], "max_tokens": 3, "logprobs": 0})["choices"][0]["logprobs"]
    by_text = {small.worker.tokenizer.token_text(i): i for i in range(small.worker.tokenizer.vocab_size)}
    if all(token in by_text for token in greedy["tokens"]):
        again = [*prompts[0], *(by_text[token] for token in greedy["tokens"])]
        found = post(small, body | {"prompt": again})["choices"][0]["logprobs"]
        pairs = zip(found["token_logprobs"], found["top_logprobs"], strict=True)
        assert all(score == max(top.values()) for score, top in list(pairs)[len(prompts[0]) : -1])


def test_the_client_is_the_openai_one(small: Service) -> None:
    reply = small.client.completions.create(
        model="small", prompt=TEXT, echo=True, logprobs=1, max_tokens=0, temperature=0
    )
    choice = reply.choices[0]
    assert choice.text == TEXT
    assert choice.logprobs is not None and choice.logprobs.token_logprobs is not None
    ids = list(small.worker.encode(TEXT))
    assert choice.logprobs.token_logprobs[1:] == expected(small, ids)


def test_another_residency_is_refused_where_it_was_asked_for(small: Service) -> None:
    body = BODY | {"echo": True, "logprobs": 0}
    for residency in ("auto", "segment", "sink_window"):
        reply = small.http.post("/v1/completions", json=body | {"ghostkv": {"residency": residency}})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "ghostkv.residency")
    assert post(small, body | {"ghostkv": {"residency": "full"}})["ghostkv"]["residency"] == "full"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"best_of": 3}, "best_of"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"suffix": "end"}, "suffix"),
        ({"echo": True, "logprobs": 21}, "logprobs"),
        ({"echo": "yes"}, "echo"),
    ],
)
def test_refusals(small: Service, body: dict[str, Any], param: str) -> None:
    for stream in (False, True):
        reply = small.http.post("/v1/completions", json=BODY | body | {"stream": stream})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


def test_the_prompt_may_fill_the_context_and_no_more(small: Service) -> None:
    ids = [65 + i % 50 for i in range(513)]
    body = BODY | {"echo": True, "logprobs": 0, "max_tokens": 0}
    assert len(post(small, body | {"prompt": ids[:512]})["choices"][0]["logprobs"]["tokens"]) == 512
    reply = small.http.post("/v1/completions", json=body | {"prompt": ids})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_a_backend_without_scores_says_so(scripted: Scripted) -> None:
    service = scripted(saying("hi"))
    reply = service.http.post("/v1/completions", json={"model": "scripted", "prompt": "a", "echo": True, "logprobs": 1})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "echo")


def test_scoring_runs_beside_answers(small: Service) -> None:
    """A long scoring request does not stop the others: a step of the engine computes both."""

    async def both() -> tuple[list[float], list[float]]:
        client = openai.AsyncOpenAI(base_url=f"{small.url}/v1", api_key="none", max_retries=0)
        ids = [65 + i % 50 for i in range(500)]
        stream = await client.completions.create(
            model="small", prompt="x", max_tokens=300, temperature=0, stream=True, extra_body={"ignore_eos": True}
        )
        await anext(aiter(stream))
        score = asyncio.ensure_future(
            client.completions.create(model="small", prompt=ids, echo=True, logprobs=0, max_tokens=0)
        )
        during = 0
        async for _ in stream:
            during += not score.done()
        found = (await score).choices[0].logprobs
        assert found is not None and found.token_logprobs is not None
        assert during > 0
        await client.close()
        return [value for value in found.token_logprobs if value is not None], await small.worker.backend.score(ids, 1)

    found, reference = asyncio.run(both())
    assert found == reference
