"""Worker assignment against a brute-force reading of its rule."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest

from ghostkv.errors import InvariantViolation
from ghostkv.protocol.assign import Assignment, Resource, assign_worker

DENSITIES = (0.0, 0.59, 0.6, 1.0)


def expected(density: float, resources: list[Resource]) -> list[int]:
    """Those that the rule leaves to choose from."""
    indexed = list(enumerate(resources))
    roomy = [(i, r) for i, r in indexed if r.room >= 1]
    if not roomy or len(resources) == 1:
        return [i for i, _ in indexed]
    sign = -1 if density >= 0.6 else 1
    least = min(sign * r.strength for _, r in roomy)
    return [i for i, r in roomy if sign * r.strength == least]


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("which", [0, -1])
def test_every_small_case(count: int, which: int) -> None:
    kinds = [Resource("w", *values) for values in product((0, 1, 2)[:count], (0, 1, 5))]

    def choose(equal: Sequence[Resource]) -> int:
        return range(len(equal))[which]

    for resources in product(kinds, repeat=count):
        for density in DENSITIES:
            left = expected(density, list(resources))
            assert assign_worker(density, resources, choose).index == left[which]
            assert assign_worker(density, resources).index == left[0]


def test_reasons() -> None:
    weak, strong = Resource("weak", 0, 3), Resource("strong", 1, 3)
    full, other = Resource("full", 2, 0), Resource("other", 2, 0)
    assert assign_worker(0.9, [weak]) == Assignment(0, "the only worker")
    assert assign_worker(0.9, [full]) == Assignment(0, "the only worker")
    assert assign_worker(0.734, [weak, strong, full]) == Assignment(1, "density 0.73: the strongest with room")
    assert assign_worker(0.2, [full, strong, weak]) == Assignment(2, "density 0.20: the weakest with room")
    assert assign_worker(0.2, [full, other], lambda equal: len(equal) - 1) == Assignment(1, "none has room")
    with pytest.raises(InvariantViolation):
        assign_worker(0.2, [])
