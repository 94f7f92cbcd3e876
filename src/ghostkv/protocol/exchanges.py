"""How a conversation divides into what must be shown together. Pure; it knows roles and no text.

An exchange is a question and all that followed until the next one. Inside the last one, which is still open, tools may
have been called several times: each round of calls is a unit with its results, so that a result is never shown without
its call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ghostkv.errors import InvalidRequest
from ghostkv.request import Message

SYSTEM = ("system", "developer")


@dataclass(frozen=True, slots=True)
class Exchanges:
    """Message indices. System messages belong to none of these."""

    asking: int  # the last user message; where no user asks, the last tool message, or the last message of all
    latest: int  # from here on everything is of the last round: its calls, their results, an answer begun after them
    earlier: tuple[tuple[int, ...], ...]  # each earlier exchange, then each earlier round of the open one, oldest first

    @classmethod
    def of(cls, messages: Sequence[Message]) -> Exchanges:
        """Raises InvalidRequest for no messages."""
        if not messages:
            raise InvalidRequest("messages must not be empty", param="messages")
        result = _last(messages, "tool")
        asking = _last(messages, "user")
        if asking is None:
            asking = len(messages) - 1 if result is None else result
        latest = asking if result is None or result < asking else _calls(messages, result)
        closed = _units(messages, range(min(asking, latest)), "user")
        return cls(asking, latest, (*closed, *_units(messages, range(asking + 1, latest), "assistant")))


def _last(messages: Sequence[Message], role: str) -> int | None:
    return max((i for i, message in enumerate(messages) if message.role == role), default=None)


def _calls(messages: Sequence[Message], result: int) -> int:
    """The assistant message that `result` answers; the first result where there is none."""
    first = result
    while first and messages[first - 1].role in ("tool", *SYSTEM):
        first -= 1
    return first - 1 if first and messages[first - 1].role == "assistant" else first


def _units(messages: Sequence[Message], among: range, begins: str) -> tuple[tuple[int, ...], ...]:
    """Units that each begin with the role `begins`, several in a row counting as one; what precedes is its own."""
    units: list[list[int]] = []
    previous = ""
    for i in among:
        role = messages[i].role
        if role in SYSTEM:
            continue
        if not units or (role == begins and previous != begins):
            units.append([])
        units[-1].append(i)
        previous = role
    return tuple(map(tuple, units))
