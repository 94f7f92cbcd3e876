"""`lmetric`: new prefill work times batch size, the least (LMetric, arXiv:2603.15202). There is nothing to tune.

A session stays where its blocks are as long as they are worth more than the longer line there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ghostkv.protocol.assign import Resource
from ghostkv.routing.registry import Asked, register


def score(resource: Resource) -> int:
    """Prompt tokens that are to be computed there, those of the segment included, times segments there, it included."""
    return (resource.unread + resource.new) * (resource.busy + 1)


@register
@dataclass(frozen=True, slots=True)
class LMetric:
    """The product of both, so that neither needs a weight."""

    name: str = "lmetric"

    def choose(self, asked: Asked, resources: Sequence[Resource]) -> int:
        """The least product, then the first."""
        return min(range(len(resources)), key=lambda index: score(resources[index]))
