"""Assembles a segment's prompt from what may stand in it. Pure; the caller decides what to carry and how much.

Claims on the prompt, in order, each whole or not at all:
1 system and developer messages (and tool definitions, which the template adds to every prompt); 2 the last user
message, and if tools were called for it the last results with the calls that they answer, and any answer begun after
that; 3 the tail of the open answer; 4 what came before, newest first, up to the first that does not fit: earlier rounds
of calls, then earlier exchanges; 5 the state block; 6 recalled sentences. Claims 1 to 3 are always in, and a result is
never parted from its call. Tail ids follow the rendered generation prompt as they are: generated ids are never
tokenised again. State block and recalled sentences are quoted lines in the last user message, which every template
renders (in a tool message where there is no user's), and never part of a system message. A raw completion has no
messages: its prompt is all head, and the lines stand between prompt and tail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ghostkv.protocol.exchanges import SYSTEM, Exchanges
from ghostkv.protocol.state import NO_BLOCK, Block
from ghostkv.request import Message

Template = Callable[[Sequence[Message]], Sequence[int]]
"""Messages -> prompt ids, ending where the answer begins."""

Encode = Callable[[str], Sequence[int]]
"""Ordinary text -> ids; it never yields a control id."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The client's part of a prompt: claims 1, 2 and 4."""

    ids: tuple[int, ...]
    visible: frozenset[int]  # indices of the messages among them
    dropped: int  # tokens of the client's prompt that are not among them
    exchanges: int  # earlier exchanges and rounds among them, counted from the newest
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
    exchanges: Exchanges

    @classmethod
    def of(cls, messages: Sequence[Message], template: Template, renderer: Renderer = notes) -> Conversation:
        """Raises InvalidRequest for no messages."""
        return cls(tuple(messages), template, renderer, Exchanges.of(messages))

    @property
    def asking(self) -> int:
        """Index of the message that asks."""
        return self.exchanges.asking

    @property
    def question(self) -> str:
        """What the last user asked."""
        return self.messages[self.asking].content

    @property
    def longest(self) -> int:
        """Index of the longest message, the question or a result, that stands in every prompt."""
        latest = range(self.exchanges.latest, len(self.messages))
        results = (i for i in latest if self.messages[i].role == "tool")
        return max((self.asking, *results), key=lambda i: len(self.messages[i].content))

    @property
    def head(self) -> tuple[Message, ...]:
        """The messages of claims 1 and 2."""
        return self._with(0)

    def select(self, allowance: int | None, tail: int = 0) -> Selection:
        """See Prompting."""
        whole = self.template(self.messages)
        earlier = len(self.exchanges.earlier)
        newest = earlier if allowance is None else self._newest(allowance - tail)
        ids = whole if newest == earlier else self.template(self._with(newest))
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
        for newest in range(1, len(self.exchanges.earlier) + 1):
            if len(self.template(self._with(newest))) > room:
                return newest - 1
        return len(self.exchanges.earlier)

    def _indices(self, newest: int) -> list[int]:
        """Messages of head and the `newest` last exchanges, in the client's order."""
        asking, latest, earlier = self.exchanges.asking, self.exchanges.latest, self.exchanges.earlier
        kept = {asking, *(i for unit in earlier[len(earlier) - newest :] for i in unit)}
        return [i for i, message in enumerate(self.messages) if i >= latest or i in kept or message.role in SYSTEM]

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
