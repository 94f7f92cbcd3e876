"""Clients that leave, lines that are full, engines that die, servers that stop."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

import httpx2
import pytest

from ghostkv.config import EngineConfig
from ghostkv.request import Message
from services import Scripted, ScriptedBackend, Service, saying, until

HI: list[Any] = [{"role": "user", "content": "hi"}]
LONG: dict[str, Any] = {"model": "scripted", "messages": HI, "max_tokens": 5000}
SHORT: dict[str, Any] = {"model": "scripted", "messages": HI, "max_tokens": 2}
KEPT: dict[str, Any] = LONG | {
    "max_tokens": 300,
    "ghostkv": {"residency": "full"},
}  # 20 of 30 blocks for its whole life
WITHOUT_END = saying("word " * 2000)


def backend_of(service: Service) -> ScriptedBackend:
    assert isinstance(service.worker.backend, ScriptedBackend)
    return service.worker.backend


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("more", [{}, {"n": 3}])
def test_a_client_that_leaves_frees_everything(scripted: Scripted, stream: bool, more: dict[str, Any]) -> None:
    """D12, ten rounds of each kind: gauges go back, the counter stops, and the next request is served at once."""
    service = scripted(WITHOUT_END, seconds=0.005)
    backend, gate, count = backend_of(service), service.server.serving.gate, more.get("n", 1)
    stats, pool = backend.engine.stats, backend.pool
    data = json.dumps(LONG | more | {"stream": stream}).encode()
    for _ in range(5):
        before = stats.added
        with socket.create_connection(service.bound.getsockname(), timeout=20) as leaving:
            leaving.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(data))
            leaving.sendall(data)
            assert not stream or leaving.recv(100).startswith(b"HTTP/1.1 200")
            assert until(lambda: stats.added == before + count and pool.referenced > 0 and not gate.waiting, 20.0)  # noqa: B023
        assert until(lambda: pool.referenced == 0 and gate.inside == 0, 10.0)
        steps, generated = stats.steps, stats.generated_tokens
        assert service.http.post("/v1/chat/completions", json=SHORT).status_code == 200
        assert stats.generated_tokens == generated + 2  # its own two and not one more
        assert stats.steps <= steps + 3  # nor did a step run for nobody
    assert until(lambda: gate.inside == 0, 10.0)


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
        assert until(lambda: backend.engine.stats.finished["cancelled"] == 1, 10.0)
    assert until(lambda: backend.pool.referenced == 0, 10.0)


@pytest.mark.parametrize("stream", [True, False])
def test_the_engines_own_line_is_refused_before_any_stream(scripted: Scripted, stream: bool) -> None:
    """Behind a gate that is wider than it; its refusal comes an engine step later."""
    service = scripted(WITHOUT_END, seconds=0.02, blocks=30, max_waiting=1)
    backend, over = backend_of(service), threading.Event()
    held = [threading.Thread(target=_hold, args=(service, over), daemon=True) for _ in range(2)]
    for number, thread in enumerate(held, 1):
        thread.start()
        assert until(lambda: backend.engine.stats.added == number and backend.engine.stats.steps > 0, 10.0)  # noqa: B023
    reply = service.http.post("/v1/chat/completions", json=KEPT | {"stream": stream})
    assert (reply.status_code, reply.json()["error"]["code"]) == (429, "overloaded")
    assert int(reply.headers["retry-after"]) >= 1
    assert service.http.get("/health").status_code == 200
    over.set()
    for thread in held:
        thread.join()
    assert until(lambda: backend.pool.referenced == 0, 10.0)
    assert service.http.post("/v1/chat/completions", json=SHORT).status_code == 200


def _hold(service: Service, over: threading.Event) -> None:
    with (
        httpx2.Client(base_url=service.url, timeout=20) as client,
        client.stream("POST", "/v1/chat/completions", json=KEPT | {"max_tokens": 320, "stream": True}) as reply,
    ):
        for _ in reply.iter_lines():
            if over.is_set():
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
    for path in ("/health", "/ready"):
        health = service.http.get(path)
        assert (health.status_code, health.json()["error"]["code"]) == (503, "engine_fault")
    assert service.http.get("/live").status_code == 200
    assert until(lambda: service.server.faulted, 10.0)
    assert until(lambda: not _answers(service), 20.0)  # the process has nothing left to do


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
    """Meanwhile the port answers: that nothing new is taken, and why; it closes when they have ended."""
    service = scripted(saying("A short answer."), seconds=0.1, drain_s=60.0)
    with service.http.stream("POST", "/v1/chat/completions", json=SHORT | {"max_tokens": 50, "stream": True}) as reply:
        lines = reply.iter_lines()
        next(lines)
        service.server.should_exit = True
        assert until(lambda: service.server.serving.gate.shut, 10.0)
        with httpx2.Client(base_url=service.url, timeout=20) as other:
            asked = [other.post("/v1/chat/completions", json=SHORT | {"stream": stream}) for stream in (True, False)]
            for refused in [*asked, other.get("/health"), other.get("/ready")]:
                assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
                assert 1 <= int(refused.headers["retry-after"]) <= 60
            assert other.get("/live").status_code == 200
            assert other.get("/v1/models").status_code == 200
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "stop"
    assert until(lambda: not _answers(service), 10.0)


def _answers(service: Service) -> bool:
    try:
        httpx2.get(f"{service.url}/live")
    except httpx2.TransportError:
        return False
    return True


@pytest.mark.parametrize("stream", [True, False])
def test_stopping_ends_long_answers_with_an_error(scripted: Scripted, stream: bool) -> None:
    service = scripted(WITHOUT_END, seconds=0.01, drain_s=0.3)
    threading.Timer(0.2, lambda: setattr(service.server, "should_exit", True)).start()
    with service.http.stream("POST", "/v1/chat/completions", json=LONG | {"stream": stream}) as reply:
        lines = [line for line in reply.iter_lines() if line]
    error = json.loads(lines[-2].removeprefix("data: ") if stream else lines[-1])["error"]
    assert (reply.status_code, error["code"]) == (200 if stream else 503, "draining")
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
    """D15: prompt + max_tokens <= context is served, the prompt counted exactly; one more is refused by numbers."""
    service = scripted(lambda history, draw: ord("x"))
    cases = ((1023, 1, 200), (1024, 1, 400), (1025, 1, 400), (1014, 10, 200), (1014, 11, 400), (1100, 1, 400))
    for prompt, most, status in cases:
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
                if residency == "full":
                    assert f"needs {prompt + most}" in error["message"]
            elif not stream:
                assert reply.json()["usage"]["prompt_tokens"] == prompt
                assert reply.json()["usage"]["completion_tokens"] == most
    sent = [ord("y")] * 1014 if as_ids else "y" * 1014
    body = {"model": "scripted", "prompt": sent, "ghostkv": {"residency": residency}}
    for more in ({}, {"max_tokens": None}, {"ghostkv": {"residency": residency, "strict": True}}):
        open_end = service.http.post("/v1/completions", json=body | more).json()
        assert open_end["usage"]["total_tokens"] == 1024
        assert open_end["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_at_the_limit_and_one_over(scripted: Scripted, stream: bool) -> None:
    """D15 for messages: `full`, and `strict` of any kind, by the same rule; `segment` leaves out and counts it all."""
    service = scripted(lambda history, draw: ord("x"))
    spare = 1024 - len(service.worker.context.template((Message("user", "y"), Message("user", "z"))))
    earlier = {"role": "user", "content": "y" * (1 + spare - 10)}
    body = {"model": "scripted", "messages": [earlier, {"role": "user", "content": "z"}], "stream": stream}
    body |= {"stream_options": {"include_usage": True}} if stream else {}

    def ask(most: int, **extension: Any) -> httpx2.Response:
        return service.http.post("/v1/chat/completions", json=body | {"max_tokens": most, "ghostkv": extension})

    for extension in ({"residency": "full"}, {"residency": "full", "strict": True}):
        assert ask(10, **extension).status_code == 200
        refused = ask(11, **extension)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert "1025" in refused.json()["error"]["message"] and "1024" in refused.json()["error"]["message"]
    beyond = ask(11, residency="segment")
    assert beyond.status_code == 200
    assert '"prompt_tokens":1014' in beyond.text and '"completion_tokens":11' in beyond.text
    assert '"exact":false' in beyond.text
    assert ask(11, residency="segment", strict=True).status_code == 400


@pytest.mark.parametrize("path", ["/health", "/ready", "/live", "/v1/models", "/v1/models/scripted", "/metrics"])
def test_head_is_get_without_a_body(scripted: Scripted, path: str) -> None:
    service = scripted(WITHOUT_END)
    for _ in range(2):  # on one connection: nothing of a body is left on it
        head, get = service.http.head(path), service.http.get(path)
        assert (head.status_code, head.content) == (get.status_code, b"") == (200, b"")
        assert head.headers["content-type"] == get.headers["content-type"]
        assert head.headers["x-request-id"]


def test_head_of_what_is_only_posted(scripted: Scripted) -> None:
    service = scripted(WITHOUT_END)
    assert service.http.head("/v1/chat/completions").status_code == 405
    assert service.http.head("/nope").status_code == 404


def test_an_answer_that_was_ended_in_its_first_moment_leaves_no_trace(scripted: Scripted) -> None:
    """Cancelled before its task ever ran: what it had taken is given back all the same."""
    import asyncio

    from ghostkv.request import Message, Sampling
    from ghostkv.server.answers import Answers
    from ghostkv.session.turn import Turn

    service = scripted(WITHOUT_END)
    serving = service.server.serving
    turn = Turn("one", Sampling(), 5, messages=(Message("user", "hi"),))

    async def run() -> None:
        answers = Answers(serving, [turn])
        assert serving.gate.waiting == 1
        answers.close()
        await asyncio.sleep(0.01)

    asyncio.run(run())
    assert serving.gate.inside == 0
