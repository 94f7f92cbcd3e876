"""Assembles a segment's prompt from what may stand in it. Pure; the caller decides what to carry and how much.

Claims on the prompt, in order, each whole or not at all:
1 system and developer messages; 2 the last user or tool message, with any answer begun after it; 3 the tail of the
open answer; 4 earlier exchanges, newest first, up to the first that does not fit; 5 the state block; 6 recalled
sentences, best first. Claims 1 to 3 are always in. Tail ids follow the rendered generation prompt as they are:
generated ids are never tokenised again. State and recalled sentences stand at the end of the last user or tool message,
which every template renders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ghostkv.errors import InvalidRequest
from ghostkv.request import Message

Template = Callable[[Sequence[Message]], Sequence[int]]
"""Messages -> prompt ids, ending where the answer begins."""

_SYSTEM = ("system", "developer")
_ASKING = ("user", "tool")


@dataclass(frozen=True, slots=True)
class Assembled:
    """A segment's prompt."""

    ids: tuple[int, ...]
    carried: int  # of these, the tokens that are not the client's prompt: tail, state block, recalled sentences
    dropped: int  # tokens of the client's prompt that are not among them


@dataclass(frozen=True, slots=True)
class Claims:
    """A conversation cut along the claims."""

    messages: tuple[Message, ...]
    asking: int  # index of the last user or tool message
    exchanges: tuple[tuple[int, ...], ...]  # message indices of each earlier exchange, oldest first

    @classmethod
    def of(cls, messages: Sequence[Message]) -> Claims:
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
        return cls(tuple(messages), asking, tuple(map(tuple, exchanges)))

    def select(self, newest: int, notes: Sequence[str] = ()) -> tuple[Message, ...]:
        """Head and the `newest` last exchanges, in the client's order, with `notes` at the end of the question."""
        kept = {i for exchange in self.exchanges[len(self.exchanges) - newest :] for i in exchange}
        asking = self.messages[self.asking]
        noted = replace(asking, content="\n\n".join((asking.content, *notes)))
        return tuple(
            noted if i == self.asking else message
            for i, message in enumerate(self.messages)
            if i >= self.asking or i in kept or message.role in _SYSTEM
        )


def head(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages of claims 1 and 2."""
    return Claims.of(messages).select(0)


def render(
    messages: Sequence[Message],
    template: Template,
    *,
    tail: Sequence[int] = (),
    allowance: int | None = None,
    state: str = "",
    recalled: Sequence[str] = (),
) -> Assembled:
    """Fill `allowance` prompt tokens by the claims; None lets everything in."""
    claims = Claims.of(messages)
    whole = template(claims.messages)
    newest = len(claims.exchanges) if allowance is None else _newest(claims, template, allowance - len(tail))
    client = whole if newest == len(claims.exchanges) else template(claims.select(newest))
    ids = client
    notes: list[str] = []
    for note in filter(None, (state, *recalled)):
        candidate = template(claims.select(newest, [*notes, note]))
        if allowance is None or len(candidate) + len(tail) <= allowance:
            ids = candidate
            notes.append(note)
    return Assembled((*ids, *tail), carried=len(ids) - len(client) + len(tail), dropped=len(whole) - len(client))


def render_completion(prompt: Sequence[int], *, tail: Sequence[int] = ()) -> Assembled:
    """A raw completion: its prompt is all head, so it stays whole."""
    return Assembled((*prompt, *tail), carried=len(tail), dropped=0)


def _newest(claims: Claims, template: Template, room: int) -> int:
    """How many exchanges, counted from the newest, fit together with the head."""
    for newest in range(1, len(claims.exchanges) + 1):
        if len(template(claims.select(newest))) > room:
            return newest - 1
    return len(claims.exchanges)
