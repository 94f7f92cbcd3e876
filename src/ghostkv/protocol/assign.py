"""Which worker decodes the next segment (TGP R8): dense text goes to a strong one, light text to a weak one.

Pure arithmetic on what is known before the segment begins. It does not know models, text or tokens, and what a worker
is told when the text comes from another is `session.translate`'s business.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    waiting: int  # requests in its line


@dataclass(frozen=True, slots=True)
class Assignment:
    """The choice, and why."""

    index: int  # into the resources
    reason: str


def assign_worker(density: float, resources: Sequence[Resource]) -> Assignment:
    """The worker for a segment of this density, as far as it can be told before it is decoded.

    From DENSE on the strongest of those with room, below it the weakest of them; where none has room, the one with the
    shortest line. Of equals the first. Raises InvariantViolation for no resources.
    """
    if not resources:
        raise InvariantViolation("no worker is left to choose from")
    if len(resources) == 1:
        return Assignment(0, "the only worker")
    roomy = [index for index, resource in enumerate(resources) if resource.room > 0]
    if not roomy:
        shortest = min(range(len(resources)), key=lambda index: resources[index].waiting)
        return Assignment(shortest, "none has room: the shortest line")
    if density >= DENSE:
        strongest = max(roomy, key=lambda index: resources[index].strength)
        return Assignment(strongest, f"density {density:.2f}: the strongest with room")
    weakest = min(roomy, key=lambda index: resources[index].strength)
    return Assignment(weakest, f"density {density:.2f}: the weakest with room")
