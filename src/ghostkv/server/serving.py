"""What every route stands on, in one value."""

from __future__ import annotations

from dataclasses import dataclass

from ghostkv.server.observe import Observer
from ghostkv.session.worker import Worker


@dataclass(frozen=True, slots=True)
class Serving:
    """A worker and what the server keeps beside it; their lives are the caller's business."""

    worker: Worker
    observers: tuple[Observer, ...] = ()
