"""Answers of chat completions that may call tools, as OpenAI writes them: content, then calls.

Calls are streamed: first id and name, then pieces of arguments. What was streamed cannot be taken back, so a call that
is cut off is in the whole reply too, with the arguments it got; `finish_reason` then says why it ended, and only says
`tool_calls` where every call is complete. Log-probabilities are those of all generated tokens, the calls' included.
"""

from __future__ import annotations

from collections.abc import Iterator

from ghostkv.server.envelope import Json
from ghostkv.server.logprobs import chat_logprobs
from ghostkv.server.tool_reader import Arguments, CallBegins, Content, Piece, ToolReader
from ghostkv.server.tools import Calling, call_id
from ghostkv.session.turn import Output
from ghostkv.text.tokenizer import Tokenizer


class CallingChoice:
    """`envelope.ChoiceWriter` for chat with tools."""

    def __init__(
        self, index: int, logprobs: Tokenizer | None, calling: Calling, answer_id: str, *, structured: bool
    ) -> None:
        """`answer_id` is the reply's, ids of calls follow from it; `structured`: content is JSON, and alone."""
        self._index = index
        self._logprobs = logprobs
        self._calling = calling
        self._answer_id = answer_id
        self._structured = structured
        self._reader = self._new_reader()

    def opening(self) -> Json:
        """The role; whether there is content is not known yet."""
        return self._chunk({"role": "assistant", "content": None})

    def pieces(self, output: Output) -> Iterator[Json]:
        """Content and pieces of calls, with the first of them the log-probabilities of all tokens."""
        deltas = [self._delta(piece) for piece in self._reader.feed(output.text)]
        if self._logprobs is None or not output.tokens:
            yield from map(self._chunk, deltas)
            return
        first, *others = deltas or [{}]
        yield self._chunk(first, chat_logprobs(self._logprobs, output.tokens))
        yield from map(self._chunk, others)

    def closing(self, reason: str) -> Iterator[Json]:
        """What was held back, then an empty delta."""
        yield from (self._chunk(self._delta(piece)) for piece in self._reader.close())
        yield self._chunk({}, None, _reason(self._reader, reason))

    def whole(self, text: str, output: Output, reason: str) -> Json:
        """A message."""
        reader = self._new_reader()
        pieces = [*reader.feed(text), *reader.close()]
        content = "".join(piece.text for piece in pieces if isinstance(piece, Content))
        message: Json = {"role": "assistant", "content": content or None, "refusal": None}
        if reader.calls:
            message["tool_calls"] = [
                {"id": self._call_id(at), "type": "function", "function": _function(call.name, call.arguments)}
                for at, call in enumerate(reader.calls)
            ]
        return {
            "index": self._index,
            "message": message,
            "logprobs": None if self._logprobs is None else chat_logprobs(self._logprobs, output.tokens),
            "finish_reason": _reason(reader, reason),
        }

    def _new_reader(self) -> ToolReader:
        calling = self._calling
        return ToolReader(calling.callable, required=calling.required, apart=self._structured)

    def _delta(self, piece: Piece) -> Json:
        if isinstance(piece, Content):
            return {"content": piece.text}
        if isinstance(piece, Arguments):
            return {"tool_calls": [{"index": piece.index, "function": {"arguments": piece.text}}]}
        return {"tool_calls": [self._begun(piece)]}

    def _begun(self, call: CallBegins) -> Json:
        head = {"index": call.index, "id": self._call_id(call.index), "type": "function"}
        return head | {"function": _function(call.name, "")}

    def _call_id(self, index: int) -> str:
        return call_id(self._answer_id, self._index, index)

    def _chunk(self, delta: Json, logprobs: Json | None = None, reason: str | None = None) -> Json:
        return {"index": self._index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}


def _function(name: str, arguments: str) -> Json:
    return {"name": name, "arguments": arguments}


def _reason(reader: ToolReader, reason: str) -> str:
    return "tool_calls" if reason == "stop" and reader.complete else reason
