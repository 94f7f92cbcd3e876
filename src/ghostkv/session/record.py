"""What is known of a session: its answers as they were streamed, the conversation they belong to, what is carried.

Frozen values of plain parts, so that a store can write them down. What changes them is `table`; nothing here generates.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import takewhile

from ghostkv.protocol.log import Log
from ghostkv.request import Message
from ghostkv.session.calls import CallRecord, settled
from ghostkv.session.histories import digests
from ghostkv.session.turn import Event, Finished, Output, SegmentRecord

# Bytes of Python's objects for one output with one token; for one more token; for one more alternative of a token.
_OUTPUT, _TOKEN, _ALTERNATIVE = 140, 120, 132
_MESSAGE = 300
_CALL = 600
_TURN = 2000  # a turn without what it generated


class Status(StrEnum):
    """How far an answer is."""

    RUNNING = "running"
    FINISHED = "finished"
    CANCELLED = "cancelled"  # nobody read it any more, or its session was deleted
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class NewTurn:
    """A request that a session answers."""

    id: str  # of the reply
    endpoint: str  # "chat.completions" or "completions"
    parameters: str  # the request but for messages, prompt and plan: JSON
    created: int  # seconds since 1970
    seed: int
    max_tokens: int
    prompt_tokens: int
    messages: tuple[Message, ...] = ()  # the whole conversation; empty for a raw prompt
    most_bytes: int = 0  # that its answer may come to
    once: str = ""  # digests of its Idempotency-Key and of its body; "" without one


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One answer of a session, complete or not."""

    id: str
    endpoint: str
    parameters: str
    created: int
    seed: int  # drawn, if the request has none
    max_tokens: int  # likewise
    prompt_tokens: int
    first: int  # index of its first token in the session's output
    forked: int | None  # messages that it shares with the conversation before it, where it left that
    conversing: bool  # False: it continues a raw prompt
    status: Status = Status.RUNNING
    error: str = ""  # why it has no end
    tokens: int = 0
    events: Log[Event] = field(default_factory=Log)
    digest: bytes = b""  # of the conversation up to and with this answer; empty while it runs, and for a raw prompt
    ids: tuple[int, ...] = ()  # its text was generated as these; empty where ids and text say different things
    size: int = _TURN  # bytes of memory, about
    once: str = ""  # see NewTurn

    @property
    def segments(self) -> tuple[SegmentRecord, ...]:
        """Those that are closed."""
        return tuple(event for event in self.events if isinstance(event, SegmentRecord))

    @property
    def finished(self) -> Finished | None:
        """Its end, if it came to one."""
        last = self.events[-1] if self.events else None
        return last if isinstance(last, Finished) else None

    def added(self, event: Event) -> TurnRecord:
        """With one more event."""
        tokens = event.tokens if isinstance(event, Output) else ()
        return replace(
            self,
            events=self.events.extended((event,)),
            tokens=self.tokens + len(tokens),
            size=self.size + event_bytes(event),
        )

    def refilled(self, events: Sequence[Event]) -> TurnRecord:
        """The same answer with just these events."""
        tokens = sum(len(event.tokens) for event in events if isinstance(event, Output))
        size = _TURN + sys.getsizeof(self.parameters) + sum(map(event_bytes, events)) + 8 * len(self.ids)
        return replace(self, events=Log(events), tokens=tokens, size=size)


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session as it stands."""

    id: str
    tenant: str
    created: int  # seconds since 1970
    model: str
    manifest: str
    residency: str | None = None  # of requests that name none
    payload_budget: int | None = None  # bytes; likewise
    metadata: tuple[tuple[str, str], ...] = ()
    messages: tuple[Message, ...] = ()  # the conversation as the last request and its answer left it
    turns: tuple[TurnRecord, ...] = ()
    payload: bytes = b""  # canonical; what the last closed segment left
    calls: tuple[CallRecord, ...] = ()  # of tools, in the order in which they were given out

    @property
    def tokens(self) -> int:
        """Of its output so far."""
        return self.turns[-1].first + self.turns[-1].tokens if self.turns else 0

    @property
    def running(self) -> bool:
        """Whether an answer is being generated."""
        return bool(self.turns) and self.turns[-1].status is Status.RUNNING

    @property
    def size(self) -> int:
        """Bytes of memory, about."""
        beside = len(self.payload) + _CALL * len(self.calls)
        return beside + conversation_bytes(self.messages) + sum(turn.size for turn in self.turns)

    @property
    def unsettled(self) -> tuple[CallRecord, ...]:
        """Calls that were given out and whose results nobody has brought."""
        return tuple(call for call in self.calls if not call.settled)

    def turn_at(self, index: int) -> TurnRecord:
        """The answer in which token `index` of the output stands; past the end, the last one. There must be one."""
        inside = (turn for turn in self.turns if turn.first <= index < turn.first + turn.tokens)
        return next(inside, self.turns[-1])

    def opened(self, asked: NewTurn) -> SessionRecord:
        """With an answer to `asked` that has nothing yet. Calls whose results `asked` brings are settled."""
        forked = None
        if asked.messages:
            pairs = zip(digests(self.messages), digests(asked.messages), strict=False)
            shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            forked = shared if shared < len(self.messages) and not self._called(asked.messages, shared) else None
        turn = TurnRecord(
            id=asked.id,
            endpoint=asked.endpoint,
            parameters=asked.parameters,
            created=asked.created,
            seed=asked.seed,
            max_tokens=asked.max_tokens,
            prompt_tokens=asked.prompt_tokens,
            first=self.tokens,
            forked=forked,
            conversing=bool(asked.messages),
            size=_TURN + sys.getsizeof(asked.parameters),
            once=asked.once,
        )
        calls = settled(self.calls, asked.messages)
        return replace(self, messages=asked.messages or self.messages, turns=(*self.turns, turn), calls=calls)

    def _called(self, messages: Sequence[Message], at: int) -> bool:
        """Whether message `at` is the last answer, which a client sends back as the calls that it made."""
        return at == len(self.messages) - 1 and at < len(messages) and bool(messages[at].tool_calls)

    def with_last(self, turn: TurnRecord) -> SessionRecord:
        """With `turn` in the place of the last one."""
        return replace(self, turns=(*self.turns[:-1], turn))

    def closed(self, status: Status, error: str, token_bytes: Callable[[int], bytes]) -> SessionRecord:
        """With the end of its last answer, which becomes the last message of the conversation."""
        turn = replace(self.turns[-1], status=status, error=error)
        outputs = [event for event in turn.events if isinstance(event, Output)]
        text = "".join(output.text for output in outputs)
        if not (turn.conversing and text):
            return self.with_last(turn)
        ids = generated_as(text, [token.id for output in outputs for token in output.tokens], token_bytes)
        messages = (*self.messages, Message("assistant", text))
        *_, digest = digests(messages)
        turn = replace(turn, digest=digest, ids=ids, size=turn.size + 8 * len(ids))
        return replace(self.with_last(turn), messages=messages)

    def remembered(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """`messages`, the answers among them that this session gave to just this conversation with their ids.

        The last message stays as it is: where nobody asks it stands for the question, to which notes are added.
        """
        known = {turn.digest: turn.ids for turn in self.turns if turn.ids}
        if not known:
            return tuple(messages)
        return tuple(
            replace(message, ids=known[digest]) if message is not messages[-1] and digest in known else message
            for message, digest in zip(messages, digests(messages), strict=True)
        )


def generated_as(text: str, ids: Sequence[int], token_bytes: Callable[[int], bytes]) -> tuple[int, ...]:
    """The first of `ids` whose bytes are exactly those of `text`; none where there are no such.

    So where a stop string was dropped from inside a token, a character was never completed, or a control token was
    generated, the text stands for itself.
    """
    data, at = text.encode("utf-8", errors="surrogatepass"), 0
    for count, token_id in enumerate(ids):
        if at == len(data):
            return tuple(ids[:count])
        piece = token_bytes(token_id)
        if not piece or not data.startswith(piece, at):
            return ()
        at += len(piece)
    return tuple(ids) if at == len(data) else ()


def event_bytes(event: Event) -> int:
    """Memory that an event takes, about."""
    if not isinstance(event, Output):
        return _TURN
    alternatives = sum(len(token.top) for token in event.tokens)
    return _OUTPUT + _TOKEN * len(event.tokens) + _ALTERNATIVE * alternatives + sys.getsizeof(event.text)


def answer_bytes(tokens: int, alternatives: int) -> int:
    """Memory that an answer of so many tokens takes, about, each with so many alternatives beside it."""
    return tokens * (_OUTPUT + _TOKEN + _ALTERNATIVE * alternatives + 128)


def conversation_bytes(messages: Iterable[Message]) -> int:
    """Memory that messages take, about."""
    return sum(_MESSAGE + sum(map(sys.getsizeof, message.texts)) for message in messages)
