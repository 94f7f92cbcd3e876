"""Questions that are too long for the context: refused, or condensed where the client asks for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from continuity import FILLER, Recording, started, turn
from ghostkv.errors import ContextLengthExceeded, InvalidRequest
from ghostkv.request import Message
from ghostkv.session.turn import Event, Finished, LongPrompt, Turn
from ghostkv.session.worker import Worker
from services import TEMPLATE, TOKENIZER, serving

BEGINNING = "Read this report with care and answer the question at its end."
BURIED = "The access code of the Halcyon is QX-4471."
REPORT = " ".join(f"On watch {i} nothing was seen but rain and a grey sea." for i in range(40))
ENDING = "What is the access code of the Halcyon?"
LONG = Message("user", f"{BEGINNING} {REPORT} {BURIED} {REPORT} {ENDING}")
SYSTEM = Message("system", "Answer in one sentence.")


def run(worker: Worker, asked: Turn) -> list[Event]:
    async def collect() -> list[Event]:
        return [event async for event in worker.run(worker.checked(asked))]

    return asyncio.run(collect())


@pytest.fixture
def condensing() -> Any:
    worker, backend = started()
    yield worker, backend
    worker.close()


def test_a_long_question_is_condensed(condensing: tuple[Worker, Recording]) -> None:
    worker, backend = condensing
    asked = turn((SYSTEM, LONG), max_tokens=200, long_prompt=LongPrompt.CONDENSE)
    end = run(worker, asked)[-1]
    assert isinstance(end, Finished)
    assert end.condensed_tokens > end.prompt_tokens - 350 and end.unseen_tokens >= end.condensed_tokens
    assert end.prompt_tokens == len(TEMPLATE.render_ids((SYSTEM, LONG))) and not end.exact
    assert len(backend.requests) >= 2
    for prompt in map(TOKENIZER.decode, backend.prompts()):
        assert "Answer in one sentence." in prompt and BEGINNING in prompt and ENDING in prompt
        assert prompt.count("nothing was seen") < 8
        assert BURIED in prompt


def test_a_long_question_is_refused_unless_the_client_lets_it_be_condensed(
    condensing: tuple[Worker, Recording],
) -> None:
    worker, backend = condensing
    with pytest.raises(ContextLengthExceeded):
        run(worker, turn((SYSTEM, LONG)))
    with pytest.raises(ContextLengthExceeded):
        run(worker, turn((SYSTEM, LONG), residency="full", long_prompt=LongPrompt.CONDENSE))
    with pytest.raises(InvalidRequest, match=r"long_prompt.*raw prompt"):
        run(worker, turn((), prompt=TOKENIZER.encode(LONG.content), long_prompt=LongPrompt.CONDENSE))
    assert backend.requests == []


def test_a_question_that_fits_is_not_condensed(condensing: tuple[Worker, Recording]) -> None:
    worker, backend = condensing
    short = Message("user", f"{BEGINNING} {BURIED} {FILLER * 6} {ENDING}")
    end = run(worker, turn((SYSTEM, short), max_tokens=20, long_prompt=LongPrompt.CONDENSE))[-1]
    assert isinstance(end, Finished) and end.condensed_tokens == 0 and end.exact
    assert backend.prompts() == [tuple(TEMPLATE.render_ids((SYSTEM, short)))]


def test_long_questions_over_http() -> None:
    worker, backend = started()
    messages = [{"role": "system", "content": SYSTEM.content}, {"role": "user", "content": LONG.content}]
    body: dict[str, Any] = {"model": "scripted", "messages": messages, "max_tokens": 200}

    with serving(worker) as service:

        def refused(path: str, **more: Any) -> dict[str, Any]:
            reply = service.http.post(path, json=body | more)
            assert reply.status_code == 400, reply.text
            return dict(reply.json()["error"])

        assert refused("/v1/chat/completions")["code"] == "context_length_exceeded"
        both = {"residency": "full", "long_prompt": "condense"}
        assert refused("/v1/chat/completions", ghostkv=both)["code"] == "context_length_exceeded"
        del body["messages"]
        raw = refused("/v1/completions", prompt=LONG.content, ghostkv={"long_prompt": "condense"})
        assert raw["param"] == "ghostkv.long_prompt"
        assert backend.requests == []

        body["messages"] = messages
        reply = service.http.post("/v1/chat/completions", json=body | {"ghostkv": {"long_prompt": "condense"}}).json()
    assert reply["ghostkv"]["exact"] is False
    assert reply["ghostkv"]["condensed_tokens"] > 0
    assert all(BURIED in TOKENIZER.decode(prompt) for prompt in backend.prompts())
