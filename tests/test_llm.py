"""The library's front door, over a small random model."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ghostkv
from checkpoints import write_hf_checkpoint
from ghostkv import LLM, ConfigError, ContextLengthExceeded, EngineFault, InvalidRequest, Message, ToolCall


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf_checkpoint(tmp_path_factory.mktemp("llm") / "tiny", context=1024)


@pytest.fixture(scope="module")
def llm(path: Path) -> Iterator[LLM]:
    with LLM(str(path), kv_budget="2MiB", dtype="float32") as llm:
        yield llm


def test_generate_is_a_conversation_of_one_message(llm: LLM) -> None:
    answers = [
        llm.generate("hello", max_tokens=12, seed=1),
        llm.chat([Message("user", "hello")], max_tokens=12, seed=1),
        llm.chat([{"role": "user", "content": "hello"}], max_tokens=12, seed=1),
    ]
    assert len({answer.text for answer in answers}) == 1
    assert str(answers[0]) == answers[0].text
    assert "".join(llm.stream("hello", max_tokens=12, seed=1)) == answers[0].text
    assert answers[0].completion_tokens == len(answers[0].tokens) == 12
    assert (answers[0].finish_reason, answers[0].exact, len(answers[0].segments)) == ("length", True, 1)
    assert llm.complete("hello", max_tokens=12, seed=1).text != answers[0].text


def test_residency(llm: LLM) -> None:
    segment = llm.generate("hello", max_tokens=400, temperature=0, ignore_eos=True, residency="segment")
    default = llm.generate("hello", max_tokens=400, temperature=0, ignore_eos=True)
    full = llm.generate("hello", max_tokens=400, temperature=0, ignore_eos=True, residency="full")
    assert len(segment.segments) > 1
    assert not segment.exact
    assert (len(full.segments), full.exact) == (1, True)
    assert (default.text, default.exact, default.residency) == (full.text, True, "auto")
    again = llm.generate("hello", max_tokens=400, temperature=0, ignore_eos=True, replay=default.flushes)
    assert again.text == full.text
    first = segment.segments[0].usage.generated_tokens
    assert [token.id for token in full.tokens[:first]] == [token.id for token in segment.tokens[:first]]


def test_absent_seeds_are_drawn(llm: LLM) -> None:
    assert len({llm.generate("hello", max_tokens=16).text for _ in range(3)}) > 1


def test_closing_an_iterator_cancels(llm: LLM) -> None:
    pieces = llm.stream("hello", max_tokens=900, ignore_eos=True)
    next(pieces)
    pieces.close()  # type: ignore[attr-defined]
    assert llm.generate("hello", max_tokens=2)
    assert llm.worker.backend.stats.finished["cancelled"] == 1  # type: ignore[attr-defined]


def test_several_threads(llm: LLM) -> None:
    texts: list[str] = []
    threads = [
        threading.Thread(target=lambda: texts.append(llm.generate("hello", max_tokens=20, seed=5).text))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(texts) == 6
    assert len(set(texts)) == 1


def test_calls_and_results_are_part_of_a_conversation(llm: LLM) -> None:
    call = ToolCall("c1", "now", "{}")
    mappings: list[dict[str, Any]] = [
        {"role": "user", "content": "When?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "12:00", "tool_call_id": "c1", "name": "now"},
    ]
    turn = llm.turn(mappings, max_tokens=1)
    assert turn.messages == (
        Message("user", "When?"),
        Message("assistant", "", tool_calls=(call,)),
        Message("tool", "12:00", tool_call_id="c1", name="now"),
    )
    assert "12:00" in llm.worker.tokenizer.decode(llm.worker.context.template(turn.messages))


def test_refusals_name_the_option(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="temperature") as error:
        llm.generate("hello", temperature=3.0)
    assert error.value.param == "temperature"
    with pytest.raises(InvalidRequest, match="empty"):
        llm.complete("")
    with pytest.raises(InvalidRequest, match="role"):
        llm.chat([{"role": "user"}])
    with pytest.raises(InvalidRequest, match="ToolCall"):
        llm.chat([{"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}])
    with pytest.raises(ContextLengthExceeded, match="1024"):
        llm.generate("hello", max_tokens=1020, residency="full")
    with pytest.raises(TypeError):
        llm.generate("hello", colour="red")  # type: ignore[call-arg]


def test_settings_that_cannot_work(path: Path) -> None:
    with pytest.raises(ConfigError, match="not a size"):
        LLM(str(path), kv_budget="much")
    with pytest.raises(ConfigError, match="residency 'auto' needs at least"):
        LLM(str(path), kv_budget="64KiB")
    with pytest.raises(ConfigError, match="threads"):
        LLM(str(path), threads=-1)


def test_after_close(path: Path) -> None:
    llm = LLM(str(path), kv_budget="2MiB", dtype="float32")
    llm.close()
    llm.close()
    with pytest.raises(EngineFault, match="closed"):
        llm.generate("hello", max_tokens=2)


def test_closing_ends_what_runs(path: Path) -> None:
    llm = LLM(str(path), kv_budget="2MiB", dtype="float32")
    ends: list[object] = []

    def ask() -> None:
        try:
            ends.append(llm.generate("hello", max_tokens=100_000, ignore_eos=True))
        except EngineFault as error:
            ends.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    llm.close()
    for thread in threads:
        thread.join(10)
    assert [type(end) for end in ends] == [EngineFault] * 4


def test_public_surface() -> None:
    assert len(ghostkv.__all__) <= 15
    assert all(getattr(ghostkv, name) is not None for name in ghostkv.__all__)
    assert set(ghostkv.__all__) <= set(dir(ghostkv))
    with pytest.raises(AttributeError):
        _ = ghostkv.nothing


def test_importing_the_package_or_the_command_line_is_light() -> None:
    heavy = ("torch", "numba", "fastapi", "matplotlib")
    code = f"import sys, ghostkv, ghostkv.cli; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


INTERRUPTED = """
import signal, sys
from ghostkv import LLM

signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background inherits that it is ignored
with LLM(sys.argv[1], kv_budget="4MiB", dtype="float32") as llm:
    try:
        for event in llm.events(llm.turn("Count: ", max_tokens=100_000, ignore_eos=True, seed=1)):
            print("begun", flush=True)
    except KeyboardInterrupt:
        print("interrupted", llm.generate("Count: ", max_tokens=3, ignore_eos=True).completion_tokens)
        print(llm.worker.backend.stats.finished["cancelled"])
"""


def test_an_interrupt_ends_the_answer_and_nothing_else(small_hf: Path) -> None:
    """In a process of its own, as a user's: what a test runner has loaded may swallow the interrupt."""
    program = [sys.executable, "-c", INTERRUPTED, str(small_hf)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        said = process.stdout.read()
    assert process.returncode == 0
    assert [line for line in said.splitlines() if line != "begun"] == ["interrupted 3", "1"]


def test_an_answer_matches_its_grammar(llm: LLM) -> None:
    grammar = llm.grammars.regex("(yes|no), [0-9]{2}")
    answers = [llm.generate("well?", grammar=grammar, max_tokens=20, seed=seed) for seed in range(3)]
    assert all(re.fullmatch("(yes|no), [0-9]{2}", answer.text) for answer in answers)
    assert {answer.finish_reason for answer in answers} == {"stop"}
    with pytest.raises(InvalidRequest, match="at most"):
        llm.generate("well?", grammar=grammar, max_tokens=2000)
