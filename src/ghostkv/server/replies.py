"""Whole replies: what a stream says in pieces, in one object."""

from __future__ import annotations

from collections.abc import Sequence

from ghostkv.errors import EngineFault
from ghostkv.server.answers import Answer
from ghostkv.server.envelope import ChoiceWriter, Envelope, Json, finish_reason
from ghostkv.session.turn import Output


def whole(envelope: Envelope, writers: Sequence[ChoiceWriter], answers: Sequence[Answer], residency: str) -> Json:
    """The reply to a request without `stream`."""
    choices, ends = [], []
    for writer, answer in zip(writers, answers, strict=True):
        if answer.finished is None:
            raise EngineFault("an answer has no end")
        ends.append(answer.finished)
        text = "".join(answer.text)
        output = Output(tuple(answer.tokens), text, prompt=tuple(answer.prompt))
        choices.append(writer.whole(text, output, finish_reason(answer.finished.reason)))
    return envelope.whole(choices, ends, residency)
