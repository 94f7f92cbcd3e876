"""`cache_first`: the worker that has the most of the prompt, whatever else it has to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ghostkv.protocol.assign import Resource
from ghostkv.routing.registry import Asked, register


@register
@dataclass(frozen=True, slots=True)
class CacheFirst:
    """Affinity without a limit."""

    name: str = "cache_first"

    def choose(self, asked: Asked, resources: Sequence[Resource]) -> int:
        """The fewest new tokens, then the fewest segments, then the first."""
        return min(range(len(resources)), key=lambda index: (resources[index].new, resources[index].busy))
