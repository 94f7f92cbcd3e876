"""The table of residency policies, and what the continuity loop reads from one. No policy is named here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ghostkv.errors import InvalidRequest, InvariantViolation
from ghostkv.request import Residency


@dataclass(frozen=True, slots=True)
class SegmentBudget:
    """The constants of a policy that flushes, in tokens. They never depend on pool or load."""

    target: int
    """Generated tokens after which the next natural end is a boundary."""
    cap: int
    """Generated tokens at which a segment ends wherever it stands; what is reserved for it."""
    tail: int
    """Last tokens of the open answer that the next segment's prompt repeats, at most."""
    state: int
    """Prompt tokens set aside for the state block."""
    recall: int
    """Prompt tokens set aside for recalled sentences."""
    whole: bool = False
    """Whether an answer begins with the client's whole prompt, where that fits with a segment. Then decisions may
    depend on pool and load, and are recorded."""

    @property
    def carried(self) -> int:
        """Prompt tokens set aside beside the head."""
        return self.tail + self.state + self.recall

    def allowance(self, *, head: int, remaining: int, context: int) -> int:
        """Prompt tokens that a segment may have: head and constants, within what the model's context leaves.

        It does not depend on the pool, so neither does the text.
        """
        return min(head + self.carried, context - min(self.cap, remaining))

    def flushed(self, *, head: int, emitted: int, remaining: int, context: int) -> int:
        """The most prompt tokens of a segment after a flush at the next boundary; `remaining` tokens before it."""
        generated = min(self.cap, remaining)
        allowed = self.allowance(head=head, remaining=max(1, remaining - generated), context=context)
        return min(allowed, head + emitted + generated)


class Policy(Residency, Protocol):
    """A residency policy as the continuity loop sees it."""

    @property
    def budget(self) -> SegmentBudget | None:
        """The constants of its segments; None where the policy never flushes, so that no boundary rule is needed."""
        ...


DEFAULT_RESIDENCY = "auto"
"""Of requests that name none."""

_POLICIES: dict[str, Policy] = {}

P = TypeVar("P", bound=Policy)


def register(build: Callable[[], P]) -> Callable[[], P]:
    """Class decorator: make the policy known by its `name`, with its default constants."""
    made = build()
    if made.name in _POLICIES:
        raise InvariantViolation(f"two residency policies are called {made.name!r}")
    _POLICIES[made.name] = made
    return build


def policy(name: str) -> Policy:
    """The policy called `name`. Raises InvalidRequest, listing the names there are."""
    found = _POLICIES.get(name)
    if found is None:
        raise InvalidRequest(
            f"{name!r} is not a residency policy: choose one of {', '.join(names())}", param="ghostkv.residency"
        )
    return found


def names() -> tuple[str, ...]:
    """The known names, sorted."""
    return tuple(sorted(_POLICIES))
