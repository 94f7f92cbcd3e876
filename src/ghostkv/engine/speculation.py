"""How many guesses are worth computing: as many as are likely to gain more than their rows cost.

A guess is a row more in the step, and a token more if it is right. `Drafts` measures how often a request's guesses are
right, whether or not they are computed; `StepCost` what a row adds to a step. So speculation ends where it does not
pay, for one request or for all, and comes back where it would. It never changes an output, only when it is there: what
is drawn decides (see `scheduler.commit`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
        """How many guesses of each decoding request to compute.

        The likeliest go first. One more is worth it while chance / row > tokens / seconds, both as planned so far: else
        the step would choose fewer tokens per second than without it.
        """
        base, row = self.cost.line()
        tokens, seconds = float(len(proposals)), base + row * (len(proposals) + prefill)
        candidates = []
        for index, drafts in enumerate(proposals):
            chance, each = (1.0, drafts.chance) if drafts is not None else (0.0, 0.0)
            for _ in () if drafts is None else drafts.proposal:
                chance *= each
                if chance * seconds <= tokens * row:  # as it is now; with others in the step it pays even less
                    break
                candidates.append((chance, index))
        candidates.sort(reverse=True)
        lengths = [0] * len(proposals)
        for chance, index in candidates[: max(room, 0)]:
            if chance * seconds <= tokens * row:
                break
            lengths[index] += 1
            tokens += chance
            seconds += row
        return lengths
