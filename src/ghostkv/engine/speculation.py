"""How many guesses are worth computing: as many as are likely to gain more than their rows cost.

A guess is a row more in the step, and a token more if it is right. `Drafts` measures how often a request's guesses are
right, whether or not they are computed; `StepCost` what rows add to a step. So speculation ends where it does not
pay, for one request or for all, and comes back where it would. It never changes an output, only when it is there: what
is drawn decides (see `scheduler.commit`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ghostkv.engine.drafter import Drafter, Drafts
from ghostkv.engine.sequence import Sequence as Request
from ghostkv.engine.step_cost import StepCost
from ghostkv.step import Row


@dataclass(slots=True)
class Speculation:
    """The guesses of all requests. `make` makes the drafter of one; None: nothing is guessed."""

    make: Callable[[], Drafter] | None = None
    drafts: int = 0  # rows with guesses
    drafted: int = 0  # guesses computed
    accepted: int = 0  # of them, right and used
    cost: StepCost = field(default_factory=StepCost)

    def start(self) -> Drafts | None:
        """The guesses of a request that begins."""
        return None if self.make is None else Drafts(self.make())

    def rows(self, decoding: Sequence[Request], prefill: int, room: int) -> list[Row]:
        """Their rows in a step that also reads `prefill` tokens, with `room` guesses at most."""
        if self.make is None:
            return [request.decode_row() for request in decoding]
        guesses = self.lengths([request.guess() for request in decoding], prefill, room)
        rows = [request.decode_row(count) for request, count in zip(decoding, guesses, strict=True)]
        self.drafts += sum(bool(row.drafts) for row in rows)
        self.drafted += sum(len(row.drafts) for row in rows)
        return rows

    def lengths(self, proposals: Sequence[Drafts | None], prefill: int, room: int) -> list[int]:
        """How many guesses of each decoding request to compute: as many as make the most tokens a second.

        The likeliest go first. One that would not pay in a tile that is computed anyway is no candidate.
        """
        times, read, rows = self.cost.times(), self.cost.mean_read, len(proposals)
        tokens, seconds = float(rows), times.step(rows, read, prefill)
        best, rate = 0, tokens / seconds
        candidates = sorted(_candidates(proposals, rate * times.row), reverse=True)[: max(room, 0)]
        for count, (chance, _) in enumerate(candidates, 1):
            tokens += chance
            seconds = times.step(rows + count, read, prefill)
            if tokens / seconds > rate:
                best, rate = count, tokens / seconds
        lengths = [0] * rows
        for _, index in candidates[:best]:
            lengths[index] += 1
        return lengths


def _candidates(proposals: Sequence[Drafts | None], least: float) -> Iterator[tuple[float, int]]:
    """(chance, index of its request) of each guess whose chance to be right is above `least`."""
    for index, drafts in enumerate(proposals):
        if drafts is None:
            continue
        chance = 1.0
        for _ in drafts.proposal:
            chance *= drafts.chance
            if chance <= least:
                break
            yield chance, index
