"""Worker assignment against a brute-force reading of its rule."""

from __future__ import annotations

from itertools import product

import pytest

from ghostkv.errors import InvariantViolation
from ghostkv.protocol.assign import Assignment, Resource, assign_worker

DENSITIES = (0.0, 0.59, 0.6, 1.0)


def expected(density: float, resources: list[Resource]) -> int:
    """Sort by what the rule says, first in order winning."""
    indexed = list(enumerate(resources))
    roomy = [(i, r) for i, r in indexed if r.room >= 1]
    if not roomy:
        return sorted(indexed, key=lambda pair: (pair[1].waiting, pair[0]))[0][0]
    sign = -1 if density >= 0.6 else 1
    return sorted(roomy, key=lambda pair: (sign * pair[1].strength, pair[0]))[0][0]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_small_case(count: int) -> None:
    kinds = [Resource("w", *values) for values in product((0, 1, 2)[:count], (0, 1, 5), (0, 2))]
    for resources in product(kinds, repeat=count):
        for density in DENSITIES:
            assert assign_worker(density, resources).index == expected(density, list(resources))


def test_reasons() -> None:
    weak, strong = Resource("weak", 0, 3, 0), Resource("strong", 1, 3, 9)
    full, queued = Resource("full", 2, 0, 4), Resource("queued", 2, 0, 1)
    assert assign_worker(0.9, [weak]) == Assignment(0, "the only worker")
    assert assign_worker(0.9, [full]) == Assignment(0, "the only worker")
    assert assign_worker(0.734, [weak, strong, full]) == Assignment(1, "density 0.73: the strongest with room")
    assert assign_worker(0.2, [full, strong, weak]) == Assignment(2, "density 0.20: the weakest with room")
    assert assign_worker(0.2, [full, queued]) == Assignment(1, "none has room: the shortest line")
    with pytest.raises(InvariantViolation):
        assign_worker(0.2, [])
