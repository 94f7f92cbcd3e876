"""Assembles a segment's prompt from what may stand in it. Pure; the caller decides what to carry and how much.

Claims on the prompt, in order, each whole or not at all:
1 system and developer messages; 2 the last user or tool message, with any answer begun after it; 3 the tail of the
open answer; 4 earlier exchanges, newest first, up to the first that does not fit; 5 the state block; 6 recalled
sentences. Claims 1 to 3 are always in. Tail ids follow the rendered generation prompt as they are: generated ids are
never tokenised again. State block and recalled sentences are quoted lines in the last user or tool message, which every
template renders, and never part of a system message. A raw completion has no messages: its prompt is all head, and the
lines stand between prompt and tail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ghostkv.errors import InvalidRequest
from ghostkv.protocol.state import NO_BLOCK, Block
from ghostkv.request import Message

Template = Callable[[Sequence[Message]], Sequence[int]]
"""Messages -> prompt ids, ending where the answer begins."""

Encode = Callable[[str], Sequence[int]]
"""Ordinary text -> ids; it never yields a control id."""

_SYSTEM = ("system", "developer")
_ASKING = ("user", "tool")


@dataclass(frozen=True, slots=True)
class Selection:
    """The client's part of a prompt: claims 1, 2 and 4."""

    ids: tuple[int, ...]
    visible: frozenset[int]  # indices of the messages among them
    dropped: int  # tokens of the client's prompt that are not among them
    exchanges: int  # earlier exchanges among them, counted from the newest
    free: int | None  # prompt tokens left beside them; None where nothing bounds the prompt


@dataclass(frozen=True, slots=True)
class Assembled:
    """A segment's prompt."""

    ids: tuple[int, ...]
    block: Block  # the lines among them
    tail: int  # of the ids, those of the tail
    lines: int  # of the ids, those of the block
    dropped: int  # tokens of the client's prompt that are not among them


class Prompting(Protocol):
    """What the client gave, as a source of prompts."""

    @property
    def question(self) -> str:
        """The text that the answer is to answer."""
        ...

    def select(self, allowance: int | None, tail: int = 0) -> Selection:
        """The client's part of a prompt of at most `allowance` tokens, `tail` of them for the tail."""
        ...

    def compose(self, selection: Selection, block: Block = NO_BLOCK, tail: Sequence[int] = ()) -> Assembled:
        """The prompt. Where the block takes more than `selection.free` leaves beside `tail`, its first lines go."""
        ...


class Renderer(Protocol):
    """How a question shows what is carried."""

    def __call__(self, question: str, lines: Sequence[str], *, begun: bool) -> str:
        """The question with `lines`, the most useful last; `begun`: its answer is open."""
        ...


def notes(question: str, lines: Sequence[str], *, begun: bool) -> str:
    """The lines, quoted, before a question that is yet to be answered and after one whose answer is open.

    Measured (docs/experiments.md, "Placement and form"): before it, a fact is given more often; after it, the question
    stays where the prefix cache finds it when the lines change.
    """
    block = " ".join(("Notes from earlier in this conversation:", *(f'"{line}"' for line in lines)))
    return f"{question}\n\n{block}" if begun else f"{block}\n\n{question}"


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages under a chat template."""

    messages: tuple[Message, ...]
    template: Template
    renderer: Renderer
    asking: int  # index of the last user or tool message
    exchanges: tuple[tuple[int, ...], ...]  # message indices of each earlier exchange, oldest first

    @classmethod
    def of(cls, messages: Sequence[Message], template: Template, renderer: Renderer = notes) -> Conversation:
        """Where nobody asks, the last message stands for the question. Raises InvalidRequest for no messages."""
        if not messages:
            raise InvalidRequest("messages must not be empty", param="messages")
        asking = max((i for i, message in enumerate(messages) if message.role in _ASKING), default=len(messages) - 1)
        exchanges: list[list[int]] = []
        previous = ""
        for i, message in enumerate(messages[:asking]):
            if message.role in _SYSTEM:
                continue
            # Messages before the first question, and questions in a row, belong to one exchange.
            if not exchanges or (message.role == "user" and previous != "user"):
                exchanges.append([])
            exchanges[-1].append(i)
            previous = message.role
        return cls(tuple(messages), template, renderer, asking, tuple(map(tuple, exchanges)))

    @property
    def question(self) -> str:
        """The last user or tool message."""
        return self.messages[self.asking].content

    @property
    def head(self) -> tuple[Message, ...]:
        """The messages of claims 1 and 2."""
        return self._with(0)

    def select(self, allowance: int | None, tail: int = 0) -> Selection:
        """See Prompting."""
        whole = self.template(self.messages)
        newest = len(self.exchanges) if allowance is None else self._newest(allowance - tail)
        ids = whole if newest == len(self.exchanges) else self.template(self._with(newest))
        return Selection(
            ids=tuple(ids),
            visible=frozenset(self._indices(newest)),
            dropped=len(whole) - len(ids),
            exchanges=newest,
            free=None if allowance is None else max(0, allowance - len(ids)),
        )

    def compose(self, selection: Selection, block: Block = NO_BLOCK, tail: Sequence[int] = ()) -> Assembled:
        """See Prompting."""
        client = selection.ids
        for fewer in block.shorter():
            noted = self._with(selection.exchanges, fewer.texts, begun=bool(tail))
            ids = self.template(noted) if fewer.lines else client
            if selection.free is None or len(ids) - len(client) + len(tail) <= selection.free:
                break
        return Assembled((*ids, *tail), fewer, len(tail), len(ids) - len(client), selection.dropped)

    def _newest(self, room: int) -> int:
        """How many exchanges, counted from the newest, fit together with the head."""
        for newest in range(1, len(self.exchanges) + 1):
            if len(self.template(self._with(newest))) > room:
                return newest - 1
        return len(self.exchanges)

    def _indices(self, newest: int) -> list[int]:
        """Messages of head and the `newest` last exchanges, in the client's order."""
        kept = {i for exchange in self.exchanges[len(self.exchanges) - newest :] for i in exchange}
        return [
            i for i, message in enumerate(self.messages) if i >= self.asking or i in kept or message.role in _SYSTEM
        ]

    def _with(self, newest: int, lines: Sequence[str] = (), *, begun: bool = False) -> tuple[Message, ...]:
        """Head and the `newest` last exchanges, the question with `lines`."""
        chosen = {i: self.messages[i] for i in self._indices(newest)}
        if lines:
            asking = self.messages[self.asking]
            chosen[self.asking] = replace(asking, content=self.renderer(asking.content, lines, begun=begun))
        return tuple(chosen.values())


@dataclass(frozen=True, slots=True)
class Completion:
    """A raw prompt of token ids, to be continued."""

    prompt: tuple[int, ...]
    encode: Encode
    renderer: Renderer = notes

    @property
    def question(self) -> str:
        """None is asked: what the answer needs shows in its tail."""
        return ""

    def select(self, allowance: int | None, tail: int = 0) -> Selection:
        """The whole prompt, which is all head."""
        free = None if allowance is None else max(0, allowance - len(self.prompt))
        return Selection(self.prompt, frozenset((0,)), 0, 0, free)

    def compose(self, selection: Selection, block: Block = NO_BLOCK, tail: Sequence[int] = ()) -> Assembled:
        """See Prompting."""
        for fewer in block.shorter():
            note = self.encode(self.renderer("", fewer.texts, begun=True) + "\n\n") if fewer.lines else ()
            if selection.free is None or len(note) + len(tail) <= selection.free:
                break
        return Assembled((*selection.ids, *note, *tail), fewer, len(tail), len(note), 0)
