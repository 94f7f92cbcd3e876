"""The last minutes of the engine, in moments of half a second: memory, load and tokens. Bounded; no text, no answers.

Steps come from the engine's thread, tokens from the event loop, readers from anywhere.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ghostkv.engine.stats import StepTrace

MOMENT_S = 0.5
SPAN_S = 300.0
_IDLE_S = 0.25
"""Between two steps of a busy engine less time passes."""
_FRESH_S = 1.0
"""A worker whose last step is older than this, and than two of its steps, has stopped stepping."""


@dataclass(slots=True)
class Moment:
    """Half a second. What varies within it stands at its highest, `resident` and `cached` at their last."""

    index: int  # of the half second, counted from the clock's zero
    live: int = 0  # bytes of referenced blocks, reserved slots included
    cached: int = 0  # bytes of blocks that nobody references
    resident: int = 0  # tokens that answers hold, summed; a shared one counts for each
    running: int = 0  # requests
    waiting: int = 0  # requests
    prefilled: int = 0  # tokens computed of prompts
    generated: int = 0  # tokens that answers got

    @property
    def at(self) -> float:
        """Seconds on the timeline's clock, of its end."""
        return (self.index + 1) * MOMENT_S


class Timeline:
    """What is kept is SPAN_S seconds at most, whatever happens in them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: seconds, monotonic."""
        self._clock = clock
        self._lock = threading.Lock()
        self._moments: deque[Moment] = deque(maxlen=int(SPAN_S / MOMENT_S))
        self._level = Moment(0)  # memory and load now: what a new moment begins with
        self._block_bytes: tuple[int, ...] = ()
        self._latest: dict[int, tuple[float, StepTrace]] = {}  # by worker: when it ended
        self._busy_until: float | None = None

    def begin(self, block_bytes: Sequence[int]) -> None:
        """Tell the bytes of a block, for each worker; steps of others are not counted."""
        with self._lock:
            self._block_bytes = tuple(block_bytes)

    def stepped(self, worker: int, trace: StepTrace) -> None:
        """A step has just ended."""
        end = self._clock()
        start = end - trace.seconds
        with self._lock:
            if worker >= len(self._block_bytes):
                return
            if self._busy_until is not None and start - self._busy_until > _IDLE_S:
                self._rest(start)
            self._latest[worker] = end, trace
            self._busy_until = end
            moment, level = self._moment(end), self._level
            self._account(end)
            moment.live = max(moment.live, level.live)
            moment.running = max(moment.running, level.running)
            moment.waiting = max(moment.waiting, level.waiting)
            moment.cached = level.cached
            moment.prefilled += trace.prefill_tokens

    def told(self, tokens: int, resident: int) -> None:
        """Answers got `tokens`, and the tokens that they hold became `resident` more, or fewer."""
        with self._lock:
            moment = self._moment(self._clock())
            self._level.resident += resident
            moment.generated += tokens
            moment.resident = self._level.resident

    def read(self, *, busy: bool) -> tuple[Moment, ...]:
        """Copies, oldest first, the last one now. `busy`: some answer runs, so a pause is a long step and no rest."""
        now = self._clock()
        with self._lock:
            if self._busy_until is not None and now - self._busy_until > 2 * MOMENT_S and not busy:
                self._rest(now)
            self._moment(now)
            return tuple(replace(moment) for moment in self._moments if moment.at >= now - SPAN_S)

    def _moment(self, now: float) -> Moment:
        index = int(now / MOMENT_S)
        if not self._moments or self._moments[-1].index < index:
            self._moments.append(replace(self._level, index=index))
        return self._moments[-1]

    def _rest(self, until: float) -> None:
        """Nothing was computed from the last step to `until`: a moment at either end of the pause says so."""
        self._level = Moment(0, cached=self._level.cached, resident=self._level.resident)
        first, final = self._moments[-1].index + 1, int(until / MOMENT_S) - 1
        for index in dict.fromkeys((first, final)):
            if first <= index <= final:
                self._moments.append(replace(self._level, index=index))

    def _account(self, now: float) -> None:
        """The level after a step: what all workers hold that still step."""
        level = self._level
        level.live = level.running = level.waiting = level.cached = 0
        for worker, (end, trace) in self._latest.items():
            level.cached += trace.cached_blocks * self._block_bytes[worker]
            if now - end <= max(_FRESH_S, 2 * trace.seconds):
                level.live += trace.live_blocks * self._block_bytes[worker]
                level.running += trace.running
                level.waiting += trace.waiting
