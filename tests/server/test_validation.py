"""What is wrong with a request is said by field, with a 4xx, at once, and harms nobody."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from ghostkv.server.schema import UNSUPPORTED
from services import Service

HI = [{"role": "user", "content": "hi"}]
CHAT: dict[str, Any] = {"model": "small", "messages": HI, "max_tokens": 2}
COMPLETION: dict[str, Any] = {"model": "small", "prompt": "hi", "max_tokens": 2}


def refused(service: Service, path: str, body: dict[str, Any], status: int = 400) -> dict[str, Any]:
    """The error object, for which stream must make no difference."""
    replies = [service.http.post(path, json=body | {"stream": stream}) for stream in (False, True)]
    for reply in replies:
        assert reply.status_code == status, reply.text
        assert reply.headers["content-type"] == "application/json"
        assert reply.headers["x-request-id"]
    error = replies[0].json()["error"]
    assert replies[1].json()["error"] == error
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    alive = service.http.post("/v1/completions", json=COMPLETION)
    assert alive.status_code == 200
    return dict(error)


@pytest.mark.parametrize(
    "messages",
    [
        [],
        "hi",
        [{}],
        [{"role": "king", "content": "x"}],
        None,
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": 3}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": "x", "colour": "red"}],
        [{"role": "tool", "content": "x"}],
        ["hi"],
    ],
)
def test_wrong_messages(small: Service, messages: object) -> None:
    """D01, with the next."""
    assert refused(small, "/v1/chat/completions", CHAT | {"messages": messages})["param"] == "messages"


def test_missing_messages_and_model(small: Service) -> None:
    assert refused(small, "/v1/chat/completions", {"model": "small"})["param"] == "messages"
    assert refused(small, "/v1/chat/completions", {"messages": HI})["param"] == "model"


def test_unknown_model(small: Service) -> None:
    """D02."""
    before = small.worker.backend.stats.generated_tokens  # type: ignore[attr-defined]
    errors = [
        small.http.post("/v1/chat/completions", json=CHAT | {"model": "no-such-model"}),
        small.http.post("/v1/completions", json=COMPLETION | {"model": "no-such-model"}),
        small.http.get("/v1/models/no-such-model"),
    ]
    for reply in errors:
        assert reply.status_code == 404
        assert reply.json()["error"]["code"] == "model_not_found"
        assert "'small'" in reply.json()["error"]["message"]
    assert small.worker.backend.stats.generated_tokens == before  # type: ignore[attr-defined]
    with pytest.raises(openai.NotFoundError):
        small.client.models.retrieve("no-such-model")


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"small","prompt":"ab\xc3"}',
        '{"model":"small","prompt":"中文"}'.encode("gbk"),
        b"",
        b"{",
        b"null",
        b"[" * 100_000,
        b'{"model":"small","prompt":"\\ud800"}',
        b'{"model":"small","prompt":"a","temperature":NaN}',
        b'{"model":"small","prompt":"a","max_tokens":' + b"9" * 5000 + b"}",
    ],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_broken_bodies(small: Service, path: str, body: bytes) -> None:
    """D03, with the next."""
    reply = small.http.post(path, content=body, headers={"content-type": "application/json"})
    assert reply.status_code == 400
    assert reply.json()["error"]["message"]
    assert small.http.get("/health").status_code == 200


def test_content_type_does_not_matter(small: Service) -> None:
    body = b'{"model":"small","prompt":"hi","max_tokens":1}'
    reply = small.http.post("/v1/completions", content=body, headers={"content-type": "text/plain"})
    assert reply.status_code == 200


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 2.5),
        ("max_tokens", True),
        ("max_tokens", "5"),
        ("max_tokens", 2001),  # max_session_tokens is 2,000 here
        ("min_tokens", -1),
        ("min_tokens", 3),
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("min_p", 1.5),
        ("n", 0),
        ("n", 129),
        ("seed", 2**63),
        ("seed", 1.5),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -2.5),
        ("repetition_penalty", 0),
        ("repetition_penalty", 1e-30),
        ("logit_bias", {"a": 1}),
        ("logit_bias", {"999999": 1}),
        ("logit_bias", {"5": 101}),
        ("logit_bias", {"5": "x"}),
        ("logit_bias", [1]),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", ["x"] * 17),
        ("stop", "x" * 1001),
        ("stop", 5),
        ("stop_token_ids", [999_999]),
        ("stop_token_ids", [-1]),
        ("stream_options", {"include_usage": 3}),
        ("stream_options", {"colour": True}),
        ("ghostkv", {"residency": "mine"}),
        ("ghostkv", {"colour": "red"}),
        ("ghostkv", "segment"),
        ("ignore_eos", "yes"),
        ("colour", "red"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_values_out_of_range_name_their_field(small: Service, path: str, field: str, value: object) -> None:
    body = (COMPLETION if path == "/v1/completions" else CHAT) | {field: value}
    if field == "stream_options":
        reply = small.http.post(path, json=body | {"stream": True})
        assert reply.status_code == 400
        assert reply.json()["error"]["param"].startswith(field)
        return
    error = refused(small, path, body)
    assert error["param"].split(".")[0] == field
    assert field in error["message"] or error["param"].startswith("ghostkv") or field == "stop"


@pytest.mark.parametrize("field", sorted(UNSUPPORTED))
def test_unsupported_fields_are_refused_by_name_unless_they_ask_for_nothing(small: Service, field: str) -> None:
    error = refused(small, "/v1/chat/completions", CHAT | {field: {"something": "else"}})
    assert (error["code"], error["param"]) == ("unsupported", field)
    assert field in error["message"]
    nothings: list[object] = [None, False, [], ""] if field == "web_search_options" else [None, False, [], {}, ""]
    for nothing in nothings:
        assert small.http.post("/v1/chat/completions", json=CHAT | {field: nothing}).status_code == 200


def test_neutral_values_and_fields_without_effect_are_accepted(small: Service) -> None:
    neutral = {
        "response_format": {"type": "text"},
        "tool_choice": "none",
        "modalities": ["text"],
        "user": "me",
        "metadata": {"a": "b"},
        "store": True,
        "service_tier": "auto",
        "parallel_tool_calls": True,
    }
    assert small.http.post("/v1/chat/completions", json=CHAT | neutral).status_code == 200


def test_null_means_absent(small: Service) -> None:
    """Every optional field, sent as null, gives the reply of a request without it."""
    from ghostkv.server.completion_schema import CompletionRequest
    from ghostkv.server.schema import ChatRequest

    for path, body, schema, required in (
        ("/v1/chat/completions", CHAT, ChatRequest, {"model", "messages"}),
        ("/v1/completions", COMPLETION, CompletionRequest, {"model", "prompt"}),
    ):
        plain = body | {"temperature": 0}
        nulls = dict.fromkeys(set(schema.model_fields) - required - set(plain))
        replies = [small.http.post(path, json=sent).json() for sent in (plain, plain | nulls)]
        assert replies[0]["choices"] == replies[1]["choices"]


@pytest.mark.parametrize("prompt", [[], "", [[]], 3, {}, [1, "a"], [True], [-1], [10**6], [2**70], None, [["a"]]])
def test_wrong_prompts(small: Service, prompt: object) -> None:
    assert refused(small, "/v1/completions", COMPLETION | {"prompt": prompt})["param"] == "prompt"


def test_too_many_answers(small: Service) -> None:
    assert refused(small, "/v1/completions", COMPLETION | {"prompt": ["a"] * 65, "n": 2})["param"] == "prompt"


def test_stream_options_need_a_stream(small: Service) -> None:
    reply = small.http.post("/v1/completions", json=COMPLETION | {"stream_options": {"include_usage": True}})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "stream_options")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nope", 404), ("POST", "/v1/nope", 404), ("GET", "/v1/completions", 405), ("DELETE", "/v1/models", 405)],
)
def test_unknown_routes_answer_in_the_same_shape(small: Service, method: str, path: str, status: int) -> None:
    reply = small.http.request(method, path)
    assert reply.status_code == status
    assert set(reply.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"abc-123", "abc-123"),
        (b"x" * 500, "x" * 128),
        (b"a\xc3\xa9b\x01c", "abc"),
        (b"\xff\xfe", None),
        (None, None),
    ],
)
def test_request_ids(small: Service, sent: bytes | None, expected: str | None) -> None:
    from starlette.types import Message, Receive, Scope, Send

    from ghostkv.server.intake import RequestIds

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    messages: list[Message] = []

    async def send(message: Message) -> None:
        messages.append(message)

    async def receive() -> Message:
        raise AssertionError

    import asyncio

    headers = [] if sent is None else [(b"x-request-id", sent)]
    asyncio.run(RequestIds(app)({"type": "http", "headers": headers}, receive, send))
    [(name, value)] = messages[0]["headers"]
    assert name == b"x-request-id"
    assert value.decode() == expected if expected is not None else len(value) == 32
    if sent in (b"abc-123", None):
        reply = small.http.get("/health", headers={"x-request-id": "abc-123"} if sent else {})
        assert reply.headers["x-request-id"] == (expected or reply.headers["x-request-id"])


@pytest.mark.parametrize(("field", "value"), [("seed", 10**400), ("top_k", 10**400), ("best_of", True)])
def test_numbers_that_nobody_can_mean(small: Service, field: str, value: object) -> None:
    error = refused(small, "/v1/completions", COMPLETION | {field: value})
    assert error["param"] == field and len(error["message"]) < 300


def test_a_text_far_too_long_is_refused_without_tokenising_it(small: Service) -> None:
    text = "hello " * 500_000
    for path, body in (
        ("/v1/completions", COMPLETION | {"prompt": text}),
        ("/v1/chat/completions", CHAT | {"messages": [{"role": "user", "content": text}], "n": 8}),
    ):
        assert refused(small, path, body)["code"] == "context_length_exceeded"
