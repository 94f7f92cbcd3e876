"""`two_choices`: of two workers that a hash of the beginning names, the one with the lower LMetric (after DualMap).

Another worker changes the pair of at most some two in so many beginnings as there are workers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from ghostkv.protocol.assign import Resource
from ghostkv.routing.lmetric import score
from ghostkv.routing.registry import Asked, register


@register
@dataclass(frozen=True, slots=True)
class TwoChoices:
    """Rendezvous hashing: the two with the highest hash of name and key."""

    name: str = "two_choices"

    def choose(self, asked: Asked, resources: Sequence[Resource]) -> int:
        """Of the two, the lower score, then the higher hash."""
        ranked = sorted(range(len(resources)), key=lambda index: _hash(resources[index].name, asked.key), reverse=True)
        return min(ranked[:2], key=lambda index: score(resources[index]))


def _hash(name: str, key: bytes) -> bytes:
    return hashlib.blake2b(name.encode() + b"\0" + key, digest_size=8).digest()
