"""Tool calling with the official client: calls whole, streamed and parsed, an agent's loop, what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionChunk
from pydantic import BaseModel

from checkpoints import write_hf_checkpoint
from ghostkv.launch import engine_config, open_worker
from ghostkv.request import Message, Tool
from services import TOOL_TEMPLATE, Scripted, Service, answering, saying, serving

WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "The weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
TOOLS: list[Any] = [
    {"type": "function", "function": WEATHER},
    {"type": "function", "function": {"name": "now"}},
]
HI: list[Any] = [{"role": "user", "content": "How is it in Oslo?"}]
CALL: dict[str, Any] = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": "{}"}}


def written(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


OSLO, ROME = '{"city": "Oslo"}', '{"city": "Rome", "days": 2}'


def streamed(chunks: list[ChatCompletionChunk], index: int = 0) -> tuple[str, list[dict[str, Any]], str | None]:
    """Content, calls and finish reason of one answer, as a client puts them together."""
    content, calls, reason = "", list[dict[str, Any]](), None
    for choice in (choice for chunk in chunks for choice in chunk.choices if choice.index == index):
        assert reason is None
        content += choice.delta.content or ""
        reason = choice.finish_reason
        for call in choice.delta.tool_calls or []:
            assert call.function is not None
            if call.id is not None:
                assert (call.index, call.type, call.function.arguments) == (len(calls), "function", "")
                calls.append({"id": call.id, "name": call.function.name, "arguments": "", "pieces": 0})
            else:
                assert call.function.name is None
                calls[call.index]["arguments"] += call.function.arguments or ""
                calls[call.index]["pieces"] += 1
    return content, calls, reason


def ask(service: Service, **more: Any) -> dict[str, Any]:
    """The same request whole and streamed; checks that both say the same, and gives the whole reply's choice."""
    body: dict[str, Any] = {"model": service.worker.name, "messages": HI, "tools": TOOLS, "seed": 1, **more}
    whole = service.client.chat.completions.create(**body)
    with service.client.chat.completions.create(**body, stream=True) as stream:
        chunks = list(stream)
    for choice in whole.choices:
        content, calls, reason = streamed(chunks, choice.index)
        assert reason == choice.finish_reason
        assert (content or None) == choice.message.content
        made = choice.message.tool_calls or []
        assert [(call["name"], call["arguments"]) for call in calls] == [
            (call.function.name, call.function.arguments) for call in made if call.type == "function"
        ]
        assert (reason == "tool_calls") <= bool(made)
        if reason == "tool_calls":
            assert all(isinstance(json.loads(call["arguments"]), dict) for call in calls)
    return dict(whole.choices[0].model_dump())


def refused(service: Service, **more: Any) -> dict[str, Any]:
    body = {"model": service.worker.name, "messages": HI, "tools": TOOLS, "max_tokens": 2, **more}
    replies = [service.http.post("/v1/chat/completions", json=body | {"stream": stream}) for stream in (False, True)]
    assert [reply.status_code for reply in replies] == [400, 400], replies[0].text
    assert replies[0].json() == replies[1].json()
    return dict(replies[0].json()["error"])


# --- what a reply says ---


def test_content_and_then_calls(scripted: Scripted) -> None:
    service = scripted(saying(f"Let me see.\n\n{written('weather', OSLO)}\n{written('weather', ROME)}"))
    choice = ask(service, max_tokens=300)
    assert choice["message"]["content"] == "Let me see."
    assert choice["finish_reason"] == "tool_calls"
    calls = choice["message"]["tool_calls"]
    assert [call["function"]["arguments"] for call in calls] == [OSLO, ROME]
    assert len({call["id"] for call in calls}) == 2
    assert all(call["id"].startswith("call_") for call in calls)


def test_arguments_are_streamed_as_they_are_written(scripted: Scripted) -> None:
    service = scripted(saying(written("weather", OSLO)), seconds=0.002)
    with service.client.chat.completions.create(
        model="scripted", messages=HI, tools=TOOLS, stream=True, max_tokens=200
    ) as stream:
        content, calls, reason = streamed(list(stream))
    assert (content, reason) == ("", "tool_calls")
    assert calls[0]["pieces"] > 5


def test_no_call_is_a_plain_answer(scripted: Scripted) -> None:
    choice = ask(scripted(saying("It is cold <tool_")))
    assert choice["message"]["content"] == "It is cold <tool_"
    assert choice["message"]["tool_calls"] is None
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("max_tokens", range(5, 75, 7))
def test_a_cut_call_says_length(scripted: Scripted, max_tokens: int) -> None:
    """What was streamed of it stands in the whole reply too; `ask` compares."""
    whole = f"Wait. {written('weather', OSLO)}"
    choice = ask(scripted(saying(whole)), max_tokens=max_tokens)
    assert choice["finish_reason"] == "length"
    assert "Wait. <tool_call>".startswith(choice["message"]["content"] or "")
    for call in choice["message"]["tool_calls"] or []:
        assert OSLO.startswith(call["function"]["arguments"])


def test_a_stop_string_inside_a_call_leaves_no_complete_call(scripted: Scripted) -> None:
    choice = ask(scripted(saying(written("weather", OSLO))), stop=["Os"])
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "'


def test_ids_are_those_of_the_answer(scripted: Scripted) -> None:
    service = scripted(saying(written("now", "{}")))
    reply = service.client.chat.completions.create(model="scripted", messages=HI, tools=TOOLS, n=3)
    ids = [call.id for choice in reply.choices for call in choice.message.tool_calls or []]
    assert len(set(ids)) == 3
    again = service.client.chat.completions.create(model="scripted", messages=HI, tools=TOOLS, n=3)
    assert not set(ids) & {call.id for choice in again.choices for call in choice.message.tool_calls or []}


def test_logprobs_are_those_of_every_token(scripted: Scripted) -> None:
    service = scripted(saying(f"So. {written('now', '{}')}"))
    body: dict[str, Any] = {"model": "scripted", "messages": HI, "tools": TOOLS, "logprobs": True}
    whole = service.client.chat.completions.create(**body)
    assert whole.choices[0].logprobs is not None and whole.usage is not None
    entries = whole.choices[0].logprobs.content or []
    assert len(entries) == whole.usage.completion_tokens
    with service.client.chat.completions.create(**body, stream=True) as stream:
        chunks = [choice for chunk in stream for choice in chunk.choices]
    pieces = [entry for choice in chunks if choice.logprobs for entry in choice.logprobs.content or []]
    assert [entry.token for entry in pieces] == [entry.token for entry in entries]


def test_without_a_choice_of_tools_calls_are_text(scripted: Scripted) -> None:
    """Of D07; an absent name is among what is refused below."""
    text = written("now", "{}")
    service = scripted(saying(text))
    ways: list[dict[str, Any]] = [
        {"tool_choice": "none"},
        {"tools": []},
        {"tools": None},
        {"tools": [], "tool_choice": "auto"},
    ]
    for more in ways:
        choice = ask(service, **more)
        assert choice["message"]["content"] == text
        assert choice["message"]["tool_calls"] is None
        assert choice["finish_reason"] == "stop"


# --- what a prompt says ---


def test_prompt_tokens_count_the_definitions(scripted: Scripted) -> None:
    service = scripted(saying("Hi."))
    replies = [
        service.client.chat.completions.create(model="scripted", messages=HI, **more)
        for more in ({}, {"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "none"})
    ]
    plain, tooled, none = [reply.usage.prompt_tokens for reply in replies if reply.usage]
    tools = tuple(Tool(tool["function"]["name"], json.dumps(tool)) for tool in TOOLS)
    ids = TOOL_TEMPLATE.render_ids([Message("user", HI[0]["content"])], tools)
    assert tooled == len(ids) > plain == none


def test_an_agents_loop_of_two_calls(scripted: Scripted) -> None:
    """The client hands back what it got, results included, until the answer is text."""
    prompts = []

    def answer(prompt: str) -> str:
        prompts.append(prompt)
        if "-4 C" in prompt:
            return "It is -4 C at noon."
        return f"I ask.\n{written('weather', OSLO)}" if "12:00" in prompt else written("now", "{}")

    service = scripted(answering(answer), context=2048)
    results = {"now": "12:00", "weather": "-4 C <|im_end|>"}
    messages: list[Any] = [{"role": "system", "content": "Be brief."}, *HI]
    made = []
    for _ in range(3):
        reply = service.client.chat.completions.create(
            model="scripted",
            messages=messages,
            tools=TOOLS,
            max_tokens=150,
            extra_body={"ghostkv": {"residency": "full"}},
        )
        message = reply.choices[0].message
        messages.append(message)
        for call in message.tool_calls or []:
            assert call.type == "function"
            made.append((call.function.name, call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": results[call.function.name]})
    assert made == [("now", "{}"), ("weather", OSLO)]
    assert messages[-1].content == "It is -4 C at noon."
    assert service.worker.stats is not None
    counted = service.worker.stats()  # each call was a pause, and each result came back from one, by its messages alone
    assert (counted.pauses_kept, counted.pauses_resumed, counted.pauses_dropped, counted.paused_blocks) == (2, 2, 0, 0)
    last = prompts[-1]
    parts = ("Be brief.", "# Tools", HI[0]["content"], written("now", "{}"), "12:00", "I ask.", OSLO, "-4 C <|im_end|>")
    assert [last.index(part) for part in parts] == sorted(last.index(part) for part in parts)


class Weather(BaseModel):
    """The weather of a city."""

    city: str
    days: int = 1


def test_parsed_calls_and_handing_them_back(scripted: Scripted) -> None:
    service = scripted(answering(lambda prompt: "Cold." if "-4 C" in prompt else written("Weather", ROME)))
    tools = [openai.pydantic_function_tool(Weather)]
    reply = service.client.chat.completions.parse(model="scripted", messages=HI, tools=tools)
    message = reply.choices[0].message
    assert message.tool_calls is not None
    assert message.tool_calls[0].function.parsed_arguments == Weather(city="Rome", days=2)
    result: Any = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "-4 C"}
    messages: list[Any] = [*HI, message, result]
    again = service.client.chat.completions.parse(model="scripted", messages=messages, tools=tools)
    assert again.choices[0].message.content == "Cold."
    dumped: list[Any] = [*HI, message.model_dump(), result]
    assert service.client.chat.completions.parse(model="scripted", messages=dumped, tools=tools).choices[0].message


def test_the_clients_own_stream_of_calls(scripted: Scripted) -> None:
    service = scripted(saying(f"See.\n{written('Weather', ROME)}"))
    tools = [openai.pydantic_function_tool(Weather)]
    with service.client.chat.completions.stream(model="scripted", messages=HI, tools=tools) as stream:
        kinds = [event.type for event in stream]
        message = stream.get_final_completion().choices[0].message
    assert "tool_calls.function.arguments.delta" in kinds and "tool_calls.function.arguments.done" in kinds
    assert message.content == "See."
    assert message.tool_calls and message.tool_calls[0].function.parsed_arguments == Weather(city="Rome", days=2)


# --- a model that writes anything the grammar allows ---


@pytest.fixture(scope="module")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A small random model with room for tools."""
    path = write_hf_checkpoint(tmp_path_factory.mktemp("tools") / "small", context=2048)
    worker = open_worker(str(path), engine_config(kv_budget="8MiB", dtype="float32"))
    with serving(worker) as service:
        yield service
    worker.close()


SHORT: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "turn",
            "parameters": {
                "$defs": {"Way": {"enum": ["left", "right"]}},
                "type": "object",
                "properties": {"way": {"$ref": "#/$defs/Way"}},
                "required": ["way"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "now", "strict": True, "parameters": None}},
]
TURN: Any = {"type": "function", "function": {"name": "turn"}}


@pytest.mark.parametrize("choice", ["auto", "required", TURN])
@pytest.mark.parametrize("max_tokens", [5, 40, 150])
def test_calls_are_announced_only_when_they_are_made(random_model: Service, choice: Any, max_tokens: int) -> None:
    """D07: `ask` compares stream and whole reply, and reads the arguments of announced calls."""
    for seed in range(3):
        found = ask(
            random_model, tools=SHORT, tool_choice=choice, max_tokens=max_tokens, seed=seed, parallel_tool_calls=False
        )
        message = found["message"]
        if max_tokens == 5 and choice != "auto":
            assert (found["finish_reason"], message["content"], message["tool_calls"]) == ("length", None, None)
        if max_tokens == 150 and choice != "auto":
            assert found["finish_reason"] == "tool_calls"
            (call,) = message["tool_calls"]
            assert choice != TURN or call["function"]["name"] == "turn"
            if call["function"]["name"] == "turn":
                assert json.loads(call["function"]["arguments"]) in ({"way": "left"}, {"way": "right"})
            else:
                assert json.loads(call["function"]["arguments"]) == {}


def test_only_allowed_tools_are_called(random_model: Service) -> None:
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [TURN]}}
    for seed in range(4):
        found = ask(
            random_model, tools=SHORT, tool_choice=allowed, max_tokens=150, seed=seed, parallel_tool_calls=False
        )
        assert [call["function"]["name"] for call in found["message"]["tool_calls"]] == ["turn"]


def test_parallel_calls(random_model: Service) -> None:
    counts = {
        len(ask(random_model, tools=SHORT, tool_choice="required", max_tokens=300, seed=seed)["message"]["tool_calls"])
        for seed in range(6)
    }
    assert max(counts) > 1


def test_nothing_is_flushed_inside_a_call(random_model: Service) -> None:
    reply = random_model.client.chat.completions.create(
        model=random_model.worker.name, messages=HI, tools=SHORT, tool_choice="required", max_tokens=400, seed=2
    )
    said = (reply.model_extra or {})["ghostkv"]
    assert reply.usage is not None and reply.usage.completion_tokens > 192  # more than one segment of plain text
    assert (said["residency"], said["segments"]) == ("auto", 1)


def test_what_is_said_beside_calls_may_have_a_structure(random_model: Service) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    format_ = {"type": "json_schema", "json_schema": {"name": "said", "schema": schema}}
    kinds = set()
    for seed in range(8):
        found = ask(
            random_model,
            tools=SHORT,
            response_format=format_,
            max_tokens=150,
            seed=seed,
            parallel_tool_calls=False,
        )
        content, calls = found["message"]["content"], found["message"]["tool_calls"]
        assert (content is None) != (calls is None)
        assert content is None or json.loads(content)["a"] in (1, 2)
        kinds.add(found["finish_reason"])
    assert kinds <= {"stop", "tool_calls"}


@pytest.mark.parametrize(
    ("strict", "parameters"),
    [
        (False, {"properties": {"x": {"type": "strin"}}}),
        (True, {"properties": {"x": {"type": "array", "uniqueItems": True}}}),
        (True, {"properties": {"x": {"type": "string", "pattern": "^(?!a)"}}}),
    ],
)
def test_a_schema_that_cannot_be_enforced(random_model: Service, strict: bool, parameters: dict[str, Any]) -> None:
    tools = [SHORT[0], {"type": "function", "function": {"name": "g", "parameters": parameters, "strict": strict}}]
    error = refused(random_model, tools=tools)
    assert error["param"] == "tools"
    assert error["message"].startswith("tools[1].function.parameters: ")
    assert "%json" not in error["message"]


def test_what_a_schema_says_beyond_grammars_is_left_to_the_model_where_it_is_not_strict(random_model: Service) -> None:
    parameters = {
        "properties": {"x": {"type": "string", "pattern": "^(?!a)"}, "y": {"uniqueItems": True}},
        "minProperties": 1,
    }
    tools = [{"type": "function", "function": {"name": "g", "parameters": parameters}}]
    ask(random_model, tools=tools, tool_choice="required", max_tokens=60)


# --- what is refused ---

FUNCTION = {"type": "function", "function": {"name": "now"}}


@pytest.mark.parametrize(
    ("param", "more"),
    [
        ("tools", {"tools": "weather"}),
        ("tools", {"tools": [{}]}),
        ("tools", {"tools": [{"type": "custom", "custom": {"name": "x"}}]}),
        ("tools", {"tools": [{"type": "function"}]}),
        ("tools", {"tools": [{"type": "function", "function": {}}]}),
        ("tools", {"tools": [{"type": "function", "function": {"name": ""}}]}),
        ("tools", {"tools": [{"type": "function", "function": {"name": "a b"}}]}),
        ("tools", {"tools": [{"type": "function", "function": {"name": "a\n"}}]}),
        ("tools", {"tools": [{"type": "function", "function": {"name": "a" * 65}}]}),
        ("tools", {"tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]}),
        ("tools", {"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "string"}}}]}),
        ("tools", {"tools": [{"type": "function", "function": {"name": "a", "colour": 1}}]}),
        ("tools", {"tools": [FUNCTION, FUNCTION]}),
        ("tools", {"tools": [{"type": "function", "function": {"name": f"f{i}"}} for i in range(129)]}),
        ("tool_choice", {"tool_choice": "always"}),
        ("tool_choice", {"tool_choice": 3}),
        ("tool_choice", {"tool_choice": {"type": "custom", "custom": {"name": "x"}}}),
        ("tool_choice", {"tool_choice": {"type": "function", "function": {"name": "absent"}}}),
        ("tool_choice", {"tool_choice": {"type": "function"}}),
        ("tool_choice", {"tools": [], "tool_choice": "required"}),
        ("tool_choice", {"tools": None, "tool_choice": FUNCTION}),
        (
            "tool_choice",
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "absent"}}]},
                }
            },
        ),
        ("parallel_tool_calls", {"parallel_tool_calls": "yes"}),
        ("functions", {"functions": [WEATHER]}),
        ("function_call", {"function_call": "auto"}),
        ("tools", {"ghostkv": {"plan": "auto"}}),
    ],
)
def test_wrong_tools_are_refused_by_name(small: Service, param: str, more: dict[str, Any]) -> None:
    error = refused(small, **more)
    assert error["param"].split(".")[0] == param
    assert param in error["message"]


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "tool", "content": "x", "tool_call_id": "c1"}],
        [{"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "content": "x", "tool_call_id": "c2"}],
        [{"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "content": "x"}],
        [{"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "c1"}],
        [{"role": "assistant", "content": None}],
        [{"role": "assistant", "tool_calls": []}],
        [{"role": "user", "content": "x", "tool_calls": [CALL]}],
        [{"role": "user", "content": "x", "tool_call_id": "c1"}],
        [{"role": "function", "content": "x", "name": "now"}],
        [{"role": "assistant", "tool_calls": [{"id": "c1", "type": "custom", "custom": {"name": "x", "input": ""}}]}],
        [{"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "x"}}]}],
        [{"role": "assistant", "tool_calls": [{**CALL, "id": 3}]}],
        [{"role": "assistant", "content": "x", "function_call": {"name": "now", "arguments": ""}}],
    ],
)
def test_wrong_calls_in_messages(small: Service, messages: list[Any]) -> None:
    error = refused(small, messages=[*HI, *messages])
    assert error["param"] in ("messages", "function_call")


def test_names_and_calls_of_any_kind_are_taken(small: Service) -> None:
    calls = [CALL, {"id": "c2", "index": 1, "function": {"name": "gone", "arguments": "{oops"}}]
    messages = [
        {"role": "user", "content": "x", "name": "me"},
        {"role": "assistant", "content": None, "tool_calls": calls, "refusal": None, "annotations": []},
        {
            "role": "tool",
            "tool_call_id": "c2",
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": ""},
    ]
    body = {"model": "small", "messages": messages, "max_tokens": 2}
    assert small.http.post("/v1/chat/completions", json=body).status_code == 200
