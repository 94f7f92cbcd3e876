"""A process's way to its first answer: seconds by phase, a collector that waits, and memory given back.

Importing and loading make half a million objects and keep nearly all. The collector would go over them again and again,
which is a second of the five that a start takes; so it waits, and what it finds then it leaves alone for good.
"""

from __future__ import annotations

import ctypes
import gc
import os
import time
from pathlib import Path


class Phases:
    """Seconds by phase, in order."""

    def __init__(self, since: float | None = None) -> None:
        """The first phase begins at `since` on the clock of `time.monotonic`; None: now."""
        self._began = self._last = time.monotonic() if since is None else since
        self._seconds: dict[str, float] = {}

    def end(self, phase: str) -> None:
        """What was done since the last call was `phase`."""
        now = time.monotonic()
        self._seconds[phase] = now - self._last
        self._last = now

    def fields(self) -> dict[str, float]:
        """For a line of the log: PHASE_s of each, and total_s, rounded to milliseconds."""
        named = {f"{phase}_s": round(seconds, 3) for phase, seconds in self._seconds.items()}
        return named | {"total_s": round(self._last - self._began, 3)}


def process_start() -> float:
    """When this process started, on the clock of `time.monotonic`; now where the system does not tell."""
    now = time.monotonic()
    try:
        ticks = int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
        return now - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, AttributeError):
        return now


_paused = False


def pause_collection() -> None:
    """Collect no garbage until `resume_collection`."""
    global _paused  # noqa: PLW0603 - the collector is the process's as well
    gc.disable()
    _paused = True


def resume_collection() -> None:
    """Collect again, but for what there is by now; does nothing where nothing was paused."""
    global _paused  # noqa: PLW0603
    if _paused:
        gc.freeze()
        gc.enable()
        _paused = False


def give_back_memory() -> None:
    """Have the C library hand what is freed back to the system; without glibc nothing happens.

    Loading frees what weights were made from, in pieces that glibc keeps for later: some 50 to 80 MB of SmolLM2's.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
