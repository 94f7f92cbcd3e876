"""Structured answers as clients ask for them: the official client's `parse`, extensions, refusals beside a stream."""

from __future__ import annotations

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Literal

import openai
import pytest
from pydantic import BaseModel, Field

from ghostkv.config import EngineConfig
from services import Scripted, Service, saying

HI: list[Any] = [{"role": "user", "content": "Describe a ship."}]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


class Flag(BaseModel):
    colour: Literal["red", "blue"]
    number: Annotated[int, Field(ge=0, le=99)]


class Ship(BaseModel):
    name: Annotated[str, Field(max_length=6)]
    masts: Annotated[int, Field(ge=1, le=4)] | None
    flags: Annotated[list[Flag], Field(max_length=2)]


def body(path: str, **fields: Any) -> dict[str, Any]:
    asked = {"messages": HI} if path == CHAT else {"prompt": "A ship"}
    return {"model": "small", "max_tokens": 40, "seed": 5, **asked, **fields}


def named(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "ship", "schema": schema, **more}}


def test_the_official_client_parses_models(small: Service) -> None:
    parsed = []
    for seed in range(3):
        reply = small.client.chat.completions.parse(
            model="small", messages=HI, response_format=Ship, seed=seed, temperature=1.0, max_tokens=400
        )
        assert reply.choices[0].finish_reason == "stop"
        parsed.append(reply.choices[0].message.parsed)
        said = (reply.model_extra or {})["ghostkv"]
        assert (said["exact"], said["segments"], said["residency"]) == (True, 1, "auto")
    assert all(isinstance(ship, Ship) for ship in parsed)
    assert len({str(ship) for ship in parsed}) == 3


def test_a_parsed_stream_is_the_whole_reply_in_pieces(small: Service) -> None:
    asked: dict[str, Any] = {"model": "small", "messages": HI, "seed": 2, "temperature": 1.0, "max_tokens": 400}
    whole = small.client.chat.completions.parse(response_format=Ship, **asked)
    with small.client.chat.completions.stream(response_format=Ship, **asked) as stream:
        pieces = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert final.choices[0].message.parsed == whole.choices[0].message.parsed
    assert "".join(pieces) == whole.choices[0].message.content
    assert len(pieces) > 5


def test_what_is_cut_says_so(small: Service) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        small.client.chat.completions.parse(model="small", messages=HI, response_format=Ship, max_tokens=4)
    reply = small.http.post(CHAT, json=body(CHAT, response_format={"type": "json_object"}, max_tokens=1)).json()
    assert reply["choices"][0]["message"]["content"].startswith("{")
    assert reply["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("extension", "pattern"),
    [
        ({"regex": "(yes|no), [0-9]{2}"}, "(yes|no), [0-9]{2}"),
        ({"grammar": 'start: "x" INT\n%import common.INT'}, "x[0-9]+"),
        ({"json_schema": {"enum": ["red", 7]}}, '"red"|7'),
        ({"regex": "[ab]{9}", "residency": "full"}, "[ab]{9}"),
    ],
)
def test_extensions_constrain_both_endpoints(
    small: Service, path: str, extension: dict[str, Any], pattern: str
) -> None:
    reply = small.http.post(path, json=body(path, ghostkv=extension, n=3)).json()
    for choice in reply["choices"]:
        text = choice["message"]["content"] if path == CHAT else choice["text"]
        assert re.fullmatch(pattern, text) or choice["finish_reason"] == "length"
    assert any(choice["finish_reason"] == "stop" for choice in reply["choices"])


def test_plain_text_is_no_structure(small: Service) -> None:
    plain = small.http.post(CHAT, json=body(CHAT)).json()["choices"]
    for asked in ({"response_format": {"type": "text"}}, {"response_format": None}, {"ghostkv": {"regex": None}}):
        assert small.http.post(CHAT, json=body(CHAT, **asked)).json()["choices"] == plain


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "yaml"}}, "response_format"),
    ({"response_format": {}}, "response_format"),
    ({"response_format": "json"}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"response_format": {"type": "json_object", "json_schema": {"name": "x", "schema": {}}}}, "response_format"),
    ({"response_format": named({"type": "objekt"})}, "response_format.json_schema.schema"),
    ({"response_format": named("not a schema")}, "response_format.json_schema.schema"),
    ({"response_format": named({"$ref": "#/nowhere"})}, "response_format.json_schema.schema"),
    ({"response_format": named({"not": {}}, strict=False)}, "response_format.json_schema.schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format.json_schema.schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}},
        "response_format.json_schema.name",
    ),
    ({"response_format": {"type": "json_object"}, "ghostkv": {"regex": "a"}}, "ghostkv.regex"),
    ({"ghostkv": {"regex": "a("}}, "ghostkv.regex"),
    ({"ghostkv": {"grammar": "start: x"}}, "ghostkv.grammar"),
    ({"ghostkv": {"json_schema": []}}, "ghostkv.json_schema"),
    ({"ghostkv": {"json_schema": {"type": "objekt"}}}, "ghostkv.json_schema"),
    ({"ghostkv": {"regex": "a", "grammar": 'start: "a"'}}, "ghostkv.grammar"),
    ({"ghostkv": {"regex": "a", "plan": "auto"}}, "ghostkv.plan"),
    ({"ghostkv": {"regex": "a", "residency": "sink_window"}}, "ghostkv.residency"),
    ({"ghostkv": {"regex": "a"}, "ignore_eos": True}, "ignore_eos"),
    ({"ghostkv": {"regex": "a"}, "max_tokens": 600}, "max_tokens"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_is_refused_by_name(small: Service, fields: dict[str, Any], param: str, stream: bool) -> None:
    reply = small.http.post(CHAT, json=body(CHAT, stream=stream, **fields))
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"].startswith(param)
    assert error["message"]


def test_completions_have_no_response_format(small: Service) -> None:
    reply = small.http.post(COMPLETIONS, json=body(COMPLETIONS, response_format={"type": "json_object"}))
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "response_format")


def test_an_answer_that_cannot_fit_whole_is_refused_with_what_would(scripted: Scripted) -> None:
    service = scripted(saying('{"a": 1}'), blocks=40)
    asked: dict[str, Any] = {"model": "scripted", "messages": HI, "response_format": {"type": "json_object"}}
    with pytest.raises(openai.BadRequestError) as refusal:
        service.client.chat.completions.create(**asked, max_tokens=700)
    assert refusal.value.code == "context_length_exceeded"
    assert refusal.value.param == "max_tokens"
    fits = int(str(refusal.value.message).partition("at most ")[2].partition(".")[0])
    for tokens in (fits, None):
        reply = service.client.chat.completions.create(**asked, max_tokens=tokens)
        assert json.loads(reply.choices[0].message.content or "") == {"a": 1}
        assert reply.choices[0].finish_reason == "stop"


def test_invalid_schemas_at_once_disturb_no_stream(scripted: Scripted) -> None:
    """D06."""
    text = "All is well. " * 30
    service = scripted(saying(text), seconds=0.005, config=EngineConfig(default_max_tokens=600))
    streamed, begun = [], threading.Event()

    def stream() -> None:
        extra: Any = {"ghostkv": {"residency": "full"}}
        create = service.client.chat.completions.create
        for chunk in create(model="scripted", messages=HI, stream=True, extra_body=extra):
            streamed.append(chunk.choices[0].delta.content or "" if chunk.choices else "")
            begun.set()

    running = threading.Thread(target=stream)
    running.start()
    assert begun.wait(20)
    bad: list[dict[str, Any]] = [fields for fields, param in REFUSED if param.startswith("response_format")]
    chain = "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(9000)) + '\nr9000: "a"'
    with ThreadPoolExecutor(8) as pool:
        asked = [{**body(CHAT, model="scripted"), **fields} for fields in [*bad, {"ghostkv": {"grammar": chain}}]]
        replies = list(pool.map(lambda one: service.http.post(CHAT, json=one), asked))
    running.join(30)
    assert {reply.status_code for reply in replies} == {400}
    assert "".join(streamed) == text
    good = service.http.post(CHAT, json=body(CHAT, model="scripted"))
    assert good.status_code == 200


def test_a_dead_end_is_an_error_in_a_stream_and_in_a_reply(scripted: Scripted) -> None:
    service = scripted(saying("xxxxxxxxxa"), seconds=0.01)
    extension = {"grammar": 'start: "xxxxxxxxx" A\nA: /a+/ & ~/a+/'}
    whole = service.http.post(CHAT, json=body(CHAT, model="scripted", ghostkv=extension))
    assert (whole.status_code, whole.json()["error"]["code"]) == (400, "grammar_dead_end")
    with service.http.stream("POST", CHAT, json=body(CHAT, model="scripted", ghostkv=extension, stream=True)) as reply:
        lines = [line for line in reply.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    assert json.loads(lines[-2].removeprefix("data: "))["error"]["code"] == "grammar_dead_end"
    assert service.http.post(CHAT, json=body(CHAT, model="scripted")).status_code == 200
