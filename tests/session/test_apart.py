"""The work that a turn takes does not depend on what other tenants have sent: neither then does its time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ghostkv.protocol.transition import read_message
from ghostkv.request import Message, Sampling, Tool
from ghostkv.session import histories
from ghostkv.session.turn import Turn
from ghostkv.session.worker import Worker, _kept
from services import TEMPLATE, TOKENIZER, ScriptedBackend, saying, scripted_worker

STORY = "The lamp in the north tower burned for 31 days. Ada counted 4 ships.\n" * 4


class Site:
    """A worker that counts renderings, encodings and messages read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.work: Counter[str] = Counter()
        self.backend = ScriptedBackend(saying(STORY, end="<|im_end|>"), blocks=1024)
        plain = scripted_worker(self.backend)
        kept = _kept(self.render)
        context = replace(plain.context, template=lambda messages: kept(messages, ()), encode=self.encode)
        self.worker: Worker = replace(plain, context=context)

        def counted(*arguments: Any) -> Any:
            self.work["read"] += 1
            return read_message(*arguments)

        monkeypatch.setattr(histories, "read_message", counted)

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Sequence[int]:
        self.work["rendered"] += 1
        return TEMPLATE.render_ids(messages)

    def encode(self, text: str) -> Sequence[int]:
        self.work["encoded"] += len(text)
        return TOKENIZER.encode(text)

    def answer(self, tenant: str) -> tuple[Counter[str], int]:
        """What one turn of several segments takes, and how many segments it had."""
        before = self.work.copy()
        said = ("The harbour has 12 lamps.", "Noted.", "The keeper is Ada Lamb.", "Noted.", "Tell me more.")
        # New objects each time, as each request brings its own.
        messages = tuple(Message(("user", "assistant")[at % 2], "".join(text)) for at, text in enumerate(said))
        turn = Turn(
            f"{tenant}{sum(before.values())}",
            Sampling(temperature=0.0),
            400,
            messages,
            residency="segment",
            tenant=tenant,
        )

        async def run() -> int:
            found = [event async for event in self.worker.run(self.worker.checked(turn))]
            return len(found[-1].segments)  # type: ignore[union-attr]

        segments = asyncio.run(run())
        return self.work - before, segments


def test_a_turn_takes_the_same_work_after_equal_turns_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(monkeypatch)
    try:
        alone, segments = site.answer("alice")
        assert segments > 1
        assert min(alone[kind] for kind in ("rendered", "encoded", "read")) > 0
        assert site.answer("bob") == (alone, segments)
        again, _ = site.answer("bob")
        assert again["read"] < alone["read"]  # the control: what a tenant sent itself is kept
        assert again["rendered"] == alone["rendered"]
    finally:
        site.worker.close()


def test_the_same_messages_are_rendered_once() -> None:
    """The answers to one request share their messages, whichever of them a prompt shows."""
    rendered: list[Sequence[Message]] = []

    def template(messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        rendered.append(messages)
        return [len(message.content) for message in messages]

    kept = _kept(template)
    one, two, equal = Message("user", "hello"), Message("user", "you"), Message("user", "hello")
    assert kept((one, two), ()) == kept([one, two], ()) == (5, 3)
    assert len(rendered) == 1
    assert kept((one,), ()) == (5,)
    assert kept((equal,), ()) == (5,)
    assert len(rendered) == 3
