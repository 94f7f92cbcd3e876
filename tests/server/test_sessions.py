"""Sessions through the API: answers that can be read again from any token, by many, and outlive their first reader."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import openai
import pytest

from ghostkv.config import ServerConfig, SessionLimits
from ghostkv.server.access import Tenant
from keys import access, bearer
from services import TOKENIZER, Scripted, ScriptedBackend, Service, saying, scripted_worker, serving, until

HI: list[Any] = [{"role": "user", "content": "hi"}]
CHAT, RAW = "/v1/chat/completions", "/v1/completions"
LONG = "The code of Eos is AX-12. " * 12


def limits(**sessions: Any) -> ServerConfig:
    return ServerConfig(sessions=SessionLimits(**sessions))


def made(service: Service, **fields: Any) -> str:
    reply = service.http.post("/v1/sessions", json=fields)
    assert reply.status_code == 201, reply.text
    return str(reply.json()["id"])


def body(session: str | None, path: str = CHAT, **fields: Any) -> dict[str, Any]:
    asked = {"messages": HI} if path == CHAT else {"prompt": "assistant\n"}
    return {"model": "scripted", **asked, "ghostkv": {"session": session}, **fields}


def streamed(service: Service, path: str, sent: dict[str, Any]) -> str:
    with service.http.stream("POST", path, json=sent | {"stream": True}) as reply:
        assert reply.status_code == 200, reply.read()
        return b"".join(reply.iter_bytes()).decode()


def replay(service: Service, session: str, **query: Any) -> str:
    reply = service.http.get(f"/v1/sessions/{session}/stream", params={k.strip("_"): v for k, v in query.items()})
    assert reply.status_code == 200, reply.text
    return reply.text


def frames(raw: str) -> list[tuple[int, Any]]:
    """(id, data) of each event. Comments are no events; the last event is `[DONE]`."""
    blocks = [block for block in raw.split("\n\n") if block and not block.startswith(":")]
    assert blocks.pop() == "data: [DONE]"
    found = []
    for block in blocks:
        number, data = block.split("\n")
        found.append((int(number.removeprefix("id: ")), json.loads(data.removeprefix("data: "))))
    return found


def text_of(events: Sequence[tuple[int, Any]]) -> str:
    choices = [choice for _, chunk in events for choice in chunk.get("choices", ())]
    return "".join(choice["text"] if "text" in choice else choice["delta"].get("content") or "" for choice in choices)


def error_of(reply: Any) -> tuple[int, str, str | None]:
    said = reply.json()["error"]
    return reply.status_code, said["code"], said["param"]


def status(service: Service, session: str) -> str:
    return str(service.http.get(f"/v1/sessions/{session}").json()["status"])


def idle(service: Service) -> bool:
    backend = service.worker.backend
    assert isinstance(backend, ScriptedBackend)
    return backend.pool.referenced == 0


@contextmanager
def begun(service: Service, sent: dict[str, Any], events: int = 3) -> Iterator[list[tuple[int, Any]]]:
    """The first events of a stream, whose client then hangs up."""
    with service.http.stream("POST", CHAT, json=sent | {"stream": True}) as reply:
        raw = ""
        for chunk in reply.iter_text():
            raw += chunk
            if raw.count("\n\n") >= events:
                break
        yield frames("\n\n".join(raw.split("\n\n")[:events]) + "\n\ndata: [DONE]\n\n")


# --- a session's life ---


def test_a_session_is_made_listed_shown_and_deleted(scripted: Scripted) -> None:
    service = scripted(saying("The code of Eos is AX-12."))
    session = made(service, id="my.chat-1", residency="full", payload_budget=4096, metadata={"user": "<b>x</b>"})
    assert session == "my.chat-1"
    assert error_of(service.http.post("/v1/sessions", json={"id": session})) == (409, "session_exists", "id")
    empty = service.http.post("/v1/sessions")
    assert empty.status_code == 201
    drawn = empty.json()["id"]
    assert drawn != session
    first = service.http.get(f"/v1/sessions/{session}").json()
    assert (first["status"], first["messages"], first["facts"], first["payload_digest"]) == ("idle", 0, [], None)
    assert (first["metadata"], first["residency"], first["payload_budget"]) == ({"user": "<b>x</b>"}, "full", 4096)
    reply = service.http.post(CHAT, json=body(session)).json()
    assert reply["ghostkv"]["residency"] == "full"
    shown = service.http.get(f"/v1/sessions/{session}").json()
    assert (shown["messages"], shown["answers"], shown["output_tokens"]) == (2, 1, 26)
    assert {"subject": "Eos", "attribute": "code", "value": "AX-12"}.items() <= shown["facts"][-1].items()
    assert shown["payload_bytes"] == reply["ghostkv"]["payload_bytes"] > 0
    assert len(shown["payload_digest"]) == 64
    [turn] = shown["turns"]
    assert (turn["id"], turn["status"], turn["finish_reason"]) == (reply["id"], "finished", "stop")
    assert (turn["prompt_tokens"], turn["completion_tokens"]) == (20, 26)
    assert turn["request"] == {"model": "scripted", "ghostkv": first["id"] and turn["request"]["ghostkv"]}
    assert [record["usage"]["generated_tokens"] for record in shown["segments"]] == [26]
    assert [each["id"] for each in service.http.get("/v1/sessions").json()["data"]] == [session, drawn]
    assert service.http.delete(f"/v1/sessions/{session}").json()["deleted"] is True
    for call in (service.http.get, service.http.delete):
        assert error_of(call(f"/v1/sessions/{session}")) == (404, "session_not_found", "session")
    assert error_of(service.http.post(CHAT, json=body(session))) == (404, "session_not_found", "session")
    assert [each["id"] for each in service.http.get("/v1/sessions").json()["data"]] == [drawn]


def test_what_the_session_says_holds_where_the_request_says_nothing(scripted: Scripted) -> None:
    service = scripted(saying(LONG))
    session = made(service, residency="full")
    assert service.http.post(CHAT, json=body(session)).json()["ghostkv"]["residency"] == "full"
    other = body(session) | {"ghostkv": {"session": session, "residency": "segment"}}
    assert service.http.post(CHAT, json=other).json()["ghostkv"]["residency"] == "segment"
    shown = service.http.get(f"/v1/sessions/{session}").json()
    assert {each["decision"] for each in shown["decisions"]} == {"flush"}
    assert {each["turn"] for each in shown["decisions"]} == {shown["turns"][1]["id"]}
    assert len(shown["segments"]) == len(shown["decisions"]) + 2
    assert shown["turns"][1]["forked_at"] == 1  # the same question once more


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"id": "a/b"}, "id"),
        ({"id": "x" * 129}, "id"),
        ({"id": 3}, "id"),
        ({"residency": "always"}, "ghostkv.residency"),
        ({"payload_budget": 10}, "payload_budget"),
        ({"payload_budget": 2**40}, "payload_budget"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {"a": "x" * 513}}, "metadata.a"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"model": "x"}, "model"),
    ],
)
def test_sessions_that_cannot_be(scripted: Scripted, fields: dict[str, Any], param: str) -> None:
    service = scripted(saying("x"))
    reply = service.http.post("/v1/sessions", json=fields)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    assert service.http.get("/v1/sessions").json()["data"] == []


@pytest.mark.parametrize(
    ("path", "fields", "expected"),
    [
        (CHAT, {"n": 2}, (400, "invalid_request", "n")),
        (RAW, {"n": 2}, (400, "invalid_request", "n")),
        (RAW, {"prompt": ["a", "b"]}, (400, "invalid_request", "prompt")),
        (RAW, {"echo": True}, (400, "invalid_request", "echo")),
        (CHAT, {"ghostkv": {"session": "unknown"}}, (404, "session_not_found", "session")),
        (CHAT, {"ghostkv": {"session": ""}}, (400, "invalid_request", "ghostkv.session")),
        (CHAT, {"ghostkv": {"session": "x" * 200}}, (400, "invalid_request", "ghostkv.session")),
        (CHAT, {"max_tokens": 2000, "residency": "full"}, (400, "invalid_request", "residency")),
    ],
)
def test_requests_that_a_session_cannot_have(
    scripted: Scripted, path: str, fields: dict[str, Any], expected: tuple[int, str, str]
) -> None:
    service = scripted(saying("x"))
    session = made(service)
    for stream in (False, True):
        assert error_of(service.http.post(path, json=body(session, path, **fields, stream=stream))) == expected
    assert service.http.get(f"/v1/sessions/{session}").json()["turns"] == []


def test_a_refused_request_leaves_no_trace(scripted: Scripted) -> None:
    service = scripted(saying("hello"))
    session = made(service, residency="full")
    service.http.post(CHAT, json=body(session))
    before = service.http.get(f"/v1/sessions/{session}").json()
    for stream in (False, True):
        reply = service.http.post(CHAT, json=body(session, max_tokens=1020, stream=stream))
        assert error_of(reply) == (400, "context_length_exceeded", "messages")
        assert service.http.get(f"/v1/sessions/{session}").json() == before
    assert service.http.post(CHAT, json=body(session)).status_code == 200


def test_limits(scripted: Scripted) -> None:
    service = scripted(saying("hello"), limits=limits(count=2, memory=400_000))
    sessions = [made(service), made(service)]
    full = service.http.post("/v1/sessions")
    assert error_of(full) == (429, "rate_limit_exceeded", None)
    assert 3500 < int(full.headers["retry-after"]) <= 3601
    large = service.http.post(CHAT, json=body(sessions[0], max_tokens=1000))
    assert error_of(large) == (429, "rate_limit_exceeded", None)
    assert service.http.post(CHAT, json=body(sessions[0], max_tokens=100)).status_code == 200
    service.http.delete(f"/v1/sessions/{sessions[1]}")
    assert made(service)


# --- reading again ---

SPELLED = "é漢🙂👨‍👩‍👧 and an ST, an STO, then STOP here"
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {}),
    "completions": (RAW, {}),
    "stop": (CHAT, {"stop": ["STOP"]}),
    "usage": (CHAT, {"stream_options": {"include_usage": True}}),
    "running usage": (RAW, {"stream_options": {"continuous_usage_stats": True, "include_usage": True}}),
    "bytes": (RAW, {"stop": ["STOP"], "max_tokens": 5}),  # ends inside a character
    "everything": (CHAT, {"temperature": 0.5, "seed": 7, "logit_bias": {"3": -1}, "max_completion_tokens": 30}),
    "tools": (CHAT, {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]}),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_replay_from_any_token_goes_on_where_it_begins(scripted: Scripted, name: str) -> None:
    path, fields = BODIES[name]
    service = scripted(saying(SPELLED))
    session = made(service)
    raw = streamed(service, path, body(session, path, **fields))
    events = frames(raw)
    ids = [number for number, _ in events]
    assert ids == sorted(ids)
    if path == CHAT:
        assert (events[0][0], events[0][1]["choices"][0]["delta"]["role"]) == (-1, "assistant")
    assert replay(service, session) == raw == replay(service, session, from_=0)
    total = service.http.get(f"/v1/sessions/{session}").json()["output_tokens"]
    assert ids[-1] == total - 1
    for cut in range(1, total + 1):
        rest = frames(replay(service, session, from_=cut))
        assert rest == [event for event in events if event[0] >= cut] or cut == total
        assert text_of([event for event in events if event[0] < cut]) + text_of(rest) == text_of(events)
        assert [chunk["choices"][0]["finish_reason"] for _, chunk in rest if chunk["choices"]][-1] is not None
    after = service.http.get(f"/v1/sessions/{session}/stream?from=0", headers={"last-event-id": str(total - 2)})
    assert after.text == replay(service, session, from_=total - 1)


def test_log_probabilities_are_replayed_as_they_were(small: Service) -> None:
    for path, fields in ((CHAT, {"logprobs": True, "top_logprobs": 2}), (RAW, {"logprobs": 2})):
        session = made(small)
        sent = body(session, path, **fields, model="small", max_tokens=20, ignore_eos=True)
        raw = streamed(small, path, sent)
        assert replay(small, session) == raw
        assert frames(replay(small, session, from_=10)) == [event for event in frames(raw) if event[0] >= 10]


def test_calls_are_replayed_as_they_were(scripted: Scripted) -> None:
    said = 'Let me see. <tool_call>{"name": "f", "arguments": {"city": "Köln"}}</tool_call>'
    service = scripted(saying(said))
    session = made(service)
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    sent = body(session, tools=[tool], parallel_tool_calls=False)
    raw = streamed(service, CHAT, sent)
    events = frames(raw)
    deltas = [choice["delta"] for _, chunk in events for choice in chunk["choices"]]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert "".join(call["function"].get("arguments", "") for call in calls) == '{"city": "Köln"}'
    total = service.http.get(f"/v1/sessions/{session}").json()["output_tokens"]
    for cut in range(0, total, 3):
        assert frames(replay(service, session, from_=cut)) == [event for event in events if event[0] >= cut or not cut]
    # The client sends the calls and not the text: the conversation goes on all the same.
    called = {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": calls[0]["function"]}]}
    called["tool_calls"][0]["function"] = {"name": "f", "arguments": '{"city": "Köln"}'}  # type: ignore[index]
    talk = [*HI, called, {"role": "tool", "tool_call_id": "1", "content": "7 C"}]
    assert service.http.post(CHAT, json=sent | {"messages": talk}).status_code == 200
    assert service.http.get(f"/v1/sessions/{session}").json()["turns"][1]["forked_at"] is None


def test_a_structured_answer_is_replayed_as_it_was(small: Service) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    session = made(small)
    sent = body(session, model="small", max_tokens=60, seed=2)
    sent["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    raw = streamed(small, CHAT, sent)
    assert replay(small, session) == raw
    assert frames(replay(small, session, from_=4)) == [event for event in frames(raw) if event[0] >= 4]


def test_a_planned_answer_is_cut_where_its_headings_are(small: Service) -> None:
    parts = [{"title": "Waves"}, {"title": "Tides", "target": 2}, {"title": "End", "depends_on": [0, 1]}]
    session = made(small)
    sent = body(session, model="small", max_tokens=24, seed=4, ignore_eos=True)
    sent["ghostkv"] |= {"plan": parts}
    raw = streamed(small, CHAT, sent)
    events = frames(raw)
    alone = {**sent, "ghostkv": {"plan": parts}}
    whole = small.http.post(CHAT, json=alone).json()["choices"][0]["message"]["content"]
    assert text_of(events) == whole
    assert whole.count("\n\n") >= 2  # what stands between the parts has no token
    for cut in range(24):
        rest = frames(replay(small, session, from_=cut))
        before = [event for event in events if event[0] < cut] if cut else []
        assert text_of(before) + text_of(rest) == whole
    shown = small.http.get(f"/v1/sessions/{session}").json()
    assert [node["node"]["title"] for node in shown["plan"]["nodes"]] == ["Waves", "Tides", "End"]
    assert {record["node"] for record in shown["segments"]} == {0, 1, 2}


def test_an_answer_without_a_stream_is_replayed_as_one(scripted: Scripted) -> None:
    service = scripted(saying(SPELLED))
    session = made(service)
    reply = service.http.post(CHAT, json=body(session)).json()
    events = frames(replay(service, session))
    assert text_of(events) == reply["choices"][0]["message"]["content"] == SPELLED
    assert {chunk["id"] for _, chunk in events} == {reply["id"]}
    assert {chunk["object"] for _, chunk in events} == {"chat.completion.chunk"}
    assert events[-1][1]["ghostkv"] == reply["ghostkv"]


def test_each_answer_is_replayed_in_its_own_format(scripted: Scripted) -> None:
    service = scripted(saying("one two"))
    session = made(service)
    raws = [streamed(service, path, body(session, path)) for path in (CHAT, RAW, CHAT)]
    firsts = [turn["first_token"] for turn in service.http.get(f"/v1/sessions/{session}").json()["turns"]]
    assert firsts == [0, 8, 16]
    for first, raw in zip(firsts, raws, strict=True):
        assert replay(service, session, from_=first) == raw
    assert frames(replay(service, session, from_=10)) == [event for event in frames(raws[1]) if event[0] >= 10]
    assert replay(service, session) == raws[2]


@pytest.mark.parametrize("query", ["from=-1", "from=x", "from=1.0", "from=7", "from=", "from=9999999999999", "from=٣"])
def test_tokens_that_there_are_not(scripted: Scripted, query: str) -> None:
    service = scripted(saying("hello"))
    session = made(service)
    assert error_of(service.http.get(f"/v1/sessions/{session}/stream")) == (400, "invalid_request", "session")
    service.http.post(CHAT, json=body(session))
    assert error_of(service.http.get(f"/v1/sessions/{session}/stream?{query}")) == (400, "invalid_request", "from")
    header = {"last-event-id": query.removeprefix("from=") if query.isascii() else "?"}
    reply = service.http.get(f"/v1/sessions/{session}/stream", headers=header)
    assert reply.status_code == (200 if query == "from=-1" else 400)


# --- going on without a reader ---


def test_an_answer_goes_on_when_its_reader_goes_away(scripted: Scripted) -> None:
    service = scripted(saying(LONG), seconds=0.002)
    session = made(service, residency="full")
    with begun(service, body(session), events=5) as seen:
        at = seen[-1][0]
    assert status(service, session) == "running"
    rest = frames(replay(service, session, from_=at + 1))  # read live, to its end
    assert rest[0][0] > at  # the index of a chunk's last token; a slow reader gets several in one
    assert text_of(seen) + text_of(rest) == LONG
    assert status(service, session) == "idle"
    assert until(lambda: idle(service))
    assert text_of(frames(replay(service, session, from_=0))) == LONG


def test_it_goes_on_to_its_end_with_nobody_reading(scripted: Scripted) -> None:
    service = scripted(saying(LONG[:100]), seconds=0.002)
    session = made(service)
    with begun(service, body(session)):
        pass
    assert until(lambda: status(service, session) == "idle")
    assert text_of(frames(replay(service, session, from_=0))) == LONG[:100]


def test_the_official_client_resumes(scripted: Scripted) -> None:
    service = scripted(saying(LONG[:200]), seconds=0.002)
    created = service.client.post("/sessions", cast_to=object, body={"id": "talk", "residency": "full"})
    assert isinstance(created, dict)
    stream = service.client.chat.completions.create(
        model="scripted", messages=HI, stream=True, extra_body={"ghostkv": {"session": "talk"}}
    )
    begin = "".join(next(stream).choices[0].delta.content or "" for _ in range(6))
    stream.close()
    again = service.client.get(
        "/sessions/talk/stream?from=5", cast_to=openai.types.chat.ChatCompletionChunk, stream=True,
        stream_cls=openai.Stream[openai.types.chat.ChatCompletionChunk],
    )  # fmt: skip
    assert begin + "".join(chunk.choices[0].delta.content or "" for chunk in again) == LONG[:200]


def test_nobody_reads_for_too_long(scripted: Scripted) -> None:
    service = scripted(saying(LONG), seconds=0.005, limits=limits(grace_s=0.1))
    session = made(service, residency="full")
    with begun(service, body(session)):
        pass
    assert until(lambda: status(service, session) == "idle")
    assert until(lambda: idle(service))
    shown = service.http.get(f"/v1/sessions/{session}").json()
    [turn] = shown["turns"]
    assert (turn["status"], turn["finish_reason"]) == ("cancelled", None)
    assert "nobody read it for 0.1 s" in turn["error"]
    assert 2 < turn["completion_tokens"] < len(LONG)
    *events, (_, last) = frames(replay(service, session, from_=0))
    assert last["error"]["code"] == "answer_interrupted"
    assert text_of(events) == LONG[: turn["completion_tokens"]]
    assert shown["messages"] == 2
    # What was said counts: sent back as it is, it is remembered.
    talk = [*HI, {"role": "assistant", "content": text_of(events)}, {"role": "user", "content": "and?"}]
    assert service.http.post(CHAT, json=body(session, messages=talk)).status_code == 200
    assert service.http.get(f"/v1/sessions/{session}").json()["turns"][1]["forked_at"] is None


def test_a_reader_in_time_keeps_it_going(scripted: Scripted) -> None:
    service = scripted(saying(LONG), seconds=0.003, limits=limits(grace_s=1.0))
    session = made(service, residency="full")
    with begun(service, body(session)):
        pass
    with service.http.stream("GET", f"/v1/sessions/{session}/stream?from=0") as reply:
        raw = b"".join(reply.iter_bytes()).decode()  # takes longer than the grace
    assert text_of(frames(raw)) == LONG


def test_one_writer_and_many_readers(scripted: Scripted) -> None:
    service = scripted(saying(LONG), seconds=0.002)
    session = made(service, residency="full")
    found: dict[int, str] = {}
    with service.http.stream("POST", CHAT, json=body(session, stream=True)) as reply:
        parts = reply.iter_text()
        first = next(parts)
        for stream in (False, True):
            busy = service.http.post(CHAT, json=body(session, stream=stream))
            assert error_of(busy) == (409, "session_busy", "ghostkv.session")
        readers = [
            threading.Thread(target=lambda n=n: found.update({n: replay(service, session, from_=n % 2)}))
            for n in range(6)
        ]
        for reader in readers:
            reader.start()
        raw = first + "".join(parts)
    for reader in readers:
        reader.join(20)
    assert {found[n] for n in (0, 2, 4)} == {raw}
    assert [text_of(frames(found[n])) for n in (1, 3, 5)] == [LONG[1:]] * 3
    assert service.http.post(CHAT, json=body(session, max_tokens=3)).status_code == 200


def test_the_next_request_ends_an_answer_that_nobody_reads(scripted: Scripted) -> None:
    service = scripted(saying(LONG), seconds=0.005)
    session = made(service, residency="full")
    with begun(service, body(session)):
        pass
    sent = body(session, messages=[{"role": "user", "content": "stop that"}], max_tokens=4)
    # The server may learn of the hang-up after the next request has come; the client's retries bridge that.
    assert until(lambda: service.http.post(CHAT, json=sent).status_code == 200)
    first, last, *_ = service.http.get(f"/v1/sessions/{session}").json()["turns"]
    assert (first["status"], last["status"], last["completion_tokens"]) == ("cancelled", "finished", 4)
    assert "next request" in first["error"]
    assert last["first_token"] == first["completion_tokens"]
    assert until(lambda: idle(service))


def test_a_client_that_does_not_stream_may_hang_up_too(scripted: Scripted) -> None:
    service = scripted(saying(LONG), seconds=0.002)
    session = made(service, residency="full")
    impatient = openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0, timeout=0.3)
    with impatient, pytest.raises(openai.APITimeoutError):
        impatient.chat.completions.create(model="scripted", messages=HI, extra_body={"ghostkv": {"session": session}})
    assert text_of(frames(replay(service, session))) == LONG


def test_deleting_ends_the_answer_and_tells_its_readers(scripted: Scripted) -> None:
    service = scripted(saying(LONG), seconds=0.01)
    session = made(service, residency="full")
    with service.http.stream("POST", CHAT, json=body(session, stream=True)) as reply:
        parts = reply.iter_text()
        raw = next(parts)
        assert service.http.delete(f"/v1/sessions/{session}").status_code == 200
        raw += "".join(parts)
    *_, (_, last) = frames(raw)
    assert last["error"]["code"] == "answer_interrupted"
    assert "deleted" in last["error"]["message"]
    assert until(lambda: idle(service))
    assert error_of(service.http.get(f"/v1/sessions/{session}/stream"))[0] == 404


def test_nothing_is_left_of_many(scripted: Scripted) -> None:
    service = scripted(saying(LONG[:60]), seconds=0.001, limits=limits(grace_s=0.05))
    for round_ in range(12):
        session = made(service)
        with begun(service, body(session), events=1 + round_ % 4):
            pass
        if round_ % 3:
            service.http.delete(f"/v1/sessions/{session}")
    assert until(lambda: idle(service))
    assert until(lambda: all(s["status"] == "idle" for s in service.http.get("/v1/sessions").json()["data"]))
    assert service.server.serving.gate.inside == 0
    assert service.server.serving.desk._running == {}


# --- what the session remembers ---


def test_stored_ids_stand_in_the_next_prompt(scripted: Scripted) -> None:
    """The script spells its answer in single bytes, which the tokenizer would have merged."""
    service = scripted(saying("hello in the hall"))
    merged = len(TOKENIZER.encode("hello in the hall"))
    assert merged < 17
    talk = [*HI, {"role": "assistant", "content": "hello in the hall"}, {"role": "user", "content": "and?"}]
    counts, cached = [], []
    for session in (None, made(service)):
        service.http.post(CHAT, json=body(session))
        reply = service.http.post(CHAT, json=body(session, messages=talk)).json()
        assert reply["choices"][0]["message"]["content"] == "hello in the hall"
        counts.append(reply["usage"]["prompt_tokens"])
        cached.append(reply["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert counts[1] - counts[0] == 17 - merged
    assert cached[1] == (20 + 17) // 16 * 16 > cached[0]
    edited = [{"role": "user", "content": "ho"}, *talk[1:]]
    assert service.http.post(CHAT, json=body(session, messages=edited)).json()["usage"]["prompt_tokens"] == counts[0]
    assert service.http.get(f"/v1/sessions/{session}").json()["turns"][-1]["forked_at"] == 0


@pytest.mark.parametrize("residency", ["segment", "full"])
def test_six_turns_are_the_same_with_and_without_a_session(small: Service, residency: str) -> None:
    """Where the ids that were generated are those that the tokenizer makes of their text, nothing else differs."""
    session = made(small, residency=residency)
    talks: list[list[Any]] = [[], []]
    encode = small.worker.tokenizer.encode
    letters = {str(encode(letter)[0]): 50 for letter in "bcdfgjkmpquvwxyz"}  # no two of them are merged
    for turn in range(6):
        replies = []
        for talk, joined in zip(talks, (None, session), strict=True):
            talk.append({"role": "user", "content": f"The code of unit {turn} is AX-{turn}. Which?"})
            sent = {"model": "small", "messages": talk, "max_tokens": 12, "temperature": 0, "logit_bias": letters}
            sent["ghostkv"] = {"session": joined} | ({} if joined else {"residency": residency})
            replies.append(small.http.post(CHAT, json=sent).json())
            talk.append({"role": "assistant", "content": replies[-1]["choices"][0]["message"]["content"]})
        record = small.server.serving.desk.table.get(("", session)).turns[-1]
        assert list(record.ids) == encode(talk[-1]["content"])
        assert talks[0] == talks[1]
        assert replies[0]["usage"]["prompt_tokens"] == replies[1]["usage"]["prompt_tokens"]
        assert replies[0]["ghostkv"]["exact"] == replies[1]["ghostkv"]["exact"]
    assert len({message["content"] for message in talks[0][1::2]}) > 1


# --- tenants ---


def test_sessions_of_others_do_not_exist_and_admins_may_look(scripted: Scripted) -> None:
    worker = scripted_worker(ScriptedBackend(saying("the secret")))
    keys = access("ann", "bob", Tenant("root", admin=True))
    with serving(worker, access=keys) as service:
        ann, bob, root = (bearer(name) for name in ("ann", "bob", "root"))
        service.http.post("/v1/sessions", json={"id": "mine"}, headers=ann)
        sent = body("mine")
        assert service.http.post(CHAT, json=sent, headers=ann).status_code == 200
        missing = service.http.post(CHAT, json=body("none"), headers=bob)
        foreign = service.http.post(CHAT, json=sent, headers=bob)
        assert error_of(missing)[:2] == error_of(foreign)[:2] == (404, "session_not_found")
        for url in ("/v1/sessions/mine", "/v1/sessions/mine/stream", "/v1/sessions/mine/stream?from=99"):
            assert error_of(service.http.get(url, headers=bob))[:2] == (404, "session_not_found")
        assert error_of(service.http.delete("/v1/sessions/mine", headers=bob))[0] == 404
        assert service.http.get("/v1/sessions", headers=bob).json()["data"] == []
        assert service.http.get("/v1/sessions").status_code == 401
        # An admin reads, and changes nothing of others.
        [shown] = service.http.get("/v1/sessions", headers=root).json()["data"]
        assert shown["tenant"] == keys.alias("ann") != "ann"
        assert service.http.get("/v1/sessions/mine", headers=root).json()["answers"] == 1
        assert text_of(frames(service.http.get("/v1/sessions/mine/stream", headers=root).text)) == "the secret"
        assert error_of(service.http.delete("/v1/sessions/mine", headers=root))[0] == 404
        assert error_of(service.http.post(CHAT, json=sent, headers=root))[0] == 404
        # The same id of another tenant is another session; an admin says whose it means.
        assert service.http.post("/v1/sessions", json={"id": "mine"}, headers=bob).status_code == 201
        assert error_of(service.http.get("/v1/sessions/mine", headers=root)) == (400, "invalid_request", "tenant")
        for name, answers in (("ann", 1), ("bob", 0)):
            chosen = service.http.get(f"/v1/sessions/mine?tenant={keys.alias(name)}", headers=root).json()
            assert chosen["answers"] == answers
        assert "tenant" not in service.http.get("/v1/sessions/mine", headers=ann).json()
