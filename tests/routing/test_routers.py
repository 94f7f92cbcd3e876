"""The routers: what each looks at, what the switch knows, and that hashing moves few beginnings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ghostkv.errors import ConfigError
from ghostkv.protocol.assign import Resource
from ghostkv.routing import Asked, Switch, key_of, names, router
from ghostkv.routing.two_choices import TwoChoices

RESOURCES = st.lists(
    st.builds(
        Resource, st.just("w"), st.just(0), st.integers(0, 2), st.integers(1, 50), st.integers(0, 5), st.integers(0, 50)
    ),
    min_size=1,
    max_size=5,
)
LEAST: dict[str, Callable[[Resource], object]] = {
    "least_load": lambda each: each.busy,
    "cache_first": lambda each: each.new,
    "lmetric": lambda each: (each.new + each.unread) * (1 + each.busy),
}


@settings(max_examples=40)
@given(RESOURCES, st.sampled_from(sorted(LEAST)))
def test_what_each_makes_least(resources: list[Resource], name: str) -> None:
    chosen = resources[router(name).choose(Asked(7, b""), resources)]
    least = LEAST[name]
    assert all(least(chosen) <= least(each) for each in resources)  # type: ignore[operator]


@settings(max_examples=40)
@given(RESOURCES, st.integers(0, 99), st.binary(max_size=8))
def test_every_router_names_one_that_is_there(resources: list[Resource], number: int, key: bytes) -> None:
    for name in names():
        assert router(name).choose(Asked(number, key), resources) in range(len(resources))


def test_an_unknown_router_is_refused() -> None:
    with pytest.raises(ConfigError, match="'best' is not a router: choose one of cache_first, least_load, lmetric"):
        router("best")


def test_lmetric_leaves_cached_blocks_when_the_line_there_costs_more() -> None:
    """Affinity as far as it is worth: 30 new tokens behind 9 segments, or 200 behind none."""
    near, idle = Resource("near", 0, 1, new=30, busy=5), Resource("idle", 0, 1, new=200)
    assert router("lmetric").choose(Asked(0, b""), [near, idle]) == 0
    assert router("lmetric").choose(Asked(0, b""), [replace(near, busy=9), idle]) == 1


def test_two_choices_keep_their_pair_when_a_worker_joins() -> None:
    """At most 2/N of the beginnings get another pair, and each pair is fixed whatever the load."""

    def pair(workers: int, key: bytes) -> set[str]:
        found = set()
        for busy in range(workers):
            loads = [Resource(f"w{i}", 0, 1, busy=9 * (i != busy)) for i in range(workers)]
            found.add(loads[TwoChoices().choose(Asked(0, key), loads)].name)
        return found

    keys = [key_of("", range(i, i + 300)) for i in range(500)]
    before, after = ([pair(workers, key) for key in keys] for workers in (4, 5))
    assert all(len(one) == 2 for one in before + after)
    moved = sum(one != other for one, other in zip(before, after, strict=True)) / len(keys)
    assert moved <= 2 / 5 + 0.05
    assert {name for one in before for name in one} == {"w0", "w1", "w2", "w3"}


def test_keys_tell_programs_and_beginnings_apart() -> None:
    assert key_of("agent", [1, 2]) == key_of("agent", [3]) != key_of("", [1, 2])
    assert key_of("", range(256)) == key_of("", range(300)) != key_of("", range(1, 257))


@dataclass(frozen=True)
class Watching:
    """Notes what it is shown, and takes the first."""

    seen: list[tuple[Resource, ...]]
    name: str = "watching"

    def choose(self, asked: Asked, resources: object) -> int:
        self.seen.append(tuple(resources))  # type: ignore[arg-type]
        return 0


def test_the_switch_counts_what_it_placed() -> None:
    watching = Watching([])
    switch, resources = Switch(watching, 3), [Resource(f"w{i}", 0, 1, new=10 * (i + 1)) for i in range(3)]
    _, first = switch.place(0.0, b"", resources, range(3))
    assert switch.busy == (0, 0, 0)  # nothing counts that was not begun
    switch.take(first)
    _, second = switch.place(0.0, b"", resources[1:], (1, 2))
    switch.take(second)
    assignment, _ = switch.place(0.0, b"", resources, range(3))
    assert assignment.reason == "density 0.00: the weakest with room; of 3 by watching"
    assert [(each.busy, each.unread) for each in watching.seen[-1]] == [(1, 10), (1, 20), (0, 0)]
    switch.read(first)
    switch.read(first)
    for _ in range(2):
        switch.leave(second)
    switch.place(0.0, b"", resources, range(3))
    assert [(each.busy, each.unread) for each in watching.seen[-1]] == [(1, 0), (0, 0), (0, 0)]
    switch.leave(first)
    assert switch.busy == (0, 0, 0)
