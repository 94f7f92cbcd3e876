"""Ray Serve's routing of requests to replicas: equal routes to the same one; and who is there, for whoever wants it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter

_hearers: list[Callable[[frozenset[str]], None]] = []


class Router(ConsistentHashRouter):  # type: ignore[misc]  # its module has no types where Ray is not installed
    """Consistent hashing by session, as Ray has it, which says whom it may route to."""

    def update_replicas(self, replicas: list[Any]) -> None:
        """Called by Ray whenever a replica has come, is about to stop, or is gone."""
        super().update_replicas(replicas)
        there = frozenset(replica.replica_id.unique_id for replica in replicas)
        for hear in _hearers:
            hear(there)


def hear(of: Callable[[frozenset[str]], None]) -> None:
    """Have `of` called, on any thread, with the names of the replicas of this process's routers when they change."""
    _hearers.append(of)
