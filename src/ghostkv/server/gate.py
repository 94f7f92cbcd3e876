"""Where every answer comes in: who may stand in line, for how long, and who is inside. It refuses before any work.

An answer is in line until its first token: here, on the event loop, that is known at once and exactly, whatever the
engine's thread is doing. So the engine's own line is never longer than this one, and does not refuse what came in.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ghostkv.errors import Draining, GhostError, InvalidRequest, Overloaded
from ghostkv.server.pace import Pace
from ghostkv.session.turn import Event, Output

_MOST_WAIT_S = 60  # of a Retry-After; clients do not heed longer ones
_STANDING_S = 1.0  # a line whose first has waited for less is one that may be moving at once


@dataclass(frozen=True, slots=True)
class Room:
    """How long the line may be."""

    answers: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Asked:
    """The most that one answer may cost, in tokens."""

    prompt: int
    answer: int

    @property
    def tokens(self) -> int:
        """Both."""
        return self.prompt + self.answer


@dataclass(slots=True, eq=False)
class Place:
    """One answer inside."""

    asked: Asked
    since: float  # seconds, the gate's clock
    end: Callable[[GhostError], None]
    generated: int = 0


class Gate:
    """Of the event loop's thread alone."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds."""
        self.pace = Pace(clock)
        self._clock = clock
        self._line: dict[Place, None] = {}  # in order of arrival
        self._working: set[Place] = set()
        self._shut_until: float | None = None  # about when another server may answer here
        self._promised = 0.0  # when the latest of those that were refused may come again

    @property
    def shut(self) -> bool:
        """Whether nobody comes in any more."""
        return self._shut_until is not None

    @property
    def inside(self) -> int:
        """Answers that have not ended."""
        return len(self._line) + len(self._working)

    @property
    def waiting(self) -> int:
        """Answers without a token."""
        return len(self._line)

    @property
    def waiting_tokens(self) -> int:
        """The most that those may cost."""
        return sum(place.asked.tokens for place in self._line)

    @property
    def wait_s(self) -> float:
        """Seconds in which what is in line now will be done: its prompts and answers of typical length."""
        return sum(self._likely(place.asked) for place in self._line) / self.pace.rate

    def check_open(self) -> None:
        """Raises Draining once the gate is shut."""
        if self._shut_until is not None:
            left = max(1, math.ceil(self._shut_until - self._clock()))
            raise Draining("the server is shutting down and takes no more requests", retry_after=left)

    def enter(
        self, asked: Sequence[Asked], room: Room, end: Callable[[GhostError], None], deadline_s: float | None = None
    ) -> list[Place]:
        """A place for each answer of one HTTP request, or none for all of them. `end` is how `end_all` ends it.

        Raises Draining; InvalidRequest for more answers than the line ever holds; Overloaded where the line has no
        room, or stands still and is so long that the deadline would pass in it.
        """
        self.check_open()
        if len(asked) > room.answers:
            raise InvalidRequest(
                f"{len(asked)} answers are asked for at once, but at most {room.answers} may wait in line here",
                param="n",
            )
        self._check_room(asked, room)
        if deadline_s is not None:
            self._check_deadline(asked, deadline_s)
        self.pace.begin()
        now = self._clock()
        places = [Place(each, now, end) for each in asked]
        self._line.update(dict.fromkeys(places))
        return places

    def stay(self, end: Callable[[GhostError], None]) -> Place:
        """A place for work that costs the engine nothing and for which the server stays: `leave` it."""
        place = Place(Asked(0, 0), self._clock(), end)
        self._working.add(place)
        return place

    def took(self, place: Place, event: Event) -> None:
        """An answer said something; from the first time on it is out of the line."""
        tokens = len(event.tokens) if isinstance(event, Output) else 0
        place.generated += tokens
        if place in self._line:
            del self._line[place]
            self._working.add(place)
            tokens += place.asked.prompt
        self.pace.worked(tokens)

    def leave(self, place: Place) -> None:
        """An answer has ended, however it did."""
        if place in self._working:
            self.pace.answered(place.generated)
        self._line.pop(place, None)
        self._working.discard(place)
        if not self.inside:
            self.pace.rest()

    @property
    def shut_for(self) -> float | None:
        """Seconds until another server may answer here; None while this one lets in."""
        return None if self._shut_until is None else self._shut_until - self._clock()

    def close(self, seconds: float) -> None:
        """Let nobody in any more; in about so many seconds another server may stand here."""
        self._shut_until = self._clock() + seconds

    def end_all(self, error: Callable[[], GhostError]) -> None:
        """End every answer with an error of its own."""
        for place in [*self._line, *self._working]:
            place.end(error())

    def _check_room(self, asked: Sequence[Asked], room: Room) -> None:
        """A line that holds nobody has room for any one request."""
        count, tokens = self.waiting, self.waiting_tokens
        if count + len(asked) > room.answers:
            said = f"{count} answers are waiting, and this server keeps at most {room.answers} in line"
        elif count and tokens + sum(each.tokens for each in asked) > room.tokens:
            said = f"{tokens} tokens are waiting, and this server keeps at most {room.tokens} in line"
        else:
            return
        after = self._retry_after(asked)
        raise Overloaded(f"{said}; try again in {after} s", retry_after=after)

    def _check_deadline(self, asked: Sequence[Asked], deadline_s: float) -> None:
        first = next(iter(self._line), None)
        if first is None or not self.pace.measured or self._clock() - first.since < _STANDING_S:
            return
        if (wait := self.wait_s) > deadline_s:
            after = self._retry_after(asked)
            raise Overloaded(
                f"about {math.ceil(wait)} s of work are waiting in line, so this would not begin within its deadline "
                f"of {deadline_s:g} s; try again in {after} s",
                param="ghostkv.deadline_s",
                retry_after=after,
            )

    def _retry_after(self, asked: Sequence[Asked]) -> int:
        """When the line will have moved on. Those who are refused now come back one after another, not all at once."""
        now = self._clock()
        at = min(max(now + self.wait_s, self._promised), now + _MOST_WAIT_S)
        self._promised = at + sum(map(self._likely, asked)) / self.pace.rate
        return max(1, math.ceil(at - now))

    def _likely(self, asked: Asked) -> float:
        return asked.prompt + min(asked.answer, self.pace.typical)
