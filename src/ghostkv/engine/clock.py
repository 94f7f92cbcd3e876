"""Where the engine's time comes from: the only module here that reads a clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds that never run backwards. The real one and the simulator's virtual one are the two."""

    def now(self) -> float:
        """Seconds since some fixed moment."""
        ...


class MonotonicClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        """Seconds since some fixed moment of this boot."""
        return time.monotonic()
