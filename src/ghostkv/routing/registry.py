"""The table of routers. No router is named here but the default."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ghostkv.errors import ConfigError, InvariantViolation
from ghostkv.protocol.assign import Resource

DEFAULT_ROUTER = "lmetric"
"""Measured (docs/benchmarks.md, Routing)."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The segment to be placed."""

    number: int  # of all that were placed before it
    key: bytes  # equal for segments that begin alike: of one program, or with the same first tokens


_KEY_TOKENS = 256  # of a prompt, that tell it from others


def key_of(program: str, ids: Sequence[int]) -> bytes:
    """The key of a segment of a program, or of none, whose prompt begins with `ids`."""
    return program.encode() if program else b",".join(b"%d" % token for token in ids[:_KEY_TOKENS])


class Router(Protocol):
    """One rule. A frozen value: what it may look at is in the call."""

    @property
    def name(self) -> str:
        """Under which it is asked for."""
        ...

    def choose(self, asked: Asked, resources: Sequence[Resource]) -> int:
        """The index of the worker to take, of at least one."""
        ...


_ROUTERS: dict[str, Router] = {}

R = TypeVar("R", bound=Router)


def register(build: Callable[[], R]) -> Callable[[], R]:
    """Class decorator: make the router known by its `name`."""
    made = build()
    if made.name in _ROUTERS:
        raise InvariantViolation(f"two routers are called {made.name!r}")
    _ROUTERS[made.name] = made
    return build


def router(name: str) -> Router:
    """The router called `name`. Raises ConfigError, listing the names there are."""
    found = _ROUTERS.get(name)
    if found is None:
        raise ConfigError(f"{name!r} is not a router: choose one of {', '.join(names())}")
    return found


def names() -> tuple[str, ...]:
    """The known names, sorted."""
    return tuple(sorted(_ROUTERS))
