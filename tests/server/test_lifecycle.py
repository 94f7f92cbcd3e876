"""Clients that leave, lines that are full, engines that die, servers that stop."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from ghostkv.config import EngineConfig
from services import Scripted, ScriptedBackend, Service, saying

HI: list[Any] = [{"role": "user", "content": "hi"}]
LONG: dict[str, Any] = {"model": "scripted", "messages": HI, "max_tokens": 5000}
SHORT: dict[str, Any] = {"model": "scripted", "messages": HI, "max_tokens": 2}
KEPT: dict[str, Any] = LONG | {
    "max_tokens": 300,
    "ghostkv": {"residency": "full"},
}  # 20 of 30 blocks for its whole life
WITHOUT_END = saying("word " * 2000)


def until(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.perf_counter() + seconds
    while not condition() and time.perf_counter() < end:
        time.sleep(0.01)
    return condition()


def backend_of(service: Service) -> ScriptedBackend:
    assert isinstance(service.worker.backend, ScriptedBackend)
    return service.worker.backend


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("more", [{}, {"n": 3}])
def test_a_client_that_leaves_frees_everything(scripted: Scripted, stream: bool, more: dict[str, Any]) -> None:
    service = scripted(WITHOUT_END, seconds=0.005)
    backend = backend_of(service)
    for _ in range(3):
        with httpx2.Client(base_url=service.url, timeout=0.3) as leaving:
            if stream:
                with leaving.stream("POST", "/v1/chat/completions", json=LONG | more | {"stream": True}) as reply:
                    lines = reply.iter_lines()
                    for _ in range(6):
                        next(lines)
                    assert backend.pool.referenced > 0
            else:
                with pytest.raises(httpx2.ReadTimeout):
                    leaving.post("/v1/chat/completions", json=LONG | more)
        assert until(lambda: backend.pool.referenced == 0, 1.0)
    generated = backend.engine.stats.generated_tokens
    time.sleep(0.05)
    assert backend.engine.stats.generated_tokens == generated
    assert service.http.post("/v1/chat/completions", json=SHORT).status_code == 200


def test_a_client_that_leaves_while_waiting_in_line(scripted: Scripted) -> None:
    """The pool holds one of these at a time, so the second waits; it leaves before it ever runs."""
    service = scripted(WITHOUT_END, seconds=0.005, blocks=30)
    backend = backend_of(service)
    with service.http.stream("POST", "/v1/chat/completions", json=KEPT | {"stream": True}) as first:
        lines = first.iter_lines()  # as long as it lives, so does the connection
        next(lines)
        with (
            httpx2.Client(base_url=service.url, timeout=0.3) as leaving,
            pytest.raises(httpx2.ReadTimeout),
        ):
            leaving.post("/v1/chat/completions", json=KEPT | {"stream": True})
        assert until(lambda: backend.engine.stats.finished["cancelled"] == 1, 1.0)
    assert until(lambda: backend.pool.referenced == 0, 1.0)


@pytest.mark.parametrize("stream", [True, False])
def test_a_full_line_is_refused_before_any_stream(scripted: Scripted, stream: bool) -> None:
    service = scripted(WITHOUT_END, seconds=0.005, blocks=30, max_waiting=1)
    backend = backend_of(service)
    held = [threading.Thread(target=_read_some, args=(service, 0.8), daemon=True) for _ in range(2)]
    for thread in held:
        thread.start()
        time.sleep(0.1)
    started = time.perf_counter()
    reply = service.http.post("/v1/chat/completions", json=KEPT | {"stream": stream})
    assert time.perf_counter() - started < 0.5
    assert (reply.status_code, reply.json()["error"]["code"]) == (429, "overloaded")
    assert int(reply.headers["retry-after"]) >= 1
    assert service.http.get("/health").status_code == 200
    for thread in held:
        thread.join()
    assert until(lambda: backend.pool.referenced == 0, 2.0)
    assert service.http.post("/v1/chat/completions", json=SHORT).status_code == 200


def _read_some(service: Service, seconds: float) -> None:
    end = time.perf_counter() + seconds
    with (
        httpx2.Client(base_url=service.url, timeout=20) as client,
        client.stream("POST", "/v1/chat/completions", json=KEPT | {"stream": True}) as reply,
    ):
        for _ in reply.iter_lines():
            if time.perf_counter() > end:
                return


def test_a_dead_engine_answers_everybody_and_turns_health_red(scripted: Scripted) -> None:
    def breaks(history: tuple[int, ...], draw: object) -> int:
        if len(history) > 30:
            raise RuntimeError("the model broke")
        return ord("x")

    service = scripted(breaks)
    assert service.http.get("/health").status_code == 200
    with service.http.stream("POST", "/v1/chat/completions", json=LONG | {"stream": True}) as reply:
        lines = [line for line in reply.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert json.loads(lines[-2].removeprefix("data: "))["error"]["code"] == "engine_fault"
    for _ in range(2):
        after = service.http.post("/v1/chat/completions", json=SHORT)
        assert (after.status_code, after.json()["error"]["code"]) == (503, "engine_fault")
    health = service.http.get("/health")
    assert (health.status_code, health.json()["error"]["type"]) == (503, "server_error")


@pytest.mark.parametrize("stream", [True, False])
def test_a_bug_is_a_plain_500(scripted: Scripted, monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    service = scripted(WITHOUT_END)

    def breaks(request: object) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr(backend_of(service), "generate", breaks)
    reply = service.http.post("/v1/chat/completions", json=SHORT | {"stream": stream}, headers={"x-request-id": "me"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "internal_error")
    assert reply.headers["x-request-id"] == "me"
    assert "secret" not in reply.text
    assert service.http.get("/health").status_code == 200


def test_stopping_lets_short_answers_end(scripted: Scripted) -> None:
    service = scripted(saying("A short answer."), seconds=0.02, drain_s=5.0)
    with service.http.stream("POST", "/v1/chat/completions", json=SHORT | {"max_tokens": 50, "stream": True}) as reply:
        lines = reply.iter_lines()
        next(lines)
        service.server.should_exit = True
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "stop"
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"{service.url}/health")


@pytest.mark.parametrize("stream", [True, False])
def test_stopping_ends_long_answers_with_an_error(scripted: Scripted, stream: bool) -> None:
    service = scripted(WITHOUT_END, seconds=0.01, drain_s=0.3)
    threading.Timer(0.2, lambda: setattr(service.server, "should_exit", True)).start()
    with service.http.stream("POST", "/v1/chat/completions", json=LONG | {"stream": stream}) as reply:
        lines = [line for line in reply.iter_lines() if line]
    error = json.loads(lines[-2].removeprefix("data: ") if stream else lines[-1])["error"]
    assert (reply.status_code, error["code"]) == (200 if stream else 503, "engine_fault")
    assert "shutting down" in error["message"]
    assert not stream or lines[-1] == "data: [DONE]"


def test_an_absent_max_tokens_is_what_the_context_leaves(scripted: Scripted) -> None:
    service = scripted(WITHOUT_END, config=EngineConfig(default_max_tokens=4096))
    for residency in ("full", "segment"):
        body = {"model": "scripted", "messages": HI, "ghostkv": {"residency": residency}}
        reply = service.http.post("/v1/chat/completions", json=body).json()
        assert reply["usage"]["total_tokens"] == 1024
        assert reply["choices"][0]["finish_reason"] == "length"


def test_configured_lengths(scripted: Scripted) -> None:
    service = scripted(WITHOUT_END, config=EngineConfig(default_max_tokens=7, max_session_tokens=9))
    body = {"model": "scripted", "messages": HI}
    assert service.http.post("/v1/chat/completions", json=body).json()["usage"]["completion_tokens"] == 7
    assert service.http.post("/v1/chat/completions", json=body | {"max_tokens": 9}).status_code == 200
    refused = service.http.post("/v1/chat/completions", json=body | {"max_tokens": 10})
    assert refused.status_code == 400
    assert "at most 9 tokens" in refused.json()["error"]["message"]


@pytest.mark.parametrize("residency", ["full", "segment"])
@pytest.mark.parametrize("as_ids", [False, True])
def test_prompts_at_the_limit_and_one_over(scripted: Scripted, residency: str, as_ids: bool) -> None:
    """prompt + max_tokens <= context is served, the prompt counted exactly; one more is refused with both numbers."""
    service = scripted(lambda history, draw: ord("x"))
    for prompt, most, status in ((1023, 1, 200), (1024, 1, 400), (1014, 10, 200), (1014, 11, 400), (1100, 1, 400)):
        sent: Any = [ord("y")] * prompt if as_ids else "y" * prompt
        body = {"model": "scripted", "prompt": sent, "max_tokens": most, "ghostkv": {"residency": residency}}
        for stream in (False, True):
            reply = service.http.post("/v1/completions", json=body | {"stream": stream})
            assert reply.status_code == status, reply.text
            if status == 400:
                error = reply.json()["error"]
                assert error["code"] == "context_length_exceeded"
                for needed in ("context_length_exceeded", "maximum context length is", "1024"):
                    assert needed in error["message"]
            elif not stream:
                assert reply.json()["usage"]["prompt_tokens"] == prompt
                assert reply.json()["usage"]["completion_tokens"] == most
    open_end = service.http.post("/v1/completions", json={"model": "scripted", "prompt": "y" * 1014}).json()
    assert open_end["usage"]["total_tokens"] == 1024
