"""The output items of a response, as they grow: one state that streams and whole replies are both written from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from ghostkv.request import ToolCall
from ghostkv.server.envelope import Json
from ghostkv.server.logprobs import chat_logprobs
from ghostkv.server.tool_reader import Arguments, CallBegins, Content, Piece, ToolReader
from ghostkv.server.tools import Calling
from ghostkv.session.turn import Output
from ghostkv.text.tokenizer import Tokenizer

Events = Iterator[tuple[str, Json]]  # (name without "response.", the event's own fields)


class OutputItems:
    """A message, or text and then calls. An answer without calls is always one message, however short."""

    def __init__(
        self, response_id: str, calling: Calling | None, logprobs: Tokenizer | None, *, structured: bool = False
    ) -> None:
        """Ids of items follow from the response's; `structured`: text is JSON, and stands alone."""
        self.items: list[Json] = []
        self._id = response_id
        self._reader: ToolReader | None = None
        if calling is not None:
            self._reader = ToolReader(calling.callable, required=calling.required, apart=structured)
        self._logprobs = logprobs
        self._open = False  # the last item is still being written

    @property
    def text(self) -> str:
        """Of all messages."""
        return "".join(item["content"][0]["text"] for item in self.items if item["type"] == "message")

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """All calls, cut ones included."""
        calls = (item for item in self.items if item["type"] == "function_call")
        return tuple(ToolCall(item["call_id"], item["name"], item["arguments"]) for item in calls)

    def add(self, output: Output) -> Events:
        """Take the next output. The log-probabilities of its tokens come with its first text."""
        pieces: list[Piece] = [Content(output.text)]
        if self._reader is not None:
            pieces = self._reader.feed(output.text)
        entries: list[Json] = [] if self._logprobs is None else chat_logprobs(self._logprobs, output.tokens)["content"]
        for piece in pieces:
            if isinstance(piece, Content):
                yield from self._content(piece.text, entries)
                entries = []
            else:
                yield from self._call(piece)

    def close(self, *, complete: bool) -> Events:
        """The answer ends here."""
        for piece in self._reader.close() if self._reader is not None else ():
            if isinstance(piece, Content):
                yield from self._content(piece.text, [])
        if not self.items:
            yield from self._begin_message()
        yield from self._end(complete=complete)

    def _content(self, text: str, entries: list[Json]) -> Events:
        if not text and not entries:
            return
        if not self._open or self.items[-1]["type"] != "message":
            yield from self._end(complete=True)
            yield from self._begin_message()
        part = self.items[-1]["content"][0]
        part["text"] += text
        part["logprobs"] += entries
        yield "output_text.delta", self._at() | {"delta": text, "logprobs": entries}

    def _call(self, piece: CallBegins | Arguments) -> Events:
        if isinstance(piece, Arguments):
            self.items[-1]["arguments"] += piece.text
            yield "function_call_arguments.delta", self._at() | {"delta": piece.text}
            return
        yield from self._end(complete=True)
        item = {
            "id": self._name("fc"),
            "type": "function_call",
            "status": "in_progress",
            "call_id": self._name("call"),
            "name": piece.name,
            "arguments": "",
        }
        yield from self._begin(item)

    def _begin_message(self) -> Events:
        item = {"id": self._name("msg"), "type": "message", "status": "in_progress", "role": "assistant"}
        yield from self._begin(item | {"content": []})
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        yield "content_part.added", self._at() | {"part": part}
        self.items[-1]["content"] = [{**part, "annotations": [], "logprobs": []}]

    def _begin(self, item: Json) -> Events:
        self.items.append(dict(item))
        self._open = True
        yield "output_item.added", {"output_index": len(self.items) - 1, "item": item}

    def _end(self, *, complete: bool) -> Events:
        if not self._open:
            return
        item = self.items[-1]
        if item["type"] == "message":
            (part,) = item["content"]
            said = {"text": part["text"], "logprobs": part["logprobs"]}
            yield "output_text.done", self._at() | said
            yield "content_part.done", self._at() | {"part": part}
        else:
            said = {"name": item["name"], "arguments": item["arguments"]}
            yield "function_call_arguments.done", self._at() | said
        item["status"] = "completed" if complete else "incomplete"
        self._open = False
        yield "output_item.done", {"output_index": len(self.items) - 1, "item": item}

    def _at(self) -> Json:
        item = self.items[-1]
        at: Json = {"item_id": item["id"], "output_index": len(self.items) - 1}
        return at | {"content_index": 0} if item["type"] == "message" else at

    def _name(self, prefix: str) -> str:
        """Always the same for one item of one response."""
        return f"{prefix}_{hashlib.sha256(f'{self._id} {len(self.items)}'.encode()).hexdigest()[:32]}"
