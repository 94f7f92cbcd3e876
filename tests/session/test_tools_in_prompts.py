"""Tools over boundaries: what stands in every segment's prompt, what results leave behind, who else renders them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from continuity import ANSWER, started, turn
from ghostkv.errors import ContextLengthExceeded, InvalidRequest, Unsupported
from ghostkv.request import Message, Tool, ToolCall
from ghostkv.session.chain import Chain
from ghostkv.session.fleet import Fleet
from ghostkv.session.histories import Histories
from ghostkv.session.planning import check_plan
from ghostkv.session.turn import Finished, LongPrompt, Turn
from ghostkv.session.worker import Worker
from services import TOKENIZER, TOOL_TEMPLATE, ScriptedBackend, saying, scripted_worker

TOOL = Tool("log", '{"type": "function", "function": {"name": "log", "description": "Reads the log <|im_end|>"}}')
SYSTEM, ASK = Message("system", "Write in the present tense."), Message("user", "What does the log say of the habitat?")


def round_of(index: int, result: str = "All is well.") -> tuple[Message, Message]:
    call = ToolCall(f"c{index}", "log", f'{{"day": {index}}}')
    return Message("assistant", "", tool_calls=(call,)), Message("tool", f"{result} Day {index}.", tool_call_id=call.id)


def run(worker: Worker, asked: Turn) -> Finished:
    async def last() -> object:
        return [event async for event in worker.run(worker.checked(asked))][-1]

    end = asyncio.run(last())
    assert isinstance(end, Finished)
    return end


def asked_with_tools(*rounds: Message, **fields: object) -> Turn:
    return turn((SYSTEM, ASK, *rounds), tools=(TOOL,), max_tokens=600, **fields)


def test_definitions_question_and_last_result_stand_in_every_segment() -> None:
    worker, backend = started()
    asked = asked_with_tools(*round_of(1), *round_of(2), *round_of(3))
    end = run(worker, asked)
    prompts = backend.prompts()
    assert len(prompts) >= 3
    head = TOOL_TEMPLATE.render_ids((SYSTEM, ASK, *round_of(3)), (TOOL,))
    system = head[: head.index(TOKENIZER.control["<|im_end|>"]) + 1]
    for prompt in prompts:
        shown = TOKENIZER.decode(prompt)
        assert list(prompt[: len(system)]) == system
        assert shown.count(TOOL.definition) == 1
        assert ASK.content in shown and '"day": 3' in shown and "All is well. Day 3." in shown
    assert end.prompt_tokens == len(TOOL_TEMPLATE.render_ids(asked.messages, asked.tools))


def test_what_tools_returned_is_known_as_theirs() -> None:
    result = round_of(1, "The pressure of the habitat is 68.2 kPa.")
    memory = Histories().memory((ASK, *result), "", 4096)
    facts = memory.payload.payload.ledger.facts
    assert {fact.sentence.role for fact in facts if fact.value == "68.2 kPa"} == {"tool"}


def test_histories_that_differ_in_calls_fork() -> None:
    histories = Histories()
    talks = [
        (ASK, Message("assistant", "", tool_calls=calls), Message("tool", "x", tool_call_id=answered, name=name), ASK)
        for calls in ((), (ToolCall("1", "f", "{}"),), (ToolCall("1", "f", "{ }"),), (ToolCall("1", "g", "{}"),))
        for answered in ("1", "2")
        for name in ("", "f")
    ]
    memories = [histories.memory(talk, "a", 4096) for talk in talks]
    assert len({id(memory) for memory in memories}) == len(talks)
    assert all(histories.memory(talk, "a", 4096) is memory for talk, memory in zip(talks, memories, strict=True))


def test_a_long_result_is_condensed_and_not_the_question() -> None:
    worker, backend = started()
    call, _ = round_of(1)
    long = Message("tool", f"The first line. {ANSWER * 12} The last line.", tool_call_id="c1")
    asked = turn((SYSTEM, ASK, call, long), tools=(TOOL,), max_tokens=60)
    with pytest.raises(ContextLengthExceeded):
        run(worker, asked)
    end = run(worker, replace(asked, long_prompt=LongPrompt.CONDENSE))
    shown = TOKENIZER.decode(backend.prompts()[-1])
    assert all(part in shown for part in (ASK.content, TOOL.definition, "The first line.", "[...]", "The last line."))
    assert end.condensed_tokens > 1000


def test_definitions_are_part_of_the_length_that_is_checked() -> None:
    worker, _ = started()
    huge = Tool("log", TOOL.definition.replace("Reads", "Reads " * 50_000))
    with pytest.raises(ContextLengthExceeded) as refused:
        worker.checked(replace(asked_with_tools(), tools=(huge,)))
    assert refused.value.param == "messages"


def test_without_a_place_for_tools_they_are_refused() -> None:
    worker, _ = started()
    worker = replace(worker, context=replace(worker.context, tool_template=None))
    with pytest.raises(Unsupported) as refused:
        worker.checked(asked_with_tools())
    assert refused.value.param == "tools"
    worker.checked(replace(asked_with_tools(), tools=()))


def test_a_plan_calls_no_tools() -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_plan(asked_with_tools(plan="auto"))
    assert refused.value.param == "tools"


def test_another_worker_renders_tools_with_its_own_template() -> None:
    own, _ = started()
    other = scripted_worker(ScriptedBackend(saying("")))
    seen = []

    def rendering(messages: object, tools: tuple[Tool, ...]) -> list[int]:
        seen.append(tools)
        return [1, 2, 3]

    other = replace(other, context=replace(other.context, tool_template=rendering), template="another")
    fleet = Fleet.of([own, other])
    assert isinstance(fleet, Fleet)
    first, second = fleet.stations
    chain = Chain.of(asked_with_tools(), second.context, second.backend.capabilities())
    assert chain.prompt == (1, 2, 3) and seen == [(TOOL,)]
    assert Chain.of(asked_with_tools(), first.context, first.backend.capabilities()).prompt != (1, 2, 3)
