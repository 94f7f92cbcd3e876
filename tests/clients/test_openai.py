"""The official client over a real model: both of its kinds, streams, parsed structures, calls; and what it raises."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

import openai
import pytest
from pydantic import BaseModel, Field

from services import Service

ASK: list[Any] = [{"role": "user", "content": "Name a moon of Jupiter."}]
GREEDY: dict[str, Any] = {"model": "smollm2", "messages": ASK, "temperature": 0.0, "max_tokens": 12}


class Moon(BaseModel):
    """A moon."""

    name: Annotated[str, Field(max_length=12)]
    size: Literal["small", "large"]


def test_a_stream_says_what_the_whole_reply_says_to_both_kinds_of_client(real: Service) -> None:
    whole = real.client.chat.completions.create(**GREEDY)
    text = whole.choices[0].message.content
    chunks = list(real.client.chat.completions.create(**GREEDY, stream=True, stream_options={"include_usage": True}))
    assert text and "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    assert whole.usage is not None and chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 12

    async def asynchronously() -> tuple[str | None, str]:
        async with openai.AsyncOpenAI(base_url=f"{real.url}/v1", api_key="none", max_retries=0) as client:
            again, stream = await asyncio.gather(
                client.chat.completions.create(**GREEDY), client.chat.completions.create(**GREEDY, stream=True)
            )
            pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
        return again.choices[0].message.content, "".join(pieces)

    assert asyncio.run(asynchronously()) == (text, text)


def test_other_endpoints(real: Service) -> None:
    assert [model.id for model in real.client.models.list()] == ["smollm2"]
    completion = real.client.completions.create(model="smollm2", prompt="One, two,", max_tokens=4, temperature=0.0)
    assert "three" in completion.choices[0].text
    response = real.client.responses.create(model="smollm2", input="Say hello.", max_output_tokens=16, temperature=0.0)
    with real.client.responses.stream(
        model="smollm2", input="Say hello.", max_output_tokens=16, temperature=0.0
    ) as stream:
        pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
    assert "".join(pieces) == response.output_text != ""


def test_parsed_models_and_calls(real: Service) -> None:
    parsed = real.client.chat.completions.parse(
        model="smollm2", messages=ASK, response_format=Moon, temperature=0.0, max_tokens=80
    )
    assert isinstance(parsed.choices[0].message.parsed, Moon)
    called = real.client.chat.completions.parse(
        model="smollm2",
        messages=ASK,
        tools=[openai.pydantic_function_tool(Moon)],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0.0,
        max_tokens=120,
    )
    calls = called.choices[0].message.tool_calls
    assert calls and isinstance(calls[0].function.parsed_arguments, Moon)


KINDS = [
    ("known", openai.BadRequestError, 400, "context_length_exceeded"),
    ("busy", openai.RateLimitError, 429, "rate_limit_exceeded"),
    ("unknown", openai.AuthenticationError, 401, "invalid_api_key"),
]


@pytest.mark.parametrize(("key", "kind", "status", "code"), KINDS)
@pytest.mark.parametrize("stream", [False, True])
def test_refusals_have_types_of_their_own(
    refusing: Any, key: str, kind: type[openai.APIStatusError], status: int, code: str, stream: bool
) -> None:
    content = refusing.too_long if key == "known" else "Hi"
    body: dict[str, Any] = {"model": "scripted", "messages": [{"role": "user", "content": content}], "stream": stream}
    options: dict[str, Any] = {"base_url": refusing.url, "api_key": getattr(refusing, key), "max_retries": 0}
    with openai.OpenAI(**options) as client, pytest.raises(kind) as found:
        client.chat.completions.create(**body)
    assert (found.value.status_code, found.value.code) == (status, code)
    if status == 401:  # the words by which litellm 1.81 knows what it is
        assert "Incorrect API key provided" in found.value.message

    async def asynchronously() -> None:
        async with openai.AsyncOpenAI(**options) as client:
            await client.chat.completions.create(**body)

    with pytest.raises(kind):
        asyncio.run(asynchronously())


def test_a_refusal_for_a_while_is_tried_again(refusing: Any) -> None:
    """The client waits as long as Retry-After says, twice, and gives up."""
    tries = []
    with openai.OpenAI(base_url=refusing.url, api_key=refusing.busy, max_retries=2) as client:
        client._client.event_hooks["response"].append(lambda reply: tries.append(reply.headers["retry-after"]))
        with pytest.raises(openai.RateLimitError):
            client.chat.completions.create(model="scripted", messages=ASK)
    assert tries == ["1", "1", "1"]
