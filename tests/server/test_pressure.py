"""Pools too small for what is asked: the same answers, only later, or a refusal; never another answer and never a hang.

Small random model, float32; one block is 16 tokens. Nothing is preempted here, so what shows pressure is the counter
of those that had to wait for blocks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from checkpoints import write_hf_checkpoint
from ghostkv.launch import engine_config, open_worker
from scraping import Scrape
from services import Service, serving

BLOCK = 16 * 2 * 2 * 2 * 64 * 4  # bytes: tokens, keys and values, layers, KV heads, head size, float32
WAITS = "ghostkv_waits_for_memory_total"
LENGTHS = np.linspace(20, 60, 12).astype(int)
PROMPTS: list[list[int]] = [np.random.default_rng(length).integers(3, 260, length).tolist() for length in LENGTHS]
NEED = sum(-(-(len(prompt) + 79) // 16) for prompt in PROMPTS)  # blocks of all answers of 80 tokens at a time


@contextmanager
def pool(path: Path, blocks: int, residency: str = "full") -> Iterator[Service]:
    """A server whose pool has so many blocks. `residency` is what the pool is checked for at its start."""
    config = engine_config(kv_budget=blocks * BLOCK, dtype="float32")
    worker = open_worker(str(path), config, residency=residency)
    assert worker.backend.capabilities().kv_budget == blocks * BLOCK
    with serving(worker) as service:
        yield service


def said(service: Service, path: str, body: dict[str, Any]) -> list[Any]:
    """Per answer: text, log-probabilities and finish reason; then the usage. Whole and streamed must say the same."""
    url = f"{service.url}{path}"
    whole = httpx2.post(url, json=body, timeout=120)
    assert whole.status_code == 200, whole.text
    reply = whole.json()
    found = [[*content(choice), choice["finish_reason"]] for choice in reply["choices"]]
    streamed = httpx2.post(url, json=body | {"stream": True, "stream_options": {"include_usage": True}}, timeout=120)
    events = [line.removeprefix("data: ") for line in streamed.text.split("\n\n") if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    mine = [choice for chunk in chunks for choice in chunk["choices"]]
    parts = [content(choice) for choice in mine]
    joined = ["".join(part[0] for part in parts), [entry for part in parts for entry in part[1]]]
    assert [*joined, mine[-1]["finish_reason"]] == found[0]
    usage = [{name: of["usage"][name] for name in ("prompt_tokens", "completion_tokens")} for of in (reply, chunks[-1])]
    assert usage[0] == usage[1]
    return [*found, usage[0]]


def content(choice: dict[str, Any]) -> list[Any]:
    """[text, a list with one entry for each token] of a choice, whole or of a chunk, of either endpoint."""
    logprobs = choice["logprobs"] or {}
    if "text" in choice:
        return [choice["text"], list(zip(logprobs.get("tokens", ()), logprobs.get("token_logprobs", ()), strict=True))]
    said = choice["message"] if "message" in choice else choice["delta"]
    return [said.get("content") or "", logprobs.get("content") or []]


def completions(stop: str | None = None) -> list[dict[str, Any]]:
    """Twelve of 80 tokens: greedy, hot with a seed, and one that a stop string ends."""
    bodies: list[dict[str, Any]] = [
        {"prompt": prompt, "max_tokens": 80, "temperature": 0, "logprobs": 1, "ignore_eos": True} for prompt in PROMPTS
    ]
    for number in (1, 4, 7, 10):
        bodies[number] |= {"temperature": 1, "seed": number}
    bodies[2]["stop"] = stop
    return [body | {"model": "small", "ghostkv": {"residency": "full"}} for body in bodies]


def at_once(service: Service, path: str, bodies: list[dict[str, Any]]) -> list[Any]:
    with ThreadPoolExecutor(len(bodies)) as threads:
        return list(threads.map(lambda body: said(service, path, body), bodies))


@pytest.fixture(scope="module")
def roomy(small_hf: Path) -> Iterator[Service]:
    with pool(small_hf, 1000) as service:
        yield service


@pytest.fixture(scope="module")
def stop(roomy: Service) -> str:
    """Three characters that stand in the answer that they are to end."""
    [[text, *_], _] = said(roomy, "/v1/completions", completions()[2])
    return str(text[20:23])


@pytest.fixture(scope="module")
def unpressed(roomy: Service, stop: str) -> list[Any]:
    found = at_once(roomy, "/v1/completions", completions(stop))
    assert Scrape.of(roomy.http)[WAITS] == 0
    assert [number for number, each in enumerate(found) if each[0][2] == "stop"] == [2]
    return found


@pytest.mark.parametrize("share", [2, 4, 8])
def test_the_same_answers_in_a_pool_that_holds_a_part(
    small_hf: Path, unpressed: list[Any], stop: str, share: int
) -> None:
    """D17: to the bit, since answers do not depend on their neighbours."""
    with pool(small_hf, NEED // share) as service:
        assert at_once(service, "/v1/completions", completions(stop)) == unpressed
        after = Scrape.of(service.http)
        assert after[WAITS] > 0
        assert after["ghostkv_live_blocks"] == 0


def test_the_same_long_answers_in_segments(small_hf: Path, roomy: Service) -> None:
    """D17 past the pool: 400 tokens each, over several boundaries, of which each may have to wait again."""
    bodies = [
        {
            "model": "small",
            "messages": [{"role": "user", "content": f"What did ship {number} of Lisbon carry?"}],
            "max_tokens": 400,
            "temperature": 0 if number % 2 else 1,
            "seed": number,
            "ignore_eos": True,
            "logprobs": True,
            "ghostkv": {"residency": "segment"},
        }
        for number in range(4)
    ]
    expected = at_once(roomy, "/v1/chat/completions", bodies)
    with pool(small_hf, 30, "segment") as service:
        assert at_once(service, "/v1/chat/completions", bodies) == expected
        after = Scrape.of(service.http)
        assert after[WAITS] > 0
        assert after.get("ghostkv_boundaries_total", decision="flush") >= 2 * 2 * len(bodies)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A context of 256 tokens."""
    return write_hf_checkpoint(tmp_path_factory.mktemp("narrow") / "small", context=256)


def test_what_can_never_fit_is_refused_and_harms_nobody(narrow: Path) -> None:
    """D16: a pool of 128 tokens. The last token of an answer needs no slot, so 129 are the most."""
    asked = [(125, 4), (126, 4), (127, 4), (128, 4), (129, 4), (200, 4), (100, 100), (29, 100), (30, 100), (128, 1)]
    with pool(narrow, 8) as tight, pool(narrow, 200) as wide:
        for prompt, most in asked:
            body = {
                "model": "small",
                "prompt": [5 + at % 200 for at in range(prompt)],
                "max_tokens": most,
                "temperature": 0,
                "ignore_eos": True,
                "logprobs": 0,
                "ghostkv": {"residency": "full"},
            }
            with ThreadPoolExecutor(2) as threads:
                large = threads.submit(httpx2.post, f"{tight.url}/v1/completions", json=body, timeout=30)
                short = threads.submit(said, tight, "/v1/completions", body | {"prompt": [9, 8, 7], "max_tokens": 4})
                assert short.result(30) == said(wide, "/v1/completions", body | {"prompt": [9, 8, 7], "max_tokens": 4})
                reply = large.result(30)
            if prompt + most <= 129:
                assert said(tight, "/v1/completions", body) == said(wide, "/v1/completions", body)
                assert reply.status_code == 200
            else:
                assert (reply.status_code, reply.json()["error"]["code"]) == (400, "context_length_exceeded")
                assert "129 tokens" in reply.json()["error"]["message"]
                assert str(prompt + most) in reply.json()["error"]["message"]
        after = Scrape.of(tight.http)
        assert after["vllm:num_requests_running"] == after["vllm:num_requests_waiting"] == 0


@pytest.mark.parametrize(("residency", "why"), [("segment", "pool holds 128"), ("sink_window", "pool has 8 blocks")])
def test_a_residency_whose_constants_do_not_fit_is_refused(narrow: Path, residency: str, why: str) -> None:
    """D16 for the others, in a server that was started for `full` alone."""
    with pool(narrow, 8) as service:
        body = {"model": "small", "prompt": [5] * 100, "max_tokens": 100, "ghostkv": {"residency": residency}}
        for stream in (False, True):
            reply = service.http.post("/v1/completions", json=body | {"stream": stream})
            assert reply.status_code == 400
            assert why in reply.json()["error"]["message"]
        short = body | {"prompt": [9, 8, 7], "max_tokens": 4, "ghostkv": {"residency": "full"}}
        assert service.http.post("/v1/completions", json=short).status_code == 200
