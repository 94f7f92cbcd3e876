"""Idempotency keys: one computation for one key, whoever asks again, and however the first one left."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from ghostkv.config import ServerConfig, SessionLimits
from ghostkv.errors import Draining
from keys import access, bearer
from server.test_stored_sessions import LONG, Opening, body, error_of, plain, shown
from services import Scripted, ScriptedBackend, Service, saying, scripted_worker, serving, until

TALK = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 200, "temperature": 1.0}


def post(service: Service, key: str, **fields: Any) -> Any:
    return service.http.post("/v1/chat/completions", json=TALK | fields, headers={"idempotency-key": key})


def answers(service: Service) -> int:
    """Engine requests so far."""
    return service.worker.backend.engine.stats.added  # type: ignore[attr-defined,no-any-return]


def test_the_same_request_gets_the_recorded_reply(scripted: Scripted) -> None:
    service = scripted(saying(LONG))
    first, again = post(service, "k"), post(service, "k")
    assert first.status_code == 200 and again.json() == first.json()
    assert "idempotent-replayed" not in first.headers and again.headers["idempotent-replayed"] == "true"
    assert answers(service) == 1
    streams = [post(service, "s", stream=True).text for _ in range(2)]
    assert streams[0] == streams[1] and streams[0].endswith("data: [DONE]\n\n") and answers(service) == 2
    assert post(service, "other").json()["id"] != first.json()["id"]


def test_another_body_is_refused_by_name(scripted: Scripted) -> None:
    service = scripted(saying(LONG))
    post(service, "k")
    reused = post(service, "k", max_tokens=9)
    assert error_of(reused) == (422, "idempotency_key_reused") and reused.json()["error"]["param"] == "idempotency-key"
    for wrong in ("", "x" * 256):
        assert error_of(post(service, wrong)) == (400, "invalid_request")


def test_a_client_that_left_joins_what_is_under_way(scripted: Scripted) -> None:
    service = scripted(saying(LONG), seconds=0.005)
    headers = {"idempotency-key": "k"}
    with service.http.stream("POST", "/v1/chat/completions", json=TALK | {"stream": True}, headers=headers) as reply:
        lines = reply.iter_lines()
        first = [next(lines) for _ in range(8)]
    said: list[str] = []
    threads = [threading.Thread(target=lambda: said.append(post(service, "k", stream=True).text)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(said) == 3 and len(set(said)) == 1 and said[0].startswith("\n".join(first))
    assert said[0].endswith("data: [DONE]\n\n") and answers(service) == 1


def test_what_nobody_comes_back_to_is_ended() -> None:
    worker = scripted_worker(ScriptedBackend(saying(LONG), seconds=0.01))
    with serving(worker, limits=ServerConfig(sessions=SessionLimits(grace_s=0.05))) as service:
        headers = {"idempotency-key": "k"}
        with service.http.stream(
            "POST", "/v1/chat/completions", json=TALK | {"stream": True}, headers=headers
        ) as reply:
            next(reply.iter_lines())
        assert until(lambda: service.server.serving.gate.inside == 0)
        fresh = post(service, "k", stream=True)
        assert "idempotent-replayed" not in fresh.headers and fresh.text.endswith("data: [DONE]\n\n")


def test_a_refusal_is_recorded(scripted: Scripted) -> None:
    service = scripted(saying(LONG))
    wrong = [post(service, "bad", temperature=-1) for _ in range(2)]
    assert [reply.status_code for reply in wrong] == [400, 400] and wrong[1].headers["idempotent-replayed"] == "true"


def test_what_may_pass_is_tried_again(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    service = scripted(saying(LONG))

    def shut() -> None:
        raise Draining("not now")

    with monkeypatch.context() as patch:
        patch.setattr(service.server.serving.gate, "check_open", shut)
        assert post(service, "late").status_code == 503
    assert post(service, "late").status_code == 200


def test_keys_are_each_tenants_own() -> None:
    worker = scripted_worker(ScriptedBackend(saying(LONG)))
    with serving(worker, access=access("a", "b")) as service:
        replies = [
            service.http.post("/v1/chat/completions", json=TALK, headers={"idempotency-key": "k", **bearer(tenant)})
            for tenant in ("a", "b", "a")
        ]
        ids = [json.loads(reply.text)["id"] for reply in replies]
    assert ids[0] == ids[2] != ids[1]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/responses"])
def test_on_every_endpoint_that_answers(scripted: Scripted, path: str) -> None:
    service = scripted(saying(LONG))
    body = {"model": "scripted", "prompt": "assistant\n", "max_tokens": 9}
    body = body if "completions" in path else {"model": "scripted", "input": "hi", "max_output_tokens": 9}
    one, two = (service.http.post(path, json=body, headers={"idempotency-key": "k"}) for _ in range(2))
    assert one.status_code == 200 and one.text == two.text and answers(service) == 1


def test_in_a_session_the_key_outlives_the_process(tmp_path: Path) -> None:
    """The client of an answer that broke off sends it again: it goes on instead of beginning anew."""
    opening, headers = Opening(tmp_path / "store.db"), {"idempotency-key": "k"}
    sent = body(stream=True)
    with opening(seconds=0.003) as service:
        expected = plain(service)
        service.http.post("/v1/sessions", json={"id": "s"})
        with service.http.stream("POST", "/v1/completions", json=sent, headers=headers) as reply:
            assert any("id: 180" in line for line in reply.iter_lines())
    with opening() as service:
        reply = service.http.post("/v1/completions", json=sent, headers=headers)
        frames = [json.loads(line[6:]) for line in reply.text.split("\n") if line.startswith("data: {")]
        assert "".join(choice["text"] for frame in frames for choice in frame["choices"]) == expected
        assert len(shown(service)["turns"]) == 1
        assert service.http.post("/v1/completions", json=sent, headers=headers).text == reply.text
        other = service.http.post("/v1/completions", json=sent | {"max_tokens": 5}, headers=headers)
        assert error_of(other) == (422, "idempotency_key_reused")
    with opening() as service:
        other = service.http.post("/v1/completions", json=sent | {"max_tokens": 5}, headers=headers)
        assert error_of(other) == (422, "idempotency_key_reused")
        again = service.http.post("/v1/completions", json={**sent, "stream": True}, headers=headers)
        assert again.status_code == 200 and len(shown(service)["turns"]) == 1
