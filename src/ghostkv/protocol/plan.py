"""Plans: the parts that an answer is made of, and which of them need which others.

A plan is a directed acyclic graph whose topological order is the order of the document, so a part can only need parts
before it. What a prompt asks for is read in `asks`, a model's outline in `outline`; running a plan is not done here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from ghostkv.errors import InvalidRequest
from ghostkv.protocol.asks import read_asks
from ghostkv.protocol.parts import Part

MOST_NODES = 48
"""Parts of one plan."""
_MOST_TITLE = 200  # characters
_MOST_GOAL = 4000  # characters
_MOST_TARGET = 1e6
_FIELD = "ghostkv.plan"

Mode = Literal["sequential", "parallel"]


@dataclass(frozen=True, slots=True)
class PlanItem:
    """One part as a client writes it down. Parts are counted from 0."""

    title: str
    goal: str = ""
    target: float = 1.0  # its share of the tokens, relative to the other parts'
    depends_on: tuple[int, ...] = ()

    @classmethod
    def of(cls, given: PlanItem | Mapping[str, object], index: int) -> PlanItem:
        """Part `index` from a mapping with these names. Raises InvalidRequest naming the field that is wrong."""
        if isinstance(given, PlanItem):
            return given
        if not isinstance(given, Mapping):
            raise _wrong(index, "", "must be an object with title, goal, target and depends_on")
        if unknown := sorted(str(name) for name in given.keys() - {"title", "goal", "target", "depends_on"}):
            raise _wrong(index, unknown[0], "unknown field")
        title, goal, target = given.get("title"), given.get("goal", ""), given.get("target", 1.0)
        depends_on = given.get("depends_on", ())
        if not isinstance(title, str):
            raise _wrong(index, "title", "must be a string")
        if not isinstance(goal, str):
            raise _wrong(index, "goal", "must be a string")
        if not isinstance(target, int | float) or isinstance(target, bool):
            raise _wrong(index, "target", "must be a number")
        if not isinstance(depends_on, list | tuple) or not all(type(other) is int for other in depends_on):
            raise _wrong(index, "depends_on", "must be a list of part numbers, counted from 0")
        return cls(title, goal, target, tuple(depends_on))


@dataclass(frozen=True, slots=True)
class Node:
    """One part of the answer."""

    index: int  # its place in the document
    title: str  # one line; "" only in the open plan
    goal: str = ""  # what it is to say, where the title does not tell
    target: float = 1.0  # its share of the tokens, relative to the other nodes'
    depends_on: tuple[int, ...] = ()  # ascending, all before `index`
    mode: Mode = "sequential"  # whether it goes on from what is written before it, or stands beside it
    heading: str = ""  # a heading that was asked for; it is written as it is, not generated


@dataclass(frozen=True, slots=True)
class Plan:
    """The parts in document order. Build it with `Plan.of`, which checks it."""

    nodes: tuple[Node, ...]

    @classmethod
    def of(cls, nodes: Iterable[Node]) -> Plan:
        """Raises InvalidRequest naming the field of the first node that is wrong."""
        found = tuple(nodes)
        if not 1 <= len(found) <= MOST_NODES:
            raise InvalidRequest(f"a plan has 1 to {MOST_NODES} parts, not {len(found)}", param=_FIELD)
        for index, node in enumerate(found):
            _check(index, node)
        return cls(found)

    @property
    def open(self) -> bool:
        """Whether this is no plan at all: one part that is the whole answer."""
        return self == OPEN

    def ancestors(self, index: int) -> tuple[int, ...]:
        """All nodes that must end before node `index` starts, ascending."""
        found: set[int] = set()
        pending = list(self.nodes[index].depends_on)
        while pending:
            node = pending.pop()
            if node not in found:
                found.add(node)
                pending += self.nodes[node].depends_on
        return tuple(sorted(found))

    def descendants(self, index: int) -> tuple[int, ...]:
        """All nodes that can only start when node `index` has ended, ascending."""
        return tuple(later for later in range(index + 1, len(self.nodes)) if index in self.ancestors(later))


OPEN = Plan((Node(0, ""),))
"""The plan of an answer that is written in one piece."""


def topological_segment(prompt: str, plan: Literal["auto"] | Sequence[PlanItem | Mapping[str, object]]) -> Plan:
    """The plan that `prompt`, the text of the last question, asks for, or the one that is given.

    "auto" reads explicit structure only and gives `OPEN` where it finds none. Raises InvalidRequest for a given plan
    that is no directed acyclic graph in document order, naming the field.
    """
    if plan != "auto":
        if isinstance(plan, str):
            raise InvalidRequest(f'a plan is "auto", "model" or a list of parts, not {plan[:20]!r}', param=_FIELD)
        return Plan.of(map(_given, range(len(plan)), [PlanItem.of(item, i) for i, item in enumerate(plan)]))
    return of_parts(read_asks(prompt))


def of_parts(parts: Sequence[Part]) -> Plan:
    """The plan of parts that were read from a text; `OPEN` if they are too few or too many."""
    if not 2 <= len(parts) <= MOST_NODES:
        return OPEN
    return Plan.of(
        Node(i, part.title, part.goal, part.weight, part.depends_on, part.mode, part.heading)
        for i, part in enumerate(parts)
    )


def divide(total: int, targets: Sequence[float]) -> tuple[int, ...]:
    """`total` in whole parts as `targets` are to each other: largest remainders, the first of equals (Hamilton)."""
    weights = [Fraction(target) for target in targets]
    exact = [total * weight / sum(weights) for weight in weights]
    parts = [math.floor(share) for share in exact]
    by_remainder = sorted(range(len(parts)), key=lambda i: (parts[i] - exact[i], i))
    for i in by_remainder[: total - sum(parts)]:
        parts[i] += 1
    return tuple(parts)


def _given(index: int, item: PlanItem) -> Node:
    depends_on = tuple(sorted(set(item.depends_on)))
    mode: Mode = "sequential" if depends_on else "parallel"
    return Node(index, item.title.strip(), item.goal.strip(), item.target, depends_on, mode)


def _check(index: int, node: Node) -> None:
    if node.index != index:
        raise _wrong(index, "index", f"is {node.index}")
    if not node.title.isprintable() or not 0 < len(node.title) <= _MOST_TITLE:
        raise _wrong(index, "title", f"must be one line of 1 to {_MOST_TITLE} characters")
    if len(node.goal) > _MOST_GOAL:
        raise _wrong(index, "goal", f"must be at most {_MOST_GOAL} characters")
    if not 0 < node.target <= _MOST_TARGET:  # false for NaN as well
        raise _wrong(index, "target", f"must be above 0 and at most {_MOST_TARGET:.0f}, not {node.target}")
    for other in node.depends_on:
        if not 0 <= other < MOST_NODES:
            raise _wrong(index, "depends_on", f"there is no part {other}")
        if other >= index:
            raise _wrong(index, "depends_on", f"part {other} does not come before it: parts are given in order")


def _wrong(index: int, name: str, said: str) -> InvalidRequest:
    field = f"{_FIELD}[{index}]" + (f".{name}" if name else "")
    return InvalidRequest(f"{field}: {said}", param=field)
