"""Prompts are a function of the messages: on a warm and on a fresh server, after an edit, on any machine."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from continuity import started, turn
from ghostkv.request import Message
from ghostkv.session.worker import Worker
from services import TOKENIZER, serving


def user(number: int, code: str = "AX") -> Message:
    return Message(
        "user", f"Unit {number} has the code {code}-{number}00. What do you know of unit {max(1, number - 2)}?"
    )


QUESTIONS = [user(number) for number in range(1, 7)]
EDITED = [*QUESTIONS[:2], user(3, "BX"), *QUESTIONS[3:]]


async def talk(worker: Worker, questions: Sequence[Message], tenant: str = "a") -> list[Message]:
    """Ask one question after the other, sending the whole conversation each time."""
    messages: list[Message] = []
    for number, question in enumerate(questions):
        messages.append(question)
        text = ""
        async for event in worker.run(worker.checked(turn(messages, id=f"{tenant}{number}", tenant=tenant))):
            text += getattr(event, "text", "")
        messages.append(Message("assistant", text))
    return messages


def test_an_edited_conversation_has_the_same_prompts_on_a_warm_and_on_a_fresh_server() -> None:
    async def prompts(*before: tuple[Sequence[Message], str]) -> list[tuple[int, ...]]:
        worker, backend = started()
        try:
            for questions, tenant in before:
                await talk(worker, questions, tenant)
            seen = len(backend.requests)
            await talk(worker, EDITED)
            return backend.prompts(seen)
        finally:
            worker.close()

    fresh = asyncio.run(prompts())
    others = [user(number, "ZZ") for number in range(1, 7)]
    assert asyncio.run(prompts((QUESTIONS, "a"), (others, "b"))) == fresh
    assert len(fresh) >= 2 * len(EDITED)
    texts = [TOKENIZER.decode(ids) for ids in fresh]
    asking = next(text for text in texts if "What do you know of unit 3?" in text)
    assert "BX-300" in asking and "AX-300" not in "".join(texts)


def test_an_edited_conversation_over_http() -> None:
    def ask(service: Any, questions: Sequence[Message]) -> None:
        messages: list[dict[str, str]] = []
        for question in questions:
            messages.append({"role": "user", "content": question.content})
            body = {"model": "scripted", "messages": messages, "max_tokens": 200, "temperature": 0}
            reply = service.http.post("/v1/chat/completions", json=body)
            assert reply.status_code == 200, reply.text
            messages.append({"role": "assistant", "content": reply.json()["choices"][0]["message"]["content"]})

    def prompts(*before: Sequence[Message]) -> list[tuple[int, ...]]:
        worker, backend = started()
        with serving(worker) as service:
            for questions in before:
                ask(service, questions)
            seen = len(backend.requests)
            ask(service, EDITED)
        return backend.prompts(seen)

    assert prompts(QUESTIONS) == prompts()


REPRODUCED = """
import hashlib, locale, sys
sys.path.insert(0, {path!r})
locale.setlocale(locale.LC_ALL, "")
from continuity import ANSWER, Message, answer
from ghostkv.evaluate.documents import Shape, document

messages = [
    Message("system", "Answer briefly."),
    Message("user", "Unit 3 has the code AX-300."),
    Message("assistant", ANSWER * 3),
    Message("user", "Which code has unit 3, and when does valve Q-17 close?"),
]
story = document(7, Shape(distances=(14,), background=2.0), len).text
for segment in answer(messages, story + " On 3 May 2031 it was 1.234,5 km. " * 3, payload_budget=4096):
    payload, prompt = segment.carried.memory.payload, segment.assembled
    digest = hashlib.sha256(repr(prompt.ids).encode()).hexdigest()
    print(len(prompt.block.lines), payload.payload.dropped, digest, payload.digest)
"""
ENVIRONMENTS = (
    {"PYTHONHASHSEED": "1", "LC_ALL": "C", "TZ": "Pacific/Kiritimati", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"PYTHONHASHSEED": "4711", "LC_ALL": "C.UTF-8", "LANG": "tr_TR.UTF-8", "TZ": "America/St_Johns"},
)


def test_prompts_and_payloads_do_not_depend_on_hash_seed_locale_or_time_zone() -> None:
    program = REPRODUCED.format(path=str(Path(__file__).parents[1]))
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "PYTHON"))}
    running = [
        subprocess.Popen([sys.executable, "-c", program], env=clean | more, stdout=subprocess.PIPE)
        for more in ENVIRONMENTS
    ]
    first, second = (process.communicate()[0].decode() for process in running)
    assert [process.returncode for process in running] == [0, 0]
    assert first == second
    rows = [line.split() for line in first.splitlines()]
    assert len(rows) > 10 and sum(row[0] != "0" for row in rows) >= 2 and rows[-1][1] != "0"
