"""Tool calls and side effects: each call is committed before its client has it, and a crash repeats none."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from ghostkv.errors import RecordRefused
from ghostkv.request import Message
from ghostkv.server.extension import ReplyExtension
from ghostkv.session.calls import CallRecord, digest, intended, settled
from server.test_process import Running, Start, start
from server.test_stored_sessions import Opening, held_writes, opening
from server.test_tools import OSLO, ROME, TOOLS, written
from services import Service, until

__all__ = ["opening", "start"]  # fixtures

CHAT = "/v1/chat/completions"
CALLS = f"{written('weather', OSLO)}\n{written('weather', ROME)}"
THEN = "It is cold in Oslo and warm in Rome. " * 4
HI: list[Any] = [{"role": "user", "content": "How is it in Oslo?"}]


def asked(messages: list[Any], **more: Any) -> dict[str, Any]:
    ghostkv = {"session": "s"}
    return {
        "model": "scripted",
        "messages": messages,
        "tools": TOOLS[:1],
        "max_tokens": 180,
        "ghostkv": ghostkv,
        **more,
    }


def brought(calls: list[Any], *results: str) -> list[Any]:
    """The conversation with the results of the first of these calls."""
    said = [{"id": call["id"], "type": "function", "function": call["function"]} for call in calls]
    answers = [
        {"role": "tool", "tool_call_id": call["id"], "content": result}
        for call, result in zip(calls, results, strict=False)
    ]
    return [*HI, {"role": "assistant", "content": None, "tool_calls": said}, *answers]


def frames(text: str) -> list[Any]:
    return [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]


def joined(chunks: list[Any]) -> tuple[str, list[Any]]:
    """Content and calls of a stream."""
    content, calls = "", list[Any]()
    assert not any("error" in chunk for chunk in chunks), chunks[-1]
    for delta in (choice["delta"] for chunk in chunks for choice in chunk["choices"]):
        content += delta.get("content") or ""
        for call in delta.get("tool_calls") or []:
            if "id" in call:
                calls.append({"id": call["id"], "function": {**call["function"]}})
            else:
                calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return content, calls


def names(calls: list[Any]) -> list[Any]:
    return [{"id": call["id"], "name": call["function"]["name"]} for call in calls]


def read_until(client: httpx2.Client, body: dict[str, Any], enough: Callable[[list[Any]], bool]) -> list[Any]:
    """The chunks of a stream up to where its reader has enough; then it hangs up."""
    chunks: list[Any] = []
    with client.stream("POST", CHAT, json=body | {"stream": True}) as reply:
        assert reply.status_code == 200, reply.read()
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                chunks.append(json.loads(line[6:]))
                if enough(chunks):
                    return chunks
    raise AssertionError("the stream ended")


def shown(client: httpx2.Client) -> Any:
    return client.get("/v1/sessions/s").json()


# --- values ---


def test_a_call_is_logged_once_and_settled_once() -> None:
    call = CallRecord("c", "a", "now", digest("{}"))
    logged = intended((), [call])
    assert logged == (call,) and intended(logged, [call]) is logged
    with pytest.raises(RecordRefused, match="other arguments"):
        intended(logged, [CallRecord("c", "a", "now", digest('{"x": 1}'))])
    first = settled(logged, [Message("tool", "12:00", tool_call_id="c"), Message("tool", "?", tool_call_id="d")])
    assert first[0].settled and first[0].result == digest("12:00")
    assert settled(first, [Message("tool", "another", tool_call_id="c")]) == first
    assert settled(logged, [Message("user", "12:00", tool_call_id="c")]) == logged
    empty = settled(logged, [Message("tool", "", tool_call_id="c")])
    assert empty[0].settled


# --- one server ---


def test_a_call_is_committed_before_its_end_is_said(opening: Opening) -> None:
    """While the store writes nothing, no client has a whole call; what a session shows, it has committed or will."""
    with opening(CALLS) as service:
        held = held_writes(service)
        service.http.post("/v1/sessions", json={"id": "s"})
        chunks: list[Any] = []
        reader = threading.Thread(target=lambda: chunks.extend(all_of(service, asked(HI))), daemon=True)
        reader.start()
        assert until(lambda: len(shown(service.http)["calls"]) == 1)
        turn = shown(service.http)["turns"][0]
        assert turn["status"] == "running" and turn["completion_tokens"] < len(CALLS) // 2
        record = service.server.serving.desk.table.get(("", "s"))
        said = "".join(getattr(event, "text", "") for event in record.turns[0].events)
        assert CALLS.startswith(said) and OSLO.startswith(said[said.index('{"city') :]) and not said.endswith("}")
        held.set()
        reader.join(20)
        _, calls = joined(chunks)
        assert [call["function"]["arguments"] for call in calls] == [OSLO, ROME]
        assert shown(service.http)["unsettled"] == names(calls)


def all_of(service: Service, body: dict[str, Any]) -> list[Any]:
    return frames(service.http.post(CHAT, json=body | {"stream": True}).text)


def test_results_settle_calls_and_what_is_left_is_said(opening: Opening) -> None:
    """In a whole reply and in a stream's first chunk, whether the client hands the calls back or not."""
    with opening(CALLS) as service:
        service.http.post("/v1/sessions", json={"id": "s"})
        first = service.http.post(CHAT, json=asked(HI)).json()
        calls = first["choices"][0]["message"]["tool_calls"]
        assert "unsettled" not in first["ghostkv"] and len(calls) == 2
        one = service.http.post(CHAT, json=asked(brought(calls, "-4 C"))).json()
        assert one["ghostkv"]["unsettled"] == names(calls)[1:]
        ReplyExtension.model_validate(one["ghostkv"])
        left = [call["id"] for call in calls[1:]]
        stream = all_of(service, asked([{"role": "user", "content": "Never mind."}]))
        assert [each["id"] for each in stream[0]["ghostkv"]["unsettled"]][:1] == left
        assert not any("unsettled" in chunk.get("ghostkv", {}) for chunk in stream[1:])
        session = shown(service.http)
        entry = next(each for each in session["calls"] if each["id"] == calls[0]["id"])
        assert entry["settled"] and entry["arguments_sha256"] == digest(OSLO) and entry["turn"] == first["id"]
        assert entry["result_sha256"] == digest("-4 C")
        assert names(calls)[0] not in session["unsettled"] and names(calls)[1] in session["unsettled"]
        two = service.http.post(CHAT, json=asked(brought(calls, "-4 C", "31 C"))).json()
        assert not {call["id"] for call in calls} & {call["id"] for call in two["ghostkv"]["unsettled"]}


def test_cut_calls_and_plain_answers_log_nothing(opening: Opening) -> None:
    with opening(CALLS) as service:
        service.http.post("/v1/sessions", json={"id": "s"})
        service.http.post(CHAT, json=asked(HI, max_tokens=45))
        service.http.post(CHAT, json=asked(HI, tool_choice="none"))
        assert (shown(service.http)["calls"], shown(service.http)["unsettled"]) == ([], [])


def test_a_fork_has_the_calls_of_the_answers_that_it_has(opening: Opening) -> None:
    with opening(CALLS) as service:
        service.http.post("/v1/sessions", json={"id": "s"})
        calls = service.http.post(CHAT, json=asked(HI)).json()["choices"][0]["message"]["tool_calls"]
        service.http.post(CHAT, json=asked(brought(calls, "-4 C", "31 C"), tool_choice="none"))
        kinds = [place["kind"] for place in service.http.get("/v1/sessions/s/boundaries").json()["data"]]
        found = {}
        for at, kind in enumerate(kinds):
            made = service.http.post("/v1/sessions/s/fork", json={"at": at, "id": f"f{at}"})
            if kind == "end" and at < len(kinds) - 1:  # its client has it as calls, which is no longer what was said
                assert made.status_code == 409
                continue
            assert made.status_code == 201, made.text
            found[at, kind] = [each["id"] for each in service.http.get(f"/v1/sessions/f{at}").json()["calls"]]
        assert found.pop((0, "start")) == []
        assert all(ids == [call["id"] for call in calls] for ids in found.values()) and len(found) == 2


# --- kill -9 ---


@pytest.fixture
def killed(start: Start, tmp_path: Path) -> Iterator[Callable[..., httpx2.Client]]:
    """Starts a server over one store, after it has killed the one before."""
    running: list[Running] = []
    clients: list[httpx2.Client] = []

    def again(seconds: float = 0.0) -> httpx2.Client:
        if running:
            running[-1].signal(signal.SIGKILL)
            running[-1].process.wait(20)
        running.append(start(seconds=seconds, store=str(tmp_path / "store.db"), says=CALLS, then=THEN))
        clients.append(httpx2.Client(base_url=running[-1].url, timeout=120))
        return clients[-1]

    yield again
    for client in clients:
        client.close()


def complete(calls: list[Any]) -> list[Any]:
    return [call for call in calls if call["function"]["arguments"] in (OSLO, ROME)]


def test_killed_between_intent_and_settling(killed: Callable[..., httpx2.Client]) -> None:
    """Inside the answer, after its first call; then after its end. The calls are reported, and are the same again."""
    client = killed(0.01)
    client.post("/v1/sessions", json={"id": "s"})
    before = joined(read_until(client, asked(HI), lambda chunks: bool(complete(joined(chunks)[1]))))[1]
    client = killed(0.002)
    assert shown(client)["unsettled"] == names(before[:1]) and shown(client)["status"] == "running"
    chunks = frames(client.get("/v1/sessions/s/stream", params={"from": 0}).text)
    assert chunks[0]["ghostkv"]["unsettled"] == names(before[:1])
    _, calls = joined(chunks)
    assert [call["function"]["arguments"] for call in calls] == [OSLO, ROME] and calls[:1] == before[:1]
    client = killed()
    assert shown(client)["unsettled"] == names(calls)  # whether its end is committed or found again
    assert [call["settled"] for call in shown(client)["calls"]] == [False, False]
    other = client.post(CHAT, json=asked([{"role": "user", "content": "Where were we?"}], tool_choice="none")).json()
    assert other["ghostkv"]["unsettled"] == names(calls)


def test_killed_after_settling(killed: Callable[..., httpx2.Client]) -> None:
    """The session goes on after the results; neither call is made again, and neither is reported."""
    client = killed(0.003)
    client.post("/v1/sessions", json={"id": "s"})
    calls = client.post(CHAT, json=asked(HI)).json()["choices"][0]["message"]["tool_calls"]
    body = asked(brought(calls, "-4 C", "31 C"))
    said, _ = joined(read_until(client, body, lambda chunks: len(joined(chunks)[0]) > 20))
    client = killed()
    session = shown(client)
    assert (session["status"], session["unsettled"]) == ("running", [])
    assert [call["settled"] for call in session["calls"]] == [True, True]
    chunks = frames(client.get("/v1/sessions/s/stream").text)
    content, again = joined(chunks)
    assert content == THEN and content.startswith(said) and again == []
    assert not any("unsettled" in chunk.get("ghostkv", {}) for chunk in chunks)
    assert [call["id"] for call in shown(client)["calls"]] == [call["id"] for call in calls]
