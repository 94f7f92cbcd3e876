"""Several servers over one PostgreSQL store: any of them goes on with any session, never two with one."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest

from databases import Cluster
from ghostkv.config import ServerConfig
from ghostkv.session.stores import open_store
from server.test_process import Running, Start, start
from server.test_stored_sessions import LONG, begun, body, error_of, plain, rest, shown
from services import ScriptedBackend, Service, saying, scripted_worker, serving, until

__all__ = ["start"]  # a fixture

pytestmark = pytest.mark.postgres


@contextmanager
def opened(url: str, text: str = LONG, *, seconds: float = 0.0, lease_s: float = 30.0) -> Iterator[Service]:
    store = open_store(url, lease_s=lease_s)
    worker = scripted_worker(ScriptedBackend(saying(text), seconds=seconds))
    try:
        with serving(worker, limits=ServerConfig(), store=store) as service:
            yield service
    finally:
        store.close()


def chat(service: Service, messages: list[Any]) -> Any:
    asked = {"model": "scripted", "messages": messages, "ghostkv": {"session": "s", "residency": "full"}}
    return service.http.post("/v1/chat/completions", json=asked)


def test_a_conversation_goes_from_server_to_server(postgres: Cluster) -> None:
    """Each finds what the other left, its own older copy notwithstanding; generated ids are used again."""
    url = postgres.database()
    with opened(url, "One answer.") as one, opened(url, "One answer.") as other:
        assert one.http.post("/v1/sessions", json={"id": "s", "metadata": {"a": "b"}}).status_code == 201
        assert error_of(other.http.post("/v1/sessions", json={"id": "s"})) == (409, "session_exists")
        messages: list[Any] = []
        for turn, service in enumerate((one, other, one, other)):
            messages.append({"role": "user", "content": f"question {turn}"})
            reply = chat(service, messages)
            assert reply.status_code == 200, reply.text
            messages.append(reply.json()["choices"][0]["message"] | {"refusal": None})
            assert len(shown(service)["turns"]) == turn + 1 and shown(service)["metadata"] == {"a": "b"}
            assert all(each["forked_at"] is None for each in shown(service)["turns"])
        record = other.server.serving.desk.table.get(("", "s"))
        assert [turn.ids for turn in record.turns] == [tuple(b"One answer.")] * 4
        assert one.http.delete("/v1/sessions/s").status_code == 200
        assert error_of(other.http.get("/v1/sessions/s")) == (404, "session_not_found")
        assert other.http.post("/v1/sessions", json={"id": "s"}).status_code == 201


def test_while_one_answers_no_other_touches_the_session(postgres: Cluster) -> None:
    url = postgres.database()
    with opened(url, seconds=0.004) as one, opened(url) as other:
        text, last = begun(one, body(), 30)
        for reply in (
            other.http.post("/v1/completions", json=body()),
            other.http.get("/v1/sessions/s"),
            other.http.get("/v1/sessions/s/stream"),
            other.http.post("/v1/sessions/s/fork"),
            other.http.delete("/v1/sessions/s"),
        ):
            assert error_of(reply) == (409, "session_elsewhere"), reply.text
        assert text + rest(one, last + 1) == plain(other)
        assert until(lambda: other.http.get("/v1/sessions/s").status_code == 200)
        assert rest(other, 0) == plain(other)


def test_the_list_has_what_other_servers_have(postgres: Cluster) -> None:
    """Of two that have used a session, what the last one left counts."""

    def listed(service: Service) -> list[tuple[str, int]]:
        data = service.http.get("/v1/sessions").json()["data"]
        return [(each["id"], each["output_tokens"]) for each in data]

    url = postgres.database()
    with opened(url, "One answer.") as one, opened(url, "One answer.") as other:
        for service, name in ((one, "s"), (other, "of-the-other")):
            assert service.http.post("/v1/sessions", json={"id": name}).status_code == 201
        assert chat(one, [{"role": "user", "content": "first"}]).status_code == 200
        assert listed(one) == [("s", 12), ("of-the-other", 0)] and listed(other) == listed(one)[::-1]
        assert chat(other, [{"role": "user", "content": "second"}]).status_code == 200
        assert listed(one) == listed(other) == [("s", 24), ("of-the-other", 0)]
        assert one.http.delete("/v1/sessions/of-the-other").status_code == 200
        assert listed(one) == [("s", 24)]


def test_a_server_that_ends_lets_others_go_on(postgres: Cluster) -> None:
    url = postgres.database()
    with opened(url) as other:
        with opened(url, seconds=0.004) as one:
            text, last = begun(one, body(), 200)
        assert text + rest(other, last + 1) == plain(other)


# --- processes ---


@pytest.fixture
def two(start: Start, postgres: Cluster) -> tuple[Running, Running]:
    """Two servers with short leases; the first is slow."""
    options = {"store": postgres.database(), "says": LONG, "lease_s": 1.0}
    return start(seconds=0.01, **options), start(**options)


def half(server: Running) -> tuple[str, int]:
    """The beginning of an answer in a new session, and the index of its last token."""
    text, last = "", -1
    with httpx2.Client(base_url=server.url, timeout=120) as client:
        assert client.post("/v1/sessions", json={"id": "s"}).status_code == 201
        with client.stream("POST", "/v1/completions", json=body() | {"stream": True}) as reply:
            assert reply.status_code == 200, reply.read()
            for line in reply.iter_lines():
                if line.startswith("id: "):
                    last = int(line[4:])
                elif line.startswith("data: {"):
                    text += json.loads(line[6:])["choices"][0]["text"]
                    if last >= 200:
                        break
    return text, last


def whole(client: httpx2.Client) -> str:
    asked = body() | {"ghostkv": {"residency": "segment"}}
    return str(client.post("/v1/completions", json=asked).json()["choices"][0]["text"])


def read(client: httpx2.Client, start: int) -> str:
    reply = client.get("/v1/sessions/s/stream", params={"from": start})
    assert reply.status_code == 200, reply.text
    frames = [json.loads(line[6:]) for line in reply.text.split("\n") if line.startswith("data: {")]
    assert not any("error" in frame for frame in frames), frames[-1]
    return "".join(choice["text"] for frame in frames for choice in frame["choices"])


def test_another_server_goes_on_after_a_kill(two: tuple[Running, Running]) -> None:
    """Not before the lease of the one that was killed has run out; then bit for bit, also with nobody there to ask."""
    one, other = two
    text, last = half(one)
    with httpx2.Client(base_url=other.url, timeout=120) as client:
        early = client.get("/v1/sessions/s")
        assert error_of(early) == (409, "session_elsewhere")
        one.signal(signal.SIGKILL)
        [listed] = client.get("/v1/sessions").json()["data"]
        assert (listed["id"], listed["status"]) == ("s", "running")
        assert until(lambda: client.get("/v1/sessions").json()["data"][0]["status"] == "idle")  # it looks by itself
        assert text + read(client, last + 1) == read(client, 0) == whole(client)
        assert len(client.get("/v1/sessions/s").json()["turns"]) == 1


def test_a_server_that_was_stopped_for_longer_than_its_lease_is_fenced_off(two: tuple[Running, Running]) -> None:
    """It wakes up in the midst of an answer that another has by then: what it says ends at its next boundary at last,
    and what it writes is refused."""
    one, other = two
    text, last = half(one)
    with httpx2.Client(base_url=other.url, timeout=120) as client, httpx2.Client(base_url=one.url, timeout=30) as old:
        one.signal(signal.SIGSTOP)
        assert until(lambda: client.get("/v1/sessions/s").status_code == 200)
        assert until(lambda: client.get("/v1/sessions/s").json()["status"] == "idle")
        expected = read(client, 0)
        assert expected.startswith(text) and expected == whole(client)
        one.signal(signal.SIGCONT)
        assert until(lambda: old.get("/v1/sessions/s").json().get("status") == "idle")
        assert read(old, last + 1) == expected[len(text) :]
        turns = old.get("/v1/sessions/s").json()["turns"]
        assert [(turn["status"], turn["completion_tokens"]) for turn in turns] == [("finished", 600)]
