"""An answer does not depend on who is answered beside it, and is what transformers finds; over HTTP."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import torch
import transformers

from ghostkv.session.worker import Worker
from services import Service

TOKENS = 64
LENGTHS = np.linspace(3, 120, 16).astype(int).tolist()


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    generator = np.random.default_rng(13)
    return [generator.integers(3, 260, length).tolist() for length in LENGTHS]


def asked(prompt: list[int]) -> dict[str, Any]:
    return {
        "model": "small",
        "prompt": prompt,
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": 0,
        "ghostkv": {"residency": "full"},
    }


def ask(service: Service, prompt: list[int]) -> tuple[str, list[float], list[str]]:
    """(text, log-probabilities, tokens as they are shown, each in one way only)"""
    reply = httpx2.post(f"{service.url}/v1/completions", json=asked(prompt), timeout=60)
    assert reply.status_code == 200, reply.text
    choice = reply.json()["choices"][0]
    return choice["text"], choice["logprobs"]["token_logprobs"], choice["logprobs"]["tokens"]


def ids_of(worker: Worker, shown: list[str]) -> list[int]:
    known = {worker.tokenizer.token_bytes(i): i for i in range(worker.tokenizer.vocab_size)}
    known |= {text.encode(): i for text, i in worker.tokenizer.control.items()}
    raw = [
        bytes.fromhex(token.removeprefix("bytes:").replace("\\x", "")) if token.startswith("bytes:") else token.encode()
        for token in shown
    ]
    return [known[token] for token in raw]


def test_alone_at_once_in_reverse_and_among_others_that_come_and_go(
    small: Service, small_hf: Path, prompts: list[list[int]]
) -> None:
    """D13."""
    alone = [ask(small, prompt) for prompt in prompts]
    with ThreadPoolExecutor(32) as threads:
        assert list(threads.map(lambda prompt: ask(small, prompt), prompts)) == alone
        assert list(threads.map(lambda prompt: ask(small, prompt), reversed(prompts))) == alone[::-1]
        junk = [threads.submit(leave, small, number) for number in range(16)]
        assert list(threads.map(lambda prompt: ask(small, prompt), prompts)) == alone
        assert sum(each.result(60) for each in junk) > 16  # tokens that they were given
    model = transformers.AutoModelForCausalLM.from_pretrained(small_hf, dtype=torch.float32)
    for prompt, (_, logprobs, shown) in zip(prompts, alone, strict=True):
        ids = ids_of(small.worker, shown)
        with torch.inference_mode():
            rows = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        assert ids == rows.argmax(-1).tolist()
        assert logprobs == pytest.approx(rows.max(-1).values.tolist(), abs=1e-3)


def leave(service: Service, number: int) -> int:
    """Join a little later than the one before, stay for some tokens of a hot stream, and close. How many came."""

    async def stay() -> int:
        body = asked([7 + number] * (5 + 9 * number)) | {"temperature": 1.8, "stream": True, "max_tokens": 200}
        await asyncio.sleep(0.02 * number)
        seen = 0
        async with (
            httpx2.AsyncClient(base_url=service.url, timeout=60) as client,
            client.stream("POST", "/v1/completions", json=body) as reply,
        ):
            async for line in reply.aiter_lines():
                seen += line.startswith("data: {")
                if seen > 3 * number:
                    break
        return seen

    return asyncio.run(stay())
