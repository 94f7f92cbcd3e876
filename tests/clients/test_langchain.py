"""langchain-openai's ChatOpenAI: invoke, stream, batch, tools, structured output, both ways; and what it raises."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

import openai
import pytest
from langchain_core.exceptions import (
    ContextOverflowError,
    ModelAuthenticationError,
    ModelRateLimitError,
)
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field, SecretStr

from services import Service

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # the client leaves its sockets open


class Ship(BaseModel):
    """A ship."""

    name: Annotated[str, Field(max_length=8)]
    masts: Literal[1, 2, 3]


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"-4 C in {city}"


def chat(service: Service, **options: Any) -> ChatOpenAI:
    name = service.worker.name
    return ChatOpenAI(model=name, base_url=f"{service.url}/v1", api_key=SecretStr("none"), max_retries=0, **options)


def test_a_conversation(desk: Service) -> None:
    model = chat(desk)
    history: list[Any] = [SystemMessage("Be brief."), HumanMessage("Hi")]
    first = model.invoke(history)
    assert first.content == "I have read 1 of your messages."
    assert first.response_metadata["finish_reason"] == "stop"
    assert first.usage_metadata is not None and first.usage_metadata["output_tokens"] > 20
    second = model.invoke([*history, first, HumanMessage("And now?")])
    assert second.content == "I have read 2 of your messages."


def test_streams(desk: Service) -> None:
    pieces = list(chat(desk, stream_usage=True).stream("Hi"))
    assert len(pieces) > 5
    whole = pieces[0]
    for piece in pieces[1:]:
        whole = whole + piece
    assert whole.content == "I have read 1 of your messages."
    assert whole.usage_metadata is not None and whole.usage_metadata["input_tokens"] > 0


def test_asynchronously(desk: Service, runner: asyncio.Runner) -> None:
    async def ask() -> tuple[list[Any], list[Any]]:
        model = chat(desk)
        return await model.abatch(["Hi", "Ho"]), [piece.content async for piece in model.astream("Hi")]

    replies, pieces = runner.run(ask())
    assert {reply.content for reply in replies} == {"".join(pieces)} == {"I have read 1 of your messages."}


@pytest.mark.parametrize("stream", [False, True])
def test_bound_tools(desk: Service, stream: bool) -> None:
    model = chat(desk).bind_tools([weather])
    asked = HumanMessage("How is it in Oslo?")
    called: Any = None
    if stream:
        for piece in model.stream([asked]):
            called = piece if called is None else called + piece
    else:
        called = model.invoke([asked])
    (call,) = called.tool_calls
    assert (call["name"], call["args"]) == ("weather", {"city": "Oslo"})
    made = AIMessage("", tool_calls=called.tool_calls)
    result = ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])
    assert model.invoke([asked, made, result]).content == "It is -4 C in Oslo."


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output_of_a_real_model(real: Service, method: Any) -> None:
    model = chat(real, temperature=0.0, max_tokens=100)
    found = model.with_structured_output(Ship, method=method).invoke("Describe a ship with two masts.")
    assert isinstance(found, Ship)


def test_an_object_that_is_cut_is_an_error_of_the_client(real: Service) -> None:
    model = chat(real, temperature=0.0, max_tokens=5).with_structured_output(Ship)
    with pytest.raises(openai.LengthFinishReasonError):
        model.invoke("Describe a ship.")


KINDS = [
    ("known", ContextOverflowError, openai.BadRequestError),
    ("busy", ModelRateLimitError, openai.RateLimitError),
    ("unknown", ModelAuthenticationError, openai.AuthenticationError),
]


@pytest.mark.parametrize(("key", "kind", "beneath"), KINDS)
def test_refusals_have_types_of_their_own(
    refusing: Any, runner: asyncio.Runner, key: str, kind: type[Exception], beneath: type[Exception]
) -> None:
    model = ChatOpenAI(
        model="scripted", base_url=refusing.url, api_key=SecretStr(getattr(refusing, key)), max_retries=0
    )
    content = refusing.too_long if key == "known" else "Hi"

    async def asynchronously() -> None:
        await model.ainvoke(content)

    ways = (lambda: model.invoke(content), lambda: list(model.stream(content)), lambda: runner.run(asynchronously()))
    for ask in ways:
        with pytest.raises(kind) as found:
            ask()
        assert isinstance(found.value, beneath)
