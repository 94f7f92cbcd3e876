"""What one API key may use: requests at a time, requests and tokens in a minute. No HTTP here, and no engine."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from ghostkv.errors import RateLimited

_MINUTE = 60  # seconds
_LEARNING = 0.2  # weight of the latest request in the mean duration


@dataclass(frozen=True, slots=True)
class Rates:
    """Limits; None: none."""

    concurrent: int | None = None  # requests at a time
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None  # the client's prompts and what was generated


class Spent:
    """What was spent in the last minute, in seconds' resolution."""

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, int]] = deque()  # (second, amount), ascending
        self._total = 0

    def add(self, amount: int, now: float) -> None:
        """Spend."""
        self._forget(now)
        second = math.floor(now)
        self._total += amount
        if self._seconds and self._seconds[-1][0] == second:
            amount += self._seconds.pop()[1]
        self._seconds.append((second, amount))

    def wait(self, most: int, now: float) -> float:
        """Seconds until less than `most` was spent in a minute; 0 if that is so now."""
        self._forget(now)
        left = self._total
        for second, amount in self._seconds:
            if left < most:
                break
            left -= amount
            if left < most:
                return second + _MINUTE - now
        return 0.0

    def _forget(self, now: float) -> None:
        while self._seconds and self._seconds[0][0] + _MINUTE <= now:
            self._total -= self._seconds.popleft()[1]


class Meter:
    """One key's use, held against its limits. Of the event loop's thread alone; times are seconds of one clock.

    What a request will generate is not known before, so it is admitted while the minute's tokens are not used up, and
    may use more than was left.
    """

    def __init__(self, rates: Rates | None = None) -> None:
        self._rates = rates or Rates()
        self._running = 0
        self._mean = 1.0  # seconds of a request
        self._requests = Spent()
        self._tokens = Spent()

    def enter(self, now: float) -> float:
        """Begin a request; returns what `leave` takes. Raises RateLimited, which says when to ask again."""
        rates = self._rates
        if rates.concurrent is not None and self._running >= rates.concurrent:
            said = f"this key has {self._running} requests running, as many as it may have at a time"
            raise RateLimited(said, retry_after=_seconds(self._mean / self._running))
        self._check("requests", rates.requests_per_minute, self._requests, now)
        self._check("tokens", rates.tokens_per_minute, self._tokens, now)
        self._requests.add(1, now)
        self._running += 1
        return now

    def leave(self, began: float, now: float) -> None:
        """A request has ended."""
        self._running -= 1
        self._mean += _LEARNING * (now - began - self._mean)

    def spend(self, tokens: int, now: float) -> None:
        """Count tokens."""
        self._tokens.add(tokens, now)

    def _check(self, name: str, most: int | None, spent: Spent, now: float) -> None:
        if most is None:
            return
        wait = spent.wait(most, now)
        if wait > 0:
            raise RateLimited(f"this key may use {most} {name} per minute, and has", retry_after=_seconds(wait))


def _seconds(wait: float) -> int:
    """For a Retry-After: whole, at least one, and no more than a minute, beyond which clients ignore it."""
    return min(_MINUTE, max(1, math.ceil(wait)))
