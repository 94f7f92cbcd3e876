"""How fast the server works when it is busy. It counts; it decides nothing."""

from __future__ import annotations

from collections.abc import Callable

_WINDOW_S = 1.0  # busy seconds that are measured together
_FADE = 0.9  # what is left of the best window's speed after each that was slower
_ASSUMED = 100.0  # tokens per second, before anything was measured
_TYPICAL = 256  # tokens of an answer, before one has ended
_LEARNING = 0.1  # weight of the latest answer in the mean length
_LEAST = 1.0  # tokens per second


class Pace:
    """Tokens per second, prompts and answers together, about as in the best of the latest busy seconds.

    Not the mean: it would count seconds in which few answers ran side by side, and a line moves at the speed of many.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: seconds, monotonic."""
        self.typical = float(_TYPICAL)
        """Tokens of an answer, the mean of the latest."""
        self._clock = clock
        self._best: float | None = None
        self._tokens = 0
        self._busy = 0.0  # seconds of this window
        self._since: float | None = None  # the latest moment that is in it; None while there is nothing to do

    @property
    def measured(self) -> bool:
        """Whether `rate` is more than an assumption."""
        return self._best is not None

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return _ASSUMED if self._best is None else max(_LEAST, self._best)

    def begin(self) -> None:
        """There is something to do."""
        if self._since is None:
            self._since = self._clock()

    def rest(self) -> None:
        """There is nothing to do."""
        self.worked(0)
        self._since = None

    def worked(self, tokens: int) -> None:
        """So many more are done."""
        self._tokens += tokens
        now = self._clock()
        if self._since is not None:
            self._busy += now - self._since
            self._since = now
        if self._busy >= _WINDOW_S:
            rate = self._tokens / self._busy
            self._best = rate if self._best is None else max(rate, self._best * _FADE)
            self._tokens, self._busy = 0, 0.0

    def answered(self, tokens: int) -> None:
        """An answer has ended with so many."""
        self.typical += _LEARNING * (tokens - self.typical)
