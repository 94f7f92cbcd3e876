"""Servers that real clients talk to: one that answers by rule, one that refuses for three reasons, one over SmolLM2."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from ghostkv.launch import engine_config, open_worker
from ghostkv.server.access import Access, Key, Tenant
from ghostkv.server.rates import Meter, Rates
from keys import access, bearer, key_of
from services import ScriptedBackend, Service, answering, scripted_worker, serving

OSLO = '{"city": "Oslo"}'


def _said(prompt: str) -> str:
    """A call if there are tools and no result yet; else what shows how much of the conversation has arrived."""
    if "-4 C" in prompt:
        return "It is -4 C in Oslo."
    if "<tools>" in prompt:
        return f'<tool_call>\n{{"name": "weather", "arguments": {OSLO}}}\n</tool_call>'
    return f"I have read {prompt.count('user' + chr(10))} of your messages."


@pytest.fixture(scope="session")
def runner() -> Iterator[asyncio.Runner]:
    """One event loop for all: some clients keep their connections, which are bound to one."""
    with asyncio.Runner() as made:
        yield made
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):  # as in `collected`
        gc.collect()


@pytest.fixture(scope="module", autouse=True)
def collected() -> Iterator[None]:
    """Some clients leave sockets open; those are found here, where warnings of that are ignored, and not later."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
def desk() -> Iterator[Service]:
    """An open server; its model's name is `scripted`."""
    backend = ScriptedBackend(answering(_said), blocks=1024, context=4096)
    with serving(scripted_worker(backend)) as service:
        yield service


@pytest.fixture(scope="session")
def real(smollm2_path: Path) -> Iterator[Service]:
    """A server over SmolLM2-135M; its model's name is `smollm2`."""
    worker = open_worker("smollm2", engine_config(kv_budget="96MiB"))
    with serving(worker) as service:
        yield service


@dataclass(frozen=True, slots=True)
class Refusing:
    """Where, and which key is refused for what. No answer is ever given there."""

    url: str  # with /v1
    known: str  # a key without limits; what is too long is refused for that
    busy: str  # a key that has as many requests running as it may have
    unknown: str = "sk-not-a-key"
    too_long: str = "word " * 500  # five tokens each, of 1,024


@contextmanager
def _held(service: Service, tenant: str, reached: threading.Event) -> Iterator[None]:
    """A stream of this tenant is open, and its first token is on the way."""
    body = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    url = f"{service.url}/v1/chat/completions"
    with httpx2.Client(timeout=60) as http, http.stream("POST", url, json=body, headers=bearer(tenant)) as reply:
        assert reply.status_code == 200
        assert reached.wait(20)
        yield


@pytest.fixture(scope="session")
def refusing() -> Iterator[Refusing]:
    """Its engine stands still in a step until the tests are over: a refusal needs none."""
    reached, over = threading.Event(), threading.Event()

    def script(history: tuple[int, ...], draw: Any) -> int:
        reached.set()
        over.wait(600)
        return ord("x")

    limited = Key(access("busy").keys[0].digest, Tenant("busy"), Meter(Rates(concurrent=1)))
    allowed = Access((*access("known").keys, limited))
    with serving(scripted_worker(ScriptedBackend(script)), access=allowed) as service:
        try:
            with _held(service, "busy", reached):
                yield Refusing(f"{service.url}/v1", key_of("known"), key_of("busy"))
        finally:
            over.set()
