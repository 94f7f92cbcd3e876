"""A response as an object and as a stream of events. What it says is in `response_items`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ghostkv.errors import GhostError
from ghostkv.request import FinishReason
from ghostkv.server.envelope import Envelope, Json
from ghostkv.server.response_items import Events, OutputItems
from ghostkv.server.response_schema import ResponseRequest
from ghostkv.server.stream import Frame
from ghostkv.session.turn import Event, Finished, Output


@dataclass(frozen=True, slots=True)
class ResponseBody:
    """Writes the response object."""

    envelope: Envelope
    asked: ResponseRequest
    residency: str

    def of(self, status: str, output: list[Json], end: Finished | None = None, error: Json | None = None) -> Json:
        """The object in one of its states; `end` where the answer has one."""
        asked, head = self.asked, self.envelope
        written: Json = {
            "id": head.id,
            "object": "response",
            "created_at": head.created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "background": False,
            "error": error,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "max_tool_calls": None,
            "metadata": asked.metadata,
            "model": head.worker.name,
            "output": output,
            "parallel_tool_calls": asked.parallel_tool_calls,
            "previous_response_id": asked.previous_response_id,
            "reasoning": {"effort": None, "summary": None},
            "service_tier": "default",
            "store": asked.store,
            "temperature": asked.temperature,
            "text": asked.text.model_dump(exclude_none=True, by_alias=True),
            "tool_choice": _choice(asked),
            "tools": [tool.model_dump() for tool in asked.tools],
            "top_logprobs": asked.top_logprobs,
            "top_p": asked.top_p,
            "truncation": asked.truncation,
            "system_fingerprint": head.worker.manifest,
        }
        if end is None:
            return written
        return written | {"usage": self._usage(end), "ghostkv": head.extension([end], self.residency)}

    def finished(self, items: OutputItems, end: Finished) -> Json:
        """The object at its end."""
        return self.of(status_of(end), items.items, end)

    def _usage(self, end: Finished) -> Json:
        usage = self.envelope.usage([end])
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        }


def status_of(end: Finished) -> str:
    """Of a response whose answer has ended."""
    return "completed" if end.reason is FinishReason.STOP else "incomplete"


def _choice(asked: ResponseRequest) -> object:
    choice = asked.tool_choice or "auto"
    return choice if isinstance(choice, str) else choice.model_dump()


@dataclass(slots=True)
class ResponseEvents:
    """`stream.Score` of a response: events with names and a running number."""

    body: ResponseBody
    items: OutputItems
    ended: Callable[[Json], None]
    """Told of the finished response."""
    last: str = field(default="", init=False)
    _number: int = field(default=0, init=False)
    _end: Finished | None = field(default=None, init=False)

    def opening(self) -> Iterator[Frame]:
        """What comes before all events."""
        for name in ("created", "in_progress"):
            yield self._frame(name, {"response": self.body.of("in_progress", [])})

    def of(self, index: int, event: Event) -> Iterator[Frame]:
        """What an event of the answer says."""
        if isinstance(event, Output):
            yield from self._frames(self.items.add(event))
        elif isinstance(event, Finished):
            self._end = event
            yield from self._frames(self.items.close(complete=status_of(event) == "completed"))

    def closing(self) -> Iterator[Frame]:
        """The whole response."""
        if self._end is not None:
            response = self.body.finished(self.items, self._end)
            self.ended(response)
            yield self._frame(response["status"], {"response": response})

    def failed(self, error: GhostError) -> Iterator[Frame]:
        """What comes instead: the response as far as it came."""
        yield from self._frames(self.items.close(complete=False))
        said = {"code": "server_error", "message": error.message}
        yield self._frame("failed", {"response": self.body.of("failed", self.items.items, error=said)})

    def _frames(self, events: Events) -> Iterator[Frame]:
        return (self._frame(*event) for event in events)

    def _frame(self, name: str, fields: Json) -> Frame:
        full = f"response.{name}"
        frame = Frame({"type": full, "sequence_number": self._number, **fields}, full)
        self._number += 1
        return frame
