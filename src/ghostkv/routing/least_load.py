"""`least_load`: the worker that has the fewest segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ghostkv.protocol.assign import Resource
from ghostkv.routing.registry import Asked, register


@register
@dataclass(frozen=True, slots=True)
class LeastLoad:
    """Looks at no cache."""

    name: str = "least_load"

    def choose(self, asked: Asked, resources: Sequence[Resource]) -> int:
        """The fewest segments, then the fewest prompt tokens to be computed, then the first."""
        return min(range(len(resources)), key=lambda index: (resources[index].busy, resources[index].unread))
