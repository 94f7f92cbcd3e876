"""What a grammar does to a running request: which ids its next token may have, and when it ends.

Mutable and owned by the request's sequence. It knows bits and verdicts; the grammar's meaning is its matcher's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Self

import numpy as np

from ghostkv.request import Bitmask, FinishReason, Grammar, Matcher, Stop


class Constraint:
    """A matcher, with what it allows next."""

    __slots__ = ("_allowed", "_matcher")

    def __init__(self, matcher: Matcher, allowed: Bitmask) -> None:
        self._matcher = matcher
        self._allowed = allowed  # what the matcher allows now

    @classmethod
    def of(cls, grammar: Grammar) -> Self:
        """At the beginning of an answer."""
        matcher = grammar.start()
        return cls(matcher, matcher.allowed())

    @property
    def note(self) -> str:
        """What led to a dead end; "" where there is none."""
        return self._matcher.failure

    def allowed(self, masked: Collection[int] = ()) -> Bitmask:
        """The ids that may come next, without the `masked` ones unless there are no others: min_tokens gives way."""
        if not masked:
            return self._allowed
        rest = self._allowed.copy()
        for token_id in masked:
            rest[token_id >> 5] &= ~np.uint32(1 << (token_id & 31))
        return rest if rest.any() else self._allowed

    def after(self, guesses: Iterable[int]) -> Iterator[Constraint]:
        """The constraint after each further guess, as long as it allows them and something may follow.

        One object, that moves on: use it before the next is asked for. This one is not touched.
        """
        ahead = Constraint(self._matcher.fork(), self._allowed)
        for token_id in guesses:
            if not ahead.allows(token_id) or ahead.accept(token_id) is not None:
                return
            yield ahead

    def allows(self, token_id: int) -> bool:
        """Whether that id may come next."""
        return bool(self._allowed[token_id >> 5] >> np.uint32(token_id & 31) & 1)

    def accept(self, token_id: int) -> Stop | None:
        """Take a token. Stops where nothing can follow: the text is complete, or at a dead end."""
        matcher = self._matcher
        matcher.accept(token_id)
        if not (matcher.complete or matcher.failure):
            self._allowed = matcher.allowed()
        if matcher.complete:
            return Stop(FinishReason.STOP)
        return Stop(FinishReason.DEAD_END) if matcher.failure else None
