"""`llm`, the command line tool and its library: the server as one of its extra OpenAI models."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llm
import openai
import pytest
import yaml

from services import Service

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # the client leaves its sockets open

Home = Callable[..., Path]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Makes a user directory that knows one model, `ghost`."""

    def make(url: str, model: str, key: str = "", **more: Any) -> Path:
        entry = {"model_id": "ghost", "model_name": model, "api_base": url, **more}
        if key:
            entry["api_key_name"] = "ghost"
            (tmp_path / "keys.json").write_text(json.dumps({"ghost": key}), encoding="utf-8")
        (tmp_path / "extra-openai-models.yaml").write_text(yaml.safe_dump([entry]), encoding="utf-8")
        monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
        return tmp_path

    return make


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`llm ARGUMENTS` with the user directory of `home`."""
    return subprocess.run(
        [sys.executable, "-m", "llm", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ,
        stdin=subprocess.DEVNULL,
    )


def test_the_command_goes_on_with_a_conversation(desk: Service, home: Home) -> None:
    home(f"{desk.url}/v1", "scripted")
    first = command("prompt", "-m", "ghost", "-s", "Be brief.", "Hi")
    assert (first.returncode, first.stdout, first.stderr) == (0, "I have read 1 of your messages.\n", "")
    second = command("prompt", "--continue", "--no-stream", "And now?")
    assert (second.returncode, second.stdout) == (0, "I have read 2 of your messages.\n")


def test_the_library_streams_and_converses(desk: Service, home: Home, runner: asyncio.Runner) -> None:
    home(f"{desk.url}/v1", "scripted")
    conversation = llm.get_model("ghost").conversation()
    pieces = list(conversation.prompt("Hi"))
    assert len(pieces) > 5 and "".join(pieces) == "I have read 1 of your messages."
    again = conversation.prompt("And now?", stream=False)
    assert again.text() == "I have read 2 of your messages."
    assert (again.usage().output or 0) > 20

    async def asynchronously() -> str:
        return str(await llm.get_async_model("ghost").prompt("Hi").text())

    assert runner.run(asynchronously()) == "I have read 1 of your messages."


def test_tools(desk: Service, home: Home) -> None:
    home(f"{desk.url}/v1", "scripted", supports_tools=True)

    def weather(city: str) -> str:
        """The weather of a city."""
        return f"-4 C in {city}"

    chain = llm.get_model("ghost").chain("How is it in Oslo?", tools=[weather])
    assert chain.text() == "It is -4 C in Oslo."


def test_a_schema_of_a_real_model(real: Service, home: Home) -> None:
    home(f"{real.url}/v1", "smollm2", supports_schema=True)
    reply = llm.get_model("ghost").prompt(
        "Is the sky blue?",
        schema={"type": "object", "properties": {"blue": {"type": "boolean"}}, "required": ["blue"]}
        | {"additionalProperties": False},
        temperature=0.0,
        max_tokens=60,
    )
    assert set(json.loads(reply.text())) == {"blue"}


KINDS = [
    ("known", openai.BadRequestError, "context_length_exceeded"),
    ("busy", openai.RateLimitError, "rate_limit_exceeded"),
    ("unknown", openai.AuthenticationError, "invalid_api_key"),
]


@pytest.mark.parametrize(("key", "kind", "code"), KINDS)
def test_refusals(refusing: Any, home: Home, key: str, kind: type[openai.APIStatusError], code: str) -> None:
    """The library raises openai's types; it retries what is refused for a while, twice, after the given second."""
    home(refusing.url, "scripted", getattr(refusing, key))
    with pytest.raises(kind) as found:
        llm.get_model("ghost").prompt(refusing.too_long if key == "known" else "Hi").text()
    assert found.value.code == code


def test_the_command_says_why(refusing: Any, home: Home) -> None:
    home(refusing.url, "scripted", refusing.known)
    refused = command("prompt", "-m", "ghost", refusing.too_long)
    assert refused.returncode == 1
    assert refused.stderr.startswith("Error: ") and "context_length_exceeded" in refused.stderr
