"""Every field of OpenAI's requests is honoured, accepted without effect, or refused by name, as its list says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ghostkv.server.completion_schema import CompletionRequest
from ghostkv.server.fields import Schema
from ghostkv.server.response_schema import ResponseRequest
from ghostkv.server.schema import ChatRequest
from server.openai_spec import check, fields, resolved
from services import Scripted, Service, saying

HI = [{"role": "user", "content": "hi"}]
REQUESTS: dict[str, tuple[str, type[Schema], dict[str, Any]]] = {
    "CreateChatCompletionRequest": (
        "/v1/chat/completions",
        ChatRequest,
        {"model": "small", "messages": HI, "max_tokens": 2},
    ),
    "CreateCompletionRequest": (
        "/v1/completions",
        CompletionRequest,
        {"model": "small", "prompt": "hi", "max_tokens": 2},
    ),
    "CreateResponse": ("/v1/responses", ResponseRequest, {"model": "small", "input": "hi", "max_output_tokens": 2}),
}
TYPICAL: dict[str, Any] = {
    "audio": {"voice": "alloy", "format": "wav"},
    "background": True,
    "best_of": 1,
    "context_management": [{"type": "compaction"}],
    "conversation": "conv_1",
    "echo": True,
    "frequency_penalty": 0.5,
    "function_call": "auto",
    "functions": [{"name": "f"}],
    "include": ["message.output_text.logprobs"],
    "instructions": "Be brief.",
    "logit_bias": {"65": -5},
    "max_completion_tokens": 2,
    "max_tool_calls": 2,
    "metadata": {"a": "b"},
    "modalities": ["text", "audio"],
    "moderation": {"model": "omni-moderation-latest"},
    "n": 1,
    "parallel_tool_calls": False,
    "prediction": {"type": "content", "content": "x"},
    "presence_penalty": 0.5,
    "previous_response_id": "resp_1",
    "prompt_cache_key": "k",
    "prompt_cache_options": {"ttl": "30m"},
    "prompt_cache_retention": "24h",
    "reasoning": {"effort": "high"},
    "reasoning_effort": "high",
    "prompt": {"id": "pmpt_1"},
    "response_format": {"type": "json_object"},
    "safety_identifier": "me",
    "seed": 3,
    "service_tier": "auto",
    "stop": ["zz"],
    "store": True,
    "stream": False,
    "stream_options": {"include_obfuscation": False},
    "suffix": "end",
    "temperature": 0.5,
    "text": {"format": {"type": "text"}},
    "tool_choice": "none",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 0.5,
    "truncation": "disabled",
    "user": "me",
    "verbosity": "low",
    "web_search_options": {},
}
WRONG: dict[str, Any] = {"integer": "x", "number": "x", "boolean": "x", "string": 3, "array": 3, "object": 3}
NEEDS_STREAM = {"stream_options"}
ANSWERS_OTHERWISE = {"previous_response_id"}  # there is none of that id


def cases(kind: str) -> list[tuple[str, str]]:
    """(request schema, field) of one list."""
    found = []
    for name, (_, schema, _) in REQUESTS.items():
        honoured = set(schema.model_fields)
        listed = {"honoured": honoured, "without_effect": schema.without_effect, "unsupported": schema.unsupported}
        found += [(name, field) for field in sorted(listed[kind] & fields(name).keys())]
    return found


def send(service: Service, request: str, field: str, value: object) -> Any:
    path, _, body = REQUESTS[request]
    given = body | {field: value} | ({"stream": True} if field in NEEDS_STREAM else {})
    return service.http.post(path, json=given)


@pytest.mark.parametrize("request_name", REQUESTS)
def test_every_field_is_in_exactly_one_list(request_name: str) -> None:
    _, schema, _ = REQUESTS[request_name]
    lists = (set(schema.model_fields), schema.without_effect, schema.unsupported)
    known = fields(request_name)
    assert len(known) > 15
    counts = {field: sum(field in one for one in lists) for field in known}
    assert {field: count for field, count in counts.items() if count != 1} == {}
    assert sum(map(len, lists)) == len(set().union(*lists))


@pytest.mark.parametrize(("request_name", "field"), [*cases("honoured"), *cases("without_effect")])
def test_typical_values_are_accepted(small: Service, request_name: str, field: str) -> None:
    body = REQUESTS[request_name][2]
    value = body.get(field, TYPICAL.get(field))
    if field == "logprobs":
        value = 2 if request_name == "CreateCompletionRequest" else True
    assert value is not None, "a typical value is missing"
    reply = send(small, request_name, field, value)
    if field in ANSWERS_OTHERWISE:
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, field)
    else:
        assert reply.status_code == 200, reply.text


@pytest.mark.parametrize(("request_name", "field"), cases("unsupported"))
def test_refused_fields_are_named(small: Service, request_name: str, field: str) -> None:
    reply = send(small, request_name, field, TYPICAL[field])
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["code"]) == (400, field, "unsupported")
    assert field in error["message"]


@pytest.mark.parametrize(
    ("request_name", "field"), [*cases("honoured"), *cases("without_effect"), *cases("unsupported")]
)
def test_null_means_absent(small: Service, request_name: str, field: str) -> None:
    schema = REQUESTS[request_name][1]
    reply = send(small, request_name, field, None)
    required = field in schema.model_fields and schema.model_fields[field].is_required()
    assert reply.status_code == (400 if required else 200), reply.text


@pytest.mark.parametrize(("request_name", "field"), cases("honoured"))
def test_honoured_fields_have_types(small: Service, request_name: str, field: str) -> None:
    kind = resolved(fields(request_name)[field]).get("type", "anything")
    reply = send(small, request_name, field, WRONG.get(kind, 3.5 if field not in ("temperature", "top_p") else "x"))
    error = reply.json()["error"]
    assert reply.status_code == (404 if field == "model" and error["param"] == "model" and kind != "anything" else 400)
    assert error["param"].split(".")[0] == field


@pytest.mark.parametrize("request_name", REQUESTS)
def test_unknown_fields_are_refused(small: Service, request_name: str) -> None:
    reply = send(small, request_name, "colour", "red")
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "colour")


def test_replies_are_what_openai_describes(small: Service) -> None:
    chat = {**REQUESTS["CreateChatCompletionRequest"][2], "logprobs": True, "top_logprobs": 2}
    check("CreateChatCompletionResponse", small.http.post("/v1/chat/completions", json=chat).json())
    completion = {**REQUESTS["CreateCompletionRequest"][2], "logprobs": 2, "echo": False}
    check("CreateCompletionResponse", small.http.post("/v1/completions", json=completion).json())
    check("ListModelsResponse", small.http.get("/v1/models").json())
    check("Model", small.http.get("/v1/models/small").json())
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    for event in streamed(small, "/v1/chat/completions", chat | usage):
        check("CreateChatCompletionStreamResponse", event)


EVENTS = {
    "response.created": "ResponseCreatedEvent",
    "response.in_progress": "ResponseInProgressEvent",
    "response.output_item.added": "ResponseOutputItemAddedEvent",
    "response.content_part.added": "ResponseContentPartAddedEvent",
    "response.output_text.delta": "ResponseTextDeltaEvent",
    "response.output_text.done": "ResponseTextDoneEvent",
    "response.content_part.done": "ResponseContentPartDoneEvent",
    "response.output_item.done": "ResponseOutputItemDoneEvent",
    "response.completed": "ResponseCompletedEvent",
    "response.incomplete": "ResponseIncompleteEvent",
}


def test_responses_and_their_events_are_what_openai_describes(scripted: Scripted) -> None:
    service = scripted(saying("A word."))
    for limit in (3, 64):
        body = {"model": "scripted", "input": "hi", "max_output_tokens": limit, "metadata": {"a": "b"}}
        reply = service.http.post("/v1/responses", json=body).json()
        check("Response", reply)
        check("OutputMessage", reply["output"][0])
        for event in streamed(service, "/v1/responses", body | {"stream": True}):
            check(EVENTS[event["type"]], event)


def streamed(service: Service, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    with service.http.stream("POST", path, json=body) as reply:
        lines = [line.removeprefix("data: ") for line in reply.iter_lines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]
