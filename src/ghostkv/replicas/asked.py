"""A request as the relay passes it to a replica, and what a replica says of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Message = Mapping[str, Any]
"""As ASGI has them, of a reply: its start, and pieces of its body."""


@dataclass(frozen=True, slots=True)
class Asked:
    """An HTTP request, read whole."""

    scope: Mapping[str, Any]  # of ASGI, as far as it can be sent
    body: bytes
    ticket: str  # by which a session knows it again
    gone: tuple[str, ...] = ()  # servers that have died answering it, as the store names them


class ReplicaGone(Exception):
    """The replica that was asked is dead."""


class Replicas(Protocol):
    """Those that can be asked."""

    def ask(self, asked: Asked, route: str) -> AsyncGenerator[str | list[Message]]:
        """First the name of the server that answers, then its reply as it comes; closing it tells it to stop.

        Equal routes go to the same replica while it lives; other routes may go to another. Raises ReplicaGone.
        """
        ...
