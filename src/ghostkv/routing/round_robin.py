"""`round_robin`: one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ghostkv.protocol.assign import Resource
from ghostkv.routing.registry import Asked, register


@register
@dataclass(frozen=True, slots=True)
class RoundRobin:
    """Looks at nothing."""

    name: str = "round_robin"

    def choose(self, asked: Asked, resources: Sequence[Resource]) -> int:
        """The next in turn."""
        return asked.number % len(resources)
