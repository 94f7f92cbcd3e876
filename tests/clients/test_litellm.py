"""litellm's SDK, the server as an OpenAI-compatible provider: whole, streamed, tools, schemas; and what it raises."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from services import Service

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # it leaves its sockets open
    pytest.mark.filterwarnings("ignore::UserWarning"),  # pydantic's, about its own types
]

HI: list[Any] = [{"role": "user", "content": "Hi"}]
READ = "I have read 1 of your messages."
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


class Ship(BaseModel):
    """A ship."""

    name: Annotated[str, Field(max_length=8)]
    masts: Literal[1, 2, 3]


@pytest.fixture(scope="module")
def litellm() -> Iterator[Any]:
    """Imported late: it would fetch a list of prices from the network, and takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        module = importlib.import_module("litellm")
    yield module
    module.in_memory_llm_clients_cache.flush_cache()  # else its sockets stay open to the end of the process


def at(service: Service, **more: Any) -> dict[str, Any]:
    name = service.worker.name
    return {"model": f"openai/{name}", "api_base": f"{service.url}/v1", "api_key": "none", "max_retries": 0, **more}


def test_whole_and_streamed(litellm: Any, desk: Service) -> None:
    whole = litellm.completion(**at(desk), messages=HI)
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == (READ, "stop")
    assert whole.usage.completion_tokens > 20
    chunks = list(litellm.completion(**at(desk), messages=HI, stream=True, stream_options={"include_usage": True}))
    built = litellm.stream_chunk_builder(chunks, messages=HI)
    assert built.choices[0].message.content == READ
    assert built.usage.prompt_tokens == whole.usage.prompt_tokens


def test_asynchronously(litellm: Any, desk: Service, runner: asyncio.Runner) -> None:
    async def ask() -> tuple[str, str]:
        whole, stream = await asyncio.gather(
            litellm.acompletion(**at(desk), messages=HI), litellm.acompletion(**at(desk), messages=HI, stream=True)
        )
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
        return whole.choices[0].message.content, "".join(pieces)

    assert runner.run(ask()) == (READ, READ)


@pytest.mark.parametrize("stream", [False, True])
def test_tools(litellm: Any, desk: Service, stream: bool) -> None:
    asked = [{"role": "user", "content": "How is it in Oslo?"}]
    reply = litellm.completion(**at(desk), messages=asked, tools=[WEATHER], stream=stream)
    if stream:
        reply = litellm.stream_chunk_builder(list(reply), messages=asked)
    message = reply.choices[0].message
    (call,) = message.tool_calls
    assert (reply.choices[0].finish_reason, call.function.name) == ("tool_calls", "weather")
    assert json.loads(call.function.arguments) == {"city": "Oslo"}
    result = {"role": "tool", "tool_call_id": call.id, "content": "-4 C"}
    again = litellm.completion(**at(desk), messages=[*asked, message, result], tools=[WEATHER])
    assert again.choices[0].message.content == "It is -4 C in Oslo."


def test_a_completion_and_a_schema_of_a_real_model(litellm: Any, real: Service) -> None:
    text = litellm.text_completion(
        **at(real) | {"model": "text-completion-openai/smollm2"}, prompt="One, two,", max_tokens=4, temperature=0.0
    )
    assert "three" in text.choices[0].text
    asked = [{"role": "user", "content": "Describe a ship."}]
    reply = litellm.completion(**at(real), messages=asked, response_format=Ship, temperature=0.0, max_tokens=80)
    assert isinstance(Ship.model_validate_json(reply.choices[0].message.content), Ship)


@pytest.mark.parametrize(
    ("key", "kind"),
    [("known", "ContextWindowExceededError"), ("busy", "RateLimitError"), ("unknown", "AuthenticationError")],
)
@pytest.mark.parametrize("stream", [False, True])
def test_refusals_have_types_of_their_own(
    litellm: Any, refusing: Any, runner: asyncio.Runner, key: str, kind: str, stream: bool
) -> None:
    content = refusing.too_long if key == "known" else "Hi"
    body = {
        "model": "openai/scripted",
        "api_base": refusing.url,
        "api_key": getattr(refusing, key),
        "messages": [{"role": "user", "content": content}],
        "max_retries": 0,
        "stream": stream,
    }
    with pytest.raises(getattr(litellm, kind)):
        litellm.completion(**body)

    async def asynchronously() -> None:
        await litellm.acompletion(**body)

    with pytest.raises(getattr(litellm, kind)):
        runner.run(asynchronously())
