"""What keeping and flushing are predicted to give, from what steps cost here: numbers, which a policy decides on.

Memory decides what is possible and predicted throughput what is done. The controller knows tokens, blocks and seconds;
it holds no request and decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ghostkv.engine.forecast import Forecast, Work
from ghostkv.engine.step_cost import StepCost

_ASSUMED = 0.5  # share that answers use of what they may, as long as none has ended
_WORTH = 1  # answers that this counts as
_ANSWERS = 32  # over which the share is averaged
_RESUMED = 8  # segments after a flush, over which the share is averaged that is computed of their prompts
_SPARED = 0.03  # more time, for which answers that can be had again are kept while others are flushed
_TURNS = 0.03  # of the time that somebody has waited too long, for turns: what they cost is bounded by it


@dataclass(slots=True)
class Controller:
    """Over one engine's table of step costs. It learns what answers use of what they may, and what a flush costs."""

    cost: StepCost
    blocks: int  # of the pool
    max_sequences: int
    _used: float = _ASSUMED  # share of the output that answers were allowed, on average over the latest
    _ended: int = 0  # answers
    _computed: float = 0.5  # likewise: share of prompts after a flush that was not found in the index
    _credit_s: float = 0.0  # for turns

    @property
    def learned(self) -> bool:
        """Whether an answer has ended, so that `expected` is more than what is allowed."""
        return self._ended > 0

    @property
    def recomputed(self) -> float:
        """Share of the prompt after a flush that is expected to be computed."""
        return self._computed

    def ended(self, used: int, allowed: int) -> None:
        """An answer that was allowed `allowed` output tokens has ended after `used`."""
        self._ended += 1
        self._used += (used / max(1, allowed) - self._used) / min(_ANSWERS, self._ended + _WORTH)

    def resumed(self, prompt: int, computed: int) -> None:
        """Of the `prompt` tokens that an answer goes on from after a flush, `computed` are to be computed."""
        self._computed += (computed / max(1, prompt) - self._computed) / _RESUMED

    def overdue(self, seconds: float) -> None:
        """A step of `seconds` has gone by while somebody had waited too long."""
        self._credit_s += _TURNS * seconds

    def turns(self, cost_s: float) -> float:
        """Flushes that cost so much for which there is credit."""
        return self._credit_s / max(1e-9, cost_s)

    def took_turn(self, cost_s: float) -> None:
        """One of them was taken."""
        self._credit_s = max(0.0, self._credit_s - cost_s)

    def _flush_s(self, flushed: int) -> float:
        return max(1e-9, self.cost.times().prefill * self._computed * flushed)

    def expected(self, emitted: int, left: int) -> int:
        """Output tokens that are still to come, of an answer that has `emitted` and may have `left` more."""
        likely = round(self._used * (emitted + left)) - emitted
        return min(left, max(likely, round(self._used * left), 1))

    def gain(self, works: Sequence[Work]) -> float:
        """By how much longer all that is known takes with room for whole answers than segment by segment: 0.1 is 10 %.

        0.0 where it all fits side by side: then nothing is flushed, even where shorter texts would be read faster.
        """
        forecast = self._forecast()
        if forecast.fits(works):
            return 0.0
        return max(forecast.whole_s(works)) / max(forecast.parts_s(works)) - 1

    def spares(self, works: Sequence[Work], repeatable: Sequence[bool]) -> bool:
        """Whether keeping what is `repeatable` of `works` costs little where the rest goes segment by segment."""
        forecast = self._forecast()
        spared = [replace(work, spared=kept) for work, kept in zip(works, repeatable, strict=True)]
        return max(forecast.parts_s(spared)) <= (1 + _SPARED) * max(forecast.parts_s(works))

    def seconds(self, works: Sequence[Work], *, whole: bool) -> float:
        """Until the last of `works` has ended, in order of arrival, with room for whole answers or by segments."""
        forecast = self._forecast()
        return (forecast.whole_s if whole else forecast.parts_s)(works)[-1]

    def turn_s(self, works: Sequence[Work], flushed: Work) -> float:
        """Seconds that are lost if the first of `works` is flushed, and goes on as `flushed` behind all the others."""
        forecast = self._forecast()
        later = max(forecast.whole_s([*works[1:], flushed])) - max(forecast.whole_s(works))
        return max(later, self._flush_s(flushed.prompt))

    def _forecast(self) -> Forecast:
        return Forecast(self.cost.times(), self.blocks, self.max_sequences, self._computed)
