"""Which worker decodes the next segment (TGP R8): dense text goes to a strong one, light text to a weak one.

Pure arithmetic on what is known before the segment begins. Which of equal workers it is, is not said here but by a
router (`ghostkv.routing`). It does not know models, text or tokens, and what a worker is told when the text comes from
another is `session.translate`'s business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ghostkv.errors import InvariantViolation

DENSE = 0.6
"""Density from which a segment counts as dense: above ordinary prose, which shows 0.5 (see `density`)."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A worker as an assignment sees it."""

    name: str
    strength: int  # rank among the workers: a larger model, or a finer precision of one model, is stronger
    room: int  # segments of this session's reservation that fit into its pool now
    new: int = 1  # tokens of the segment's prompt that it would have to compute, its blocks found
    busy: int = 0  # segments that it has been given and has not ended
    unread: int = 0  # tokens of their prompts that it has yet to compute


Choose = Callable[[Sequence[Resource]], int]
"""The index of one of equal workers; there is at least one."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The choice, and why."""

    index: int  # into the resources
    reason: str


def first(resources: Sequence[Resource]) -> int:
    """The first of equal workers."""
    return 0


def assign_worker(density: float, resources: Sequence[Resource], choose: Choose = first) -> Assignment:
    """The worker for a segment of this density, as far as it can be told before it is decoded.

    From DENSE on one of the strongest of those with room, below it one of the weakest of them; where none has room, one
    of all. `choose` says which. Raises InvariantViolation for no resources.
    """
    if not resources:
        raise InvariantViolation("no worker is left to choose from")
    if len(resources) == 1:
        return Assignment(0, "the only worker")
    roomy = [index for index, resource in enumerate(resources) if resource.room > 0]
    if not roomy:
        return Assignment(choose(resources), "none has room")
    dense = density >= DENSE
    wanted = (max if dense else min)(resources[index].strength for index in roomy)
    equal = [index for index in roomy if resources[index].strength == wanted]
    chosen = equal[choose([resources[index] for index in equal])]
    return Assignment(chosen, f"density {density:.2f}: the {'strongest' if dense else 'weakest'} with room")
