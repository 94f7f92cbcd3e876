"""The tool calls of a session's answer, read while it is generated, so that each can be logged before it is given out.

What is logged is `session.calls`'; that it outlives the process is `keeping`'s.
"""

from __future__ import annotations

import json

from ghostkv.server.schema import ChatRequest
from ghostkv.server.tool_reader import ToolReader
from ghostkv.server.tools import Calling, call_id
from ghostkv.session.calls import CallRecord, digest
from ghostkv.session.record import TurnRecord
from ghostkv.session.turn import Event, Output


class Intents:
    """Of one answer, from its first event on."""

    def __init__(self, answer: str, calling: Calling, *, structured: bool) -> None:
        """`answer` is the reply's id; `structured`: what is said beside calls is JSON."""
        self._answer = answer
        self._reader = ToolReader(calling.callable, required=calling.required, apart=structured)
        self._told = 0

    @classmethod
    def of(cls, answer: TurnRecord) -> Intents | None:
        """By its recorded request; None for an answer that may call nothing."""
        if not json.loads(answer.parameters).get("tools"):
            return None
        asked = ChatRequest.recorded(answer.parameters)
        if asked.calling is None:
            return None
        return cls(answer.id, asked.calling, structured=asked.structure is not None)

    def completed(self, event: Event) -> tuple[CallRecord, ...]:
        """The calls whose arguments end in `event`, which is the next one."""
        if not isinstance(event, Output):
            return ()
        self._reader.feed(event.text)
        ended = [call for call in self._reader.calls[self._told :] if call.ended]
        first, self._told = self._told, self._told + len(ended)
        return tuple(
            CallRecord(call_id(self._answer, 0, index), self._answer, call.name, digest(call.arguments))
            for index, call in enumerate(ended, first)
        )
