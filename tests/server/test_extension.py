"""The `ghostkv` object in requests and replies: its schema, `strict`, `deterministic`, and the request digest."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import jsonschema_rs
import pytest

from ghostkv.errors import Unsupported
from ghostkv.request import Sampling
from ghostkv.server.extension import SCHEMA, VERSION, extension_schema
from ghostkv.session.deterministic import check_deterministic
from ghostkv.session.turn import Finished, Turn
from ghostkv.session.worker import Worker
from services import Scripted, Service, saying

CHAT: dict[str, Any] = {
    "model": "small",
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 8,
    "temperature": 0,
    "seed": 1,
}


def side(name: str) -> jsonschema_rs.Draft202012Validator:
    schema = extension_schema()
    return jsonschema_rs.Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": schema["$defs"]})


def reply(service: Service, body: dict[str, Any]) -> dict[str, Any]:
    found = service.http.post("/v1/chat/completions", json=body)
    assert found.status_code == 200, found.text
    return dict(found.json())


def test_the_schema_file_is_current() -> None:
    """Renew it with `python -m ghostkv.server.extension`."""
    written = json.loads(SCHEMA.read_text(encoding="utf-8"))
    assert written == extension_schema()
    assert written["version"] == VERSION
    jsonschema_rs.meta.validate(written)


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"residency": None, "strict": None, "plan": None},
        {"residency": "full", "payload_budget": 4096, "long_prompt": "condense", "plan": "auto"},
        {"strict": True, "deterministic": False},
    ],
)
def test_requests_match_the_schema(asked: dict[str, Any]) -> None:
    side("request").validate(asked)


@pytest.mark.parametrize("wrong", [{"colour": "red"}, {"strict": "yes"}, {"long_prompt": "mine"}, 3])
def test_what_the_server_refuses_does_not(small: Service, wrong: object) -> None:
    assert not side("request").is_valid(wrong)
    assert small.http.post("/v1/chat/completions", json=CHAT | {"ghostkv": wrong}).status_code == 400


def test_replies_match_the_schema_on_every_endpoint(small: Service) -> None:
    long = {"max_tokens": 300, "ignore_eos": True}
    chat = reply(small, CHAT | long | {"ghostkv": {"residency": "segment"}})["ghostkv"]
    kept = reply(small, CHAT | long)["ghostkv"]
    completion = small.http.post(
        "/v1/completions", json={"model": "small", "prompt": "hi", "max_tokens": 3, "n": 2}
    ).json()["ghostkv"]
    response = small.http.post("/v1/responses", json={"model": "small", "input": "hi", "max_output_tokens": 3}).json()
    planned = reply(small, CHAT | {"max_tokens": 40, "ghostkv": {"plan": "auto"}})["ghostkv"]
    with small.http.stream("POST", "/v1/chat/completions", json=CHAT | {"stream": True}) as stream:
        lines = [line.removeprefix("data: ") for line in stream.iter_lines() if line.startswith("data: {")]
    streamed = next(chunk["ghostkv"] for chunk in map(json.loads, lines) if "ghostkv" in chunk)
    for found in (chat, completion, response["ghostkv"], planned, streamed, kept):
        side("reply").validate(found)
        assert found["version"] == VERSION
    assert chat["segments"] > 1
    assert [mark["decision"] for mark in chat["decisions"]] == ["flush"] * (chat["segments"] - 1)
    assert 150 * len(chat["decisions"]) <= chat["archived_tokens"] < 300
    assert not chat["exact"] and chat["rehydrated_tokens"] > 0
    assert kept["exact"] and {(mark["decision"], mark["reason"]) for mark in kept["decisions"]} == {("keep", "")}
    assert completion["decisions"] == [] and completion["archived_tokens"] == 0 and completion["exact"]


def test_the_digest_is_of_what_determines_the_answer(small: Service) -> None:
    def digest(**changes: Any) -> str:
        return str(reply(small, CHAT | changes)["ghostkv"]["request_digest"])

    base = digest()
    same: list[dict[str, Any]] = [
        {"user": "me"},
        {"stop": None},
        {"n": 1},
        {"ghostkv": {"residency": "auto", "deadline_s": 60}},
        {"ghostkv": {"replay": []}},
    ]
    assert {digest(**changes) for changes in same} == {base}
    other: list[dict[str, Any]] = [
        {"seed": 2},
        {"temperature": 0.5},
        {"top_k": 3},
        {"max_tokens": 7},
        {"stop": "zz"},
        {"messages": [{"role": "user", "content": "ho"}]},
        {"messages": [{"role": "system", "content": "hi"}]},
        {"ignore_eos": True},
        {"logit_bias": {"65": 1}},
        {"n": 2},
        {"ghostkv": {"residency": "full"}},
        {"ghostkv": {"residency": "segment"}},
        {"ghostkv": {"replay": [{"at": 3, "decision": "flush"}]}},
        {"ghostkv": {"payload_budget": 8192}},
        {"ghostkv": {"regex": "a|b"}},
        {"ghostkv": {"regex": "a|c"}},
    ]
    found = [digest(**changes) for changes in other]
    assert len({base, *found}) == len(other) + 1
    unseeded = {digest(seed=None) for _ in range(3)}
    assert len(unseeded) == 3  # each has drawn a seed of its own


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"max_tokens": 151, "ghostkv": {"residency": "segment"}}, "150"),
        ({"ghostkv": {"residency": "sink_window"}}, "loses sight"),
        ({"ghostkv": {"plan": "auto"}}, "plan"),
        ({"ghostkv": {"long_prompt": "condense"}}, "condense"),
    ],
)
def test_strict_refuses_what_may_not_be_exact(small: Service, body: dict[str, Any], said: str) -> None:
    asked = CHAT | body | {"ghostkv": body.get("ghostkv", {}) | {"strict": True}}
    for stream in (False, True):
        found = small.http.post("/v1/chat/completions", json=asked | {"stream": stream})
        error = found.json()["error"]
        assert (found.status_code, error["param"]) == (400, "ghostkv.strict")
        assert said in error["message"]


def test_strict_answers_are_exact(small: Service) -> None:
    for tokens, residency in ((150, "segment"), (300, "full"), (300, "auto")):
        asked = {"strict": True, "residency": residency}
        found = reply(small, CHAT | {"max_tokens": tokens, "ignore_eos": True, "ghostkv": asked})
        assert found["ghostkv"]["exact"]
        assert found["usage"]["completion_tokens"] == tokens


def test_strict_refuses_a_prompt_that_would_lose_its_early_turns(small: Service) -> None:
    turns = [{"role": role, "content": f"{role} {i} " * 8} for i in range(3) for role in ("user", "assistant")]
    body = CHAT | {"messages": [*turns, {"role": "user", "content": "hi"}]}
    segment = {"residency": "segment"}
    assert not reply(small, body | {"ghostkv": segment})["ghostkv"]["exact"]
    for stream in (False, True):
        asked = {"stream": stream, "ghostkv": segment | {"strict": True}}
        found = small.http.post("/v1/chat/completions", json=body | asked)
        assert (found.status_code, found.json()["error"]["param"]) == (400, "ghostkv.strict")
    assert reply(small, body | {"ghostkv": {"strict": True, "residency": "full"}})["ghostkv"]["exact"]


@pytest.mark.parametrize(("most", "residency"), [(None, "full"), (100, "full"), (600, "segment")])
def test_deterministic_chooses_a_residency(small: Service, most: int | None, residency: str) -> None:
    """`full` where prompt and answer fit the context of 512; then it is the answer that this residency gives."""
    asked = CHAT | {"max_tokens": most, "temperature": 0.7, "seed": 5, "ignore_eos": True}
    found = reply(small, asked | {"ghostkv": {"deterministic": True}})
    named = reply(small, asked | {"ghostkv": {"residency": residency}})
    assert found["ghostkv"]["residency"] == residency
    assert found["choices"] == named["choices"]
    assert found["ghostkv"]["request_digest"] == named["ghostkv"]["request_digest"]
    given = reply(small, asked | {"max_tokens": 20, "ghostkv": {"deterministic": True, "residency": "segment"}})
    assert given["ghostkv"]["residency"] == "segment"


def test_deterministic_is_said_in_every_reply(small: Service) -> None:
    """Streams, raw prompts, responses, and streams of a session that are read again."""
    asked: dict[str, Any] = {"ghostkv": {"deterministic": True}}
    raw = {"model": "small", "prompt": "a", "max_tokens": 600, "ignore_eos": True}
    assert small.http.post("/v1/completions", json=raw | asked).json()["ghostkv"]["residency"] == "segment"
    assert (
        small.http.post("/v1/completions", json=raw | asked | {"max_tokens": 9}).json()["ghostkv"]["residency"]
        == "full"
    )
    sent = {"model": "small", "input": "hi", "max_output_tokens": 9}
    assert small.http.post("/v1/responses", json=sent | asked).json()["ghostkv"]["residency"] == "full"
    session = small.http.post("/v1/sessions").json()["id"]
    ghostkv = {"ghostkv": {"deterministic": True, "session": session}}
    said = small.http.post("/v1/chat/completions", json=CHAT | ghostkv | {"max_tokens": 9, "stream": True}).text
    again = small.http.get(f"/v1/sessions/{session}/stream").text
    assert '"residency":"full"' in said and again == said


def test_deterministic_is_refused_with_the_reason(small_worker: Worker) -> None:
    """Where numbers are not exact, and where the choice among workers looks at what is free."""
    turn = Turn("t", Sampling(), 9, prompt=(1, 2), residency="", deterministic=True)
    backend = small_worker.backend
    inexact = replace(backend.capabilities(), exact=False)
    with pytest.raises(Unsupported, match="self-check") as refused:
        check_deterministic(turn, inexact, 1)
    assert refused.value.param == "ghostkv.deterministic"
    with pytest.raises(Unsupported, match="2 workers"):
        check_deterministic(turn, backend.capabilities(), 2)
    check_deterministic(replace(turn, deterministic=False), inexact, 2)


def test_the_openai_client_reaches_it_by_extra_body(scripted: Scripted) -> None:
    service = scripted(saying("Good."))
    answer = service.client.chat.completions.create(
        model="scripted",
        messages=[{"role": "user", "content": "hi"}],
        max_tokens=20,
        extra_body={"ghostkv": {"residency": "full", "strict": True}},
    )
    said: Any = answer.model_extra
    assert said["ghostkv"]["residency"] == "full"
    assert said["ghostkv"]["exact"]


def test_equal_digests_over_streams_of_one_turn(small: Service) -> None:
    """A digest belongs to the turn, whoever reads it: the loop itself gives it."""
    from ghostkv.request import Message, Sampling
    from ghostkv.session.turn import Turn

    turn = small.worker.checked(Turn("t", Sampling(temperature=0.0), 4, messages=(Message("user", "hi"),)))

    async def end() -> Finished:
        async for event in small.worker.run(turn):
            if isinstance(event, Finished):
                return event
        raise AssertionError

    assert asyncio.run(end()).digest == asyncio.run(end()).digest != ""
