"""Drafters: what guesses the next tokens of one request. The scheduler has them checked, so a guess may be anything.

A drafter reads the request's own prompt and output and nothing else. It is not a model, and it decides nothing: how
many guesses are worth computing is the business of `speculation`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from ghostkv.errors import ConfigError, InvariantViolation

OFF = "off"
"""The name of no drafter."""

_LONGEST = 15  # guesses for one request in one step: with its newest token a row count that products like
_MEMORY = 8  # outcomes over which the share of right guesses is averaged


class Drafter(Protocol):
    """Guesses for one request. Mutable, and asked in order: each call's tokens begin with those of the call before."""

    def propose(self, tokens: Sequence[int], limit: int) -> tuple[int, ...]:
        """At most `limit` ids that may follow `tokens`, the prompt and the output so far; () without a guess."""
        ...


class Drafts:
    """What is guessed for one request, and how often such guesses were right."""

    __slots__ = ("_drafter", "chance", "proposal")

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.chance = 0.5  # that a guess is right if those before it are: an exponential average
        self.proposal: tuple[int, ...] = ()

    def propose(self, tokens: Sequence[int], limit: int) -> None:
        """Guess what follows `tokens`, at most `limit` ids."""
        self.proposal = self._drafter.propose(tokens, min(limit, _LONGEST))

    def learn(self, chosen: Sequence[int]) -> None:
        """Compare the proposal with what was chosen; later guesses than the first wrong one tell nothing."""
        for guess, token_id in zip(self.proposal, chosen):
            self.chance += ((guess == token_id) - self.chance) / _MEMORY
            if guess != token_id:
                return


_DRAFTERS: dict[str, Callable[[], Drafter]] = {}

D = TypeVar("D", bound=Drafter)


def register(name: str) -> Callable[[type[D]], type[D]]:
    """Class decorator: make a drafter known by `name`."""

    def known(build: type[D]) -> type[D]:
        if name in names():
            raise InvariantViolation(f"two drafters are called {name!r}")
        _DRAFTERS[name] = build
        return build

    return known


def drafter(name: str) -> Callable[[], Drafter] | None:
    """What makes a drafter called `name`; None for "off". Raises ConfigError, listing the names there are."""
    if name not in names():
        raise ConfigError(f"{name!r} is no way to speculate: choose one of {', '.join(names())}")
    return _DRAFTERS.get(name)


def names() -> tuple[str, ...]:
    """The known names, "off" first."""
    return OFF, *sorted(_DRAFTERS)


@register("lookup")
class PromptLookup:
    """What followed the last tokens where they stood before (Prompt Lookup Decoding, Saxena 2023).

    Of the latest places with the same last two tokens it takes the one with the longest equal past. A copy that reaches
    its own beginning goes on with it, so a repetition is guessed at any length.
    """

    __slots__ = ("_before", "_latest", "_read")

    _PLACES = 8  # looked at
    _PAST = 16  # tokens compared at each, the pair included

    def __init__(self) -> None:
        self._read = 1  # tokens before this index are in the index as the second of a pair
        self._latest: dict[tuple[int, int], int] = {}  # pair of tokens -> index after its latest place
        self._before = array("l", (0, 0))  # index after a pair -> index after the same pair before; 0: none

    def propose(self, tokens: Sequence[int], limit: int) -> tuple[int, ...]:
        """See Drafter. Takes a few microseconds, and at the first call about half of one for each token."""
        length = len(tokens)
        if length < 3 or limit < 1:
            return ()
        self._index(tokens)
        place = self._latest.get((tokens[-2], tokens[-1]), 0)
        best, longest = 0, 0
        for _ in range(self._PLACES):
            if not place:
                break
            past = self._past(tokens, place)
            if past > longest:
                best, longest = place, past
            place = self._before[place]
        if not best:
            return ()
        period = length - best
        return tuple(tokens[best + i % period] for i in range(limit))

    def _index(self, tokens: Sequence[int]) -> None:
        """Read all pairs but the last one, which is what is looked up."""
        latest, before = self._latest, self._before
        for end in range(self._read + 1, len(tokens)):
            pair = tokens[end - 2], tokens[end - 1]
            before.append(latest.get(pair, 0))
            latest[pair] = end
        self._read = max(self._read, len(tokens) - 1)

    def _past(self, tokens: Sequence[int], place: int) -> int:
        """How many tokens before `place` equal the last ones, at most _PAST."""
        most = min(self._PAST, place)
        for back in range(3, most + 1):
            if tokens[place - back] != tokens[-back]:
                return back - 1
        return most
