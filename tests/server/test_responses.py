"""/v1/responses through OpenAI's own client, over a script and over a small random model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from ghostkv.errors import PreviousResponseNotFound, ResponseNotFound
from ghostkv.request import Message
from ghostkv.server.response_store import ResponseStore, StoredResponse
from server.openai_spec import check
from services import Scripted, Service, saying

ASK: dict[str, Any] = {"model": "scripted", "input": "hi", "max_output_tokens": 64, "temperature": 0}
SMALL: dict[str, Any] = ASK | {"model": "small", "max_output_tokens": 12}


@pytest.fixture
def service(scripted: Scripted) -> Service:
    return scripted(saying("Good morning."))


def events(service: Service, body: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    with service.http.stream("POST", "/v1/responses", json=body | {"stream": True}) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        name = ""
        for line in reply.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield name, json.loads(line.removeprefix("data: "))


def test_text_in_and_out(service: Service) -> None:
    reply = service.client.responses.create(**ASK, instructions="Be brief.", metadata={"a": "b"})
    assert reply.output_text == "Good morning."
    assert (reply.status, reply.object, reply.error, reply.incomplete_details) == ("completed", "response", None, None)
    (item,) = reply.output
    assert (item.type, item.status) == ("message", "completed")
    assert (reply.instructions, reply.metadata, reply.model) == ("Be brief.", {"a": "b"}, "scripted")
    usage = reply.usage
    assert usage is not None
    assert usage.output_tokens == len("Good morning.") + 1
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    chat = service.client.chat.completions.create(model="scripted", messages=messages)  # type: ignore[arg-type]
    assert chat.usage is not None
    assert chat.usage.prompt_tokens == usage.input_tokens


def test_a_cut_answer_is_incomplete(service: Service) -> None:
    reply = service.client.responses.create(**ASK | {"max_output_tokens": 4})
    assert reply.output_text == "Good"
    assert reply.status == "incomplete"
    assert reply.incomplete_details is not None
    assert reply.incomplete_details.reason == "max_output_tokens"
    assert reply.output[0].status == "incomplete"


@pytest.mark.parametrize("limit", [4, 64])
def test_the_events_of_a_stream(service: Service, limit: int) -> None:
    body = ASK | {"max_output_tokens": limit}
    found = list(events(service, body))
    names = [name for name, _ in found]
    deltas = [event["delta"] for name, event in found if name == "response.output_text.delta"]
    end = "response.completed" if limit == 64 else "response.incomplete"
    assert [name for name in names if not name.endswith(".delta")] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        end,
    ]
    assert names[4 : 4 + len(deltas)] == ["response.output_text.delta"] * len(deltas)
    assert len(deltas) > 1
    assert [event["sequence_number"] for _, event in found] == list(range(len(found)))
    assert all(event["type"] == name for name, event in found)
    final = found[-1][1]["response"]
    text = final["output"][0]["content"][0]["text"]
    assert "".join(deltas) == text == dict(found)["response.output_text.done"]["text"] == "Good morning."[:limit]
    whole = service.http.post("/v1/responses", json=body).json()
    varying = {"id", "created_at", "completed_at", "output", "ghostkv", "usage"}
    assert {k: v for k, v in final.items() if k not in varying} == {k: v for k, v in whole.items() if k not in varying}
    assert final["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
    assert final["output"][0]["content"] == whole["output"][0]["content"]
    in_progress = found[0][1]["response"]
    assert (in_progress["status"], in_progress["output"], "usage" in in_progress) == ("in_progress", [], False)
    assert in_progress["id"] == final["id"]


def test_the_clients_own_stream_helpers(service: Service) -> None:
    kinds = [event.type for event in service.client.responses.create(**ASK, stream=True)]
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    with service.client.responses.stream(**ASK) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == "Good morning."
    assert service.client.responses.retrieve(final.id).output_text == "Good morning."


def test_an_answer_without_text_is_still_a_message(scripted: Scripted) -> None:
    service = scripted(saying(""))
    reply = service.client.responses.create(**ASK)
    assert (reply.status, reply.output_text, len(reply.output)) == ("completed", "", 1)
    names = [name for name, _ in events(service, ASK)]
    assert names[2:] == [
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]


def test_a_conversation_by_previous_response_id(small: Service) -> None:
    """Each turn reads what a client that sends the whole conversation would have sent; instructions do not carry."""
    create = small.client.responses.create
    first = create(**SMALL, instructions="Be kind.")
    second = create(**SMALL | {"input": "and now?"}, previous_response_id=first.id)
    third = create(**SMALL | {"input": [{"role": "user", "content": "more"}]}, previous_response_id=second.id)
    sent: list[Any] = [
        {"role": "user", "content": "hi"},
        *first.output,
        {"role": "user", "content": [{"type": "input_text", "text": "and now?"}]},
        *second.output,
        {"role": "user", "content": "more"},
    ]
    whole = create(**SMALL | {"input": [item if isinstance(item, dict) else item.model_dump() for item in sent]})
    assert third.output_text == whole.output_text
    assert third.usage is not None and whole.usage is not None
    assert third.usage.input_tokens == whole.usage.input_tokens
    assert third.previous_response_id == second.id
    small.client.responses.delete(second.id)
    with pytest.raises(openai.BadRequestError) as gone:
        create(**SMALL, previous_response_id=second.id)
    assert (gone.value.code, gone.value.param) == ("previous_response_not_found", "previous_response_id")
    assert create(**SMALL, previous_response_id=third.id).status == "incomplete"


def test_storing(service: Service) -> None:
    kept = service.client.responses.create(**ASK)
    assert service.client.responses.retrieve(kept.id) == kept
    assert service.http.delete(f"/v1/responses/{kept.id}").json() == {
        "id": kept.id,
        "object": "response",
        "deleted": True,
    }
    unkept = service.client.responses.create(**ASK, store=False)
    streamed = list(events(service, ASK | {"store": False}))[-1][1]["response"]
    for response_id in (kept.id, unkept.id, streamed["id"], "resp_never"):
        with pytest.raises(openai.NotFoundError):
            service.client.responses.retrieve(response_id)
        assert service.http.delete(f"/v1/responses/{response_id}").status_code == 404
        with pytest.raises(openai.BadRequestError):
            service.client.responses.create(**ASK, previous_response_id=response_id)


def test_log_probabilities(small: Service) -> None:
    body = SMALL | {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    reply = small.http.post("/v1/responses", json=body).json()
    entries = reply["output"][0]["content"][0]["logprobs"]
    assert len(entries) == reply["usage"]["output_tokens"]
    messages = [{"role": "user", "content": "hi"}]
    chat_body = {"model": "small", "messages": messages, "temperature": 0, "max_tokens": 12, "logprobs": True}
    chat = small.http.post("/v1/chat/completions", json=chat_body | {"top_logprobs": 2}).json()
    assert entries == chat["choices"][0]["logprobs"]["content"]
    streamed = [event["logprobs"] for name, event in events(small, body) if name == "response.output_text.delta"]
    assert [entry for piece in streamed for entry in piece] == entries


def test_json_by_a_schema(small: Service) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"enum": ["x", "y"]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "name": "letter", "schema": schema, "strict": True}
    body = SMALL | {"text": {"format": form}, "max_output_tokens": 60}
    reply = small.http.post("/v1/responses", json=body).json()
    assert reply["status"] == "completed"
    assert json.loads(reply["output"][0]["content"][0]["text"])["a"] in ("x", "y")
    assert reply["text"]["format"] == form
    free = small.http.post("/v1/responses", json=SMALL | {"ghostkv": {"regex": "(a|b)c"}}).json()
    assert free["output"][0]["content"][0]["text"] in ("ac", "bc")


TOOL: dict[str, Any] = {
    "type": "function",
    "name": "turn",
    "description": None,
    "parameters": {
        "type": "object",
        "properties": {"way": {"enum": ["left", "right"]}},
        "required": ["way"],
        "additionalProperties": False,
    },
    "strict": True,
}


CALL = '<tool_call>\n{"name": "turn", "arguments": {"way": "left"}}\n</tool_call>'


@pytest.mark.parametrize("said", ["", "Wait."])
def test_a_function_is_called(scripted: Scripted, said: str) -> None:
    service = scripted(saying(said + CALL))
    body = ASK | {"tools": [TOOL], "max_output_tokens": 200}
    reply = service.client.responses.create(**body)
    *texts, call = reply.output
    assert (reply.output_text, len(texts)) == (said, 1 if said else 0)
    assert call.type == "function_call"
    assert (call.name, call.arguments, call.status) == ("turn", '{"way": "left"}', "completed")
    assert reply.status == "completed"
    found = list(events(service, body))
    streamed = found[-1][1]["response"]
    check("Response", streamed)
    check("FunctionToolCall", streamed["output"][-1])
    pieces = [event["delta"] for name, event in found if name == "response.function_call_arguments.delta"]
    assert "".join(pieces) == streamed["output"][-1]["arguments"] == call.arguments
    assert len(pieces) > 1
    text = ["output_item.added", "content_part.added", "output_text.done", "content_part.done", "output_item.done"]
    made = ["output_item.added", "function_call_arguments.done", "output_item.done"]
    expected = ["created", "in_progress", *(text if said else []), *made, "completed"]
    names = [name.removeprefix("response.") for name, _ in found]
    assert [name for name in names if not name.endswith(".delta")] == expected
    for name, event in found:
        if name.startswith("response.function_call_arguments"):
            check(f"ResponseFunctionCallArguments{'Delta' if name.endswith('delta') else 'Done'}Event", event)
    with service.client.responses.stream(**body) as stream:
        assert stream.get_final_response().output[-1].arguments == call.arguments  # type: ignore[union-attr]


def test_a_result_goes_on_from_the_call(scripted: Scripted) -> None:
    service = scripted(saying(CALL))
    body = ASK | {"tools": [TOOL], "max_output_tokens": 200}
    first = service.client.responses.create(**body)
    call = first.output[-1]
    assert call.type == "function_call"
    answer = {"type": "function_call_output", "call_id": call.call_id, "output": "done"}
    second = service.client.responses.create(**body | {"input": [answer]}, previous_response_id=first.id)
    sent = [{"role": "user", "content": "hi"}, call.model_dump(exclude_none=True), answer]
    whole = service.client.responses.create(**body | {"input": sent})
    assert second.usage is not None and whole.usage is not None and first.usage is not None
    assert second.usage.input_tokens == whole.usage.input_tokens > first.usage.input_tokens


def test_a_cut_call_is_incomplete(scripted: Scripted) -> None:
    service = scripted(saying(CALL))
    reply = service.client.responses.create(**ASK | {"tools": [TOOL], "max_output_tokens": 50})
    (call,) = reply.output
    assert call.type == "function_call"
    assert (reply.status, call.status) == ("incomplete", "incomplete")
    assert '{"way": "left"}'.startswith(call.arguments)


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": [{"role": "king", "content": "x"}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "4"}]}, "input"),
        ({"input": [3]}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 10**9}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"include": ["reasoning.encrypted_content"]}, "include"),
        ({"truncation": "auto"}, "truncation"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"reasoning": {"effort": "high"}}, "reasoning"),
        ({"text": {"format": {"type": "yaml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "objekt"}}}},
            "text.format.schema",
        ),
        ({"text": {"verbosity": "low"}}, "verbosity"),
        ({"ghostkv": {"session": "s"}}, "ghostkv.session"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"metadata": {"a": 3}}, "metadata.a"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"previous_response_id": "resp_x"}, "previous_response_id"),
        ({"ghostkv": {"residency": "mine"}}, "ghostkv.residency"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_refusals(small: Service, wrong: dict[str, Any], param: str) -> None:
    for stream in (False, True):
        reply = small.http.post("/v1/responses", json=SMALL | wrong | {"stream": stream})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text


def test_what_cannot_fit_is_refused_as_in_chat(small: Service) -> None:
    with pytest.raises(openai.BadRequestError, match="context_length_exceeded"):
        small.client.responses.create(**SMALL | {"input": "x" * 4000})
    assert small.http.post("/v1/responses", json=SMALL | {"model": "other"}).status_code == 404


def stored(text: str) -> StoredResponse:
    return StoredResponse({"id": text}, (Message("assistant", text),), len(text))


def test_the_store_is_bounded_and_each_tenants_own() -> None:
    store = ResponseStore(most=3, characters=10)
    for name in ("a", "b", "c"):
        store.put("one", name, stored("xx"))
    store.get("one", "a")
    store.put("one", "d", stored("xx"))  # the least recently used, b, makes room
    with pytest.raises(ResponseNotFound):
        store.get("one", "b")
    store.put("one", "e", stored("x" * 8))
    assert [store.get("one", name).characters for name in ("d", "e")] == [2, 8]
    assert len(store) == 2
    store.put("one", "f", stored("x" * 11))  # larger than all the room there is
    assert len(store) == 2
    store.put("two", "d", stored("y"))
    assert store.conversation("two", "d")[0].content == "y"
    store.delete("two", "d")
    with pytest.raises(PreviousResponseNotFound):
        store.conversation("two", "d")
    assert store.conversation("one", "d")[0].content == "xx"
    assert store.conversation("one", None) == ()
    for _ in range(3):
        store.put("one", "g", stored("x" * 5))  # put again, it does not count twice
    assert store.get("one", "g").characters == 5
    assert [name for name in "de" if name in store._shelves["one"].responses] == ["d"]
