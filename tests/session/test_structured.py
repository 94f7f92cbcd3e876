"""Structured answers under residency policies: one segment, whose prompt is the policy's, reserved or refused."""

from __future__ import annotations

import ast
import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from continuity import BYTES
from fakes import Script
from ghostkv.config import EngineConfig
from ghostkv.errors import ContextLengthExceeded, DeadEnd, InvalidRequest, Unsupported
from ghostkv.launch import engine_config, open_worker
from ghostkv.request import Delta, FinishReason, Message, Sampling, SegmentRequest
from ghostkv.residency import policy
from ghostkv.session.turn import Finished, LongPrompt, Output, SegmentRecord, Turn
from ghostkv.session.worker import Worker
from services import CONTEXT, TOKENIZER, ScriptedBackend, saying, scripted_worker

GRAMMARS = TOKENIZER.grammars
QUESTION = (Message("system", "Answer in JSON."), Message("user", "Describe the ship Argos, which has 3 masts."))
EARLIER = (
    Message("user", "Which ships are in the harbour today? I counted them from the quay this morning."),
    Message("assistant", "The Argos and the Halcyon. The Argos has 3 masts and weighs 312 t. " * 4),
)
DOCUMENT = '{"ship": "Argos", "log": [' + ", ".join(f'"Day {n}. All is well."' for n in range(20)) + "]}"


class Recording(ScriptedBackend):
    def __init__(self, script: Script, blocks: int = 256) -> None:
        super().__init__(script, blocks=blocks)
        self.requests: list[SegmentRequest] = []

    def generate(self, request: SegmentRequest) -> AsyncGenerator[Delta, None]:
        self.requests.append(request)
        return super().generate(request)


def started(text: str = DOCUMENT, blocks: int = 256, **config: Any) -> tuple[Worker, Recording]:
    backend = Recording(saying(text), blocks)
    worker = scripted_worker(backend, EngineConfig(**config))
    own = replace(worker.context, policies=lambda name: BYTES if name == "segment" else policy(name))
    return replace(worker, context=own), backend


def turn(**fields: Any) -> Turn:
    plain = Turn("t", Sampling(temperature=0.0), max_tokens=500, messages=QUESTION, grammar=GRAMMARS.json_object())
    return replace(plain, **fields)


def run(worker: Worker, asked: Turn) -> tuple[str, list[SegmentRecord], Finished]:
    async def collect() -> list[Any]:
        return [event async for event in worker.run(worker.checked(asked))]

    events = asyncio.run(collect())
    text = "".join(event.text for event in events if isinstance(event, Output))
    return text, [event for event in events if isinstance(event, SegmentRecord)], events[-1]


@pytest.mark.parametrize("residency", ["segment", "full"])
def test_a_structured_answer_is_one_segment_with_all_of_it_reserved(residency: str) -> None:
    worker, backend = started()
    text, records, finished = run(worker, turn(residency=residency))
    assert text == DOCUMENT  # three caps long
    assert len(records) == 1
    assert records[0].boundary is None
    assert (finished.reason, finished.exact, finished.unseen_tokens) == (FinishReason.STOP, True, 0)
    assert backend.requests[0].residency.reserve(500) == 500
    plain, unbound, _ = run(started()[0], turn(residency=residency, grammar=None))
    assert plain == DOCUMENT
    assert (len(unbound) == 1) == (residency == "full")


@pytest.mark.parametrize("tokens", [30, 500])
def test_its_prompt_is_that_of_the_policys_first_segment(tokens: int) -> None:
    messages = (*EARLIER, *EARLIER, *EARLIER, *QUESTION[1:])
    prompts = []
    for grammar in (None, GRAMMARS.json_object()):
        worker, backend = started()
        _, _, finished = run(worker, turn(messages=messages, max_tokens=tokens, grammar=grammar))
        prompts.append(backend.requests[0].prompt)
        assert finished.unseen_tokens > 0
        assert not finished.exact
    assert prompts[0] == prompts[1]


def test_a_long_answer_takes_room_from_earlier_exchanges_as_the_context_demands() -> None:
    worker, backend = started()
    head = len(worker.context.template(QUESTION))
    most = CONTEXT - head
    run(worker, turn(messages=(*EARLIER, *QUESTION), max_tokens=most))
    assert backend.requests[0].prompt == tuple(worker.context.template(QUESTION))
    with pytest.raises(ContextLengthExceeded) as refusal:
        run(worker, turn(messages=(*EARLIER, *QUESTION), max_tokens=most + 1))
    assert refusal.value.param == "max_tokens"
    assert f"max_tokens may be at most {most}." in refusal.value.message


@pytest.mark.parametrize("residency", ["segment", "full"])
@pytest.mark.parametrize("messages", [QUESTION, (*EARLIER, *QUESTION)])
def test_what_the_pool_cannot_hold_whole_is_refused_with_the_number_that_fits(
    residency: str, messages: tuple[Message, ...]
) -> None:
    worker, backend = started(blocks=48)
    with pytest.raises(ContextLengthExceeded) as refusal:
        run(worker, turn(residency=residency, messages=messages, max_tokens=760))
    said = refusal.value.message
    assert refusal.value.param == "max_tokens"
    assert "max_tokens (760)" in said
    assert "pool holds 768 tokens" in said
    assert "maximum context length is 769 tokens" in said
    most = int(said.removesuffix(".").rpartition("at most ")[2])
    assert 100 < most < 760
    assert not backend.requests
    _, records, _ = run(worker, turn(residency=residency, messages=messages, max_tokens=most))
    assert records[0].usage.prompt_tokens + most <= 769
    if messages is QUESTION:
        assert records[0].usage.prompt_tokens + most == 769
        with pytest.raises(ContextLengthExceeded):
            run(worker, turn(residency=residency, messages=messages, max_tokens=most + 1))


@pytest.mark.parametrize("residency", ["segment", "full"])
def test_without_max_tokens_the_answer_may_have_what_fits(residency: str) -> None:
    worker, backend = started(blocks=48)
    _, _, finished = run(worker, turn(residency=residency, max_tokens=0))
    assert finished.reason is FinishReason.STOP
    assert backend.requests[0].remaining == 769 - len(worker.context.template(QUESTION))
    assert started(default_max_tokens=33)[0].checked(turn(max_tokens=0)).max_tokens == 33
    assert worker.checked(turn(max_tokens=0, grammar=None)).max_tokens > 769  # segments need no such room


def test_a_prompt_that_does_not_fit_at_all_names_the_messages() -> None:
    worker, _ = started(blocks=48)
    long = (Message("user", "x" * 900),)
    with pytest.raises(ContextLengthExceeded) as refusal:
        run(worker, turn(messages=long, max_tokens=1))
    assert refusal.value.param == "messages"
    text, _, finished = run(worker, turn(messages=long, max_tokens=8, long_prompt=LongPrompt.CONDENSE))
    assert (len(text), finished.condensed_tokens > 0) == (8, True)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"residency": "sink_window"}, "ghostkv.residency"),
        ({"plan": "auto"}, "ghostkv.plan"),
        ({"ignore_eos": True}, "ignore_eos"),
    ],
)
def test_what_cannot_go_with_a_structure_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    worker, backend = started()
    with pytest.raises(InvalidRequest) as refusal:
        worker.checked(turn(**fields))
    assert refusal.value.param == param
    assert not backend.requests


def test_a_backend_without_grammars_says_so() -> None:
    worker, backend = started()
    backend.capabilities = lambda: replace(Recording.capabilities(backend), grammar=False)  # type: ignore[method-assign]
    with pytest.raises(Unsupported, match="constrain"):
        worker.checked(turn())


def test_a_dead_end_is_an_error_that_says_where() -> None:
    worker, backend = started("xa")
    grammar = GRAMMARS.lark('start: "x" A\nA: /a+/ & ~/a+/')
    with pytest.raises(DeadEnd, match="after 1 tokens"):
        run(worker, turn(grammar=grammar))
    assert backend.engine.idle
    assert backend.pool.referenced == 0


LOG = {
    "type": "object",
    "properties": {
        "ship": {"type": "string", "maxLength": 30},
        "entries": {
            "type": "array",
            "minItems": 2,
            "maxItems": 2,
            "items": {
                "type": "object",
                "properties": {
                    "day": {"type": "integer", "minimum": 1, "maximum": 31},
                    "note": {"type": "string", "maxLength": 30},
                },
                "required": ["day", "note"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["ship", "entries"],
    "additionalProperties": False,
}
PYTHON = r"""
start: function function
function: "def " NAME "(" NAME (", " NAME){0,2} "):\n" statement "    return " expression "\n\n"
statement: "    " NAME " = " expression "\n" | "    if " expression ":\n        " NAME " = " expression "\n"
expression: term (" " OPERATOR " " term)?
term: NAME | /[1-9][0-9]{0,2}/ | "(" expression ")"
NAME: /[a-z]{1,8}_[a-z]{1,8}/
OPERATOR: "+" | "-" | "*" | "=="
"""


def test_the_real_model_writes_valid_documents_whole_or_is_refused_at_12_mib(smollm2_path: Path) -> None:
    """Point 7 in short; `benchmarks/structured.py` has 1,500 tokens and more."""
    worker = open_worker(str(smollm2_path), engine_config(kv_budget="12MiB"))
    try:
        wanted = {"json": worker.grammars.json_schema(LOG), "python": worker.grammars.lark(PYTHON)}
        asked = {
            name: turn(id=name, messages=(Message("user", f"Write {name}."),), max_tokens=160, grammar=grammar)
            for name, grammar in wanted.items()
        }

        async def both() -> list[list[Any]]:
            async def one(single: Turn) -> list[Any]:
                return [event async for event in worker.run(worker.checked(single))]

            return await asyncio.gather(*map(one, asked.values()))

        for name, events in zip(asked, asyncio.run(both()), strict=True):
            text = "".join(event.text for event in events if isinstance(event, Output))
            (record,) = [event for event in events if isinstance(event, SegmentRecord)]
            assert record.boundary is None
            assert (events[-1].reason, events[-1].exact) == (FinishReason.STOP, True)
            if name == "json":
                jsonschema_rs.validate(LOG, json.loads(text))
            else:
                assert len(ast.parse(text).body) == 2
            with pytest.raises(ContextLengthExceeded, match="KV pool holds 544 tokens"):
                run(worker, replace(asked[name], max_tokens=1500))
    finally:
        worker.close()
