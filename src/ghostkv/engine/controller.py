"""What keeping and flushing are predicted to give, from what steps cost here: numbers, which a policy decides on.

Memory decides what is possible and predicted throughput what is done. The controller knows tokens, blocks and seconds;
it holds no request and decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from ghostkv.engine.step_cost import StepCost
from ghostkv.step import blocks_of

_ANSWERS = 32  # over which the share is averaged that answers use of what they may
_RESUMED = 8  # segments after a flush, over which the share is averaged that is computed of their prompts
_TURNS = 0.03  # of the time that somebody has waited too long, for turns: what they cost is bounded by it
_FILLED = 0.86  # of what is reserved for a segment, when its boundary comes


@dataclass(frozen=True, slots=True)
class Outlook:
    """What may become of one request from here on, in tokens."""

    prompt: int  # in the pool, or to be computed if it goes on as it is
    left: int  # output still to come
    flushed: int  # prompt that it would go on from after a flush
    segment: int  # output that is reserved at a time


@dataclass(frozen=True, slots=True)
class Pressure:
    """What else is there."""

    running: int  # requests
    waiting: int  # requests in line
    read: int  # tokens in the pool that running requests see
    head_tokens: int = 0  # prompt and reservation of the first in line


@dataclass(slots=True)
class Controller:
    """Over one engine's table of step costs. It learns what answers use of what they may, and what a flush costs."""

    cost: StepCost
    blocks: int  # of the pool
    max_sequences: int
    _used: float = 1.0  # share of the output that answers were allowed, on average over the latest
    _computed: float = 0.5  # likewise: share of prompts after a flush that was not found in the index
    _credit_s: float = 0.0  # for turns

    def ended(self, used: int, allowed: int) -> None:
        """An answer that was allowed `allowed` output tokens has ended after `used`."""
        self._used += (used / max(1, allowed) - self._used) / _ANSWERS

    def resumed(self, prompt: int, computed: int) -> None:
        """Of the `prompt` tokens that an answer goes on from after a flush, `computed` are to be computed."""
        self._computed += (computed / max(1, prompt) - self._computed) / _RESUMED

    def overdue(self, seconds: float) -> None:
        """A step of `seconds` has gone by while somebody had waited too long."""
        self._credit_s += _TURNS * seconds

    def turns(self, flushed: int) -> float:
        """Flushes that make an answer go on from `flushed` prompt tokens, for which there is credit."""
        return self._credit_s / self._flush_s(flushed)

    def took_turn(self, flushed: int) -> None:
        """One of them was taken."""
        self._credit_s = max(0.0, self._credit_s - self._flush_s(flushed))

    def _flush_s(self, flushed: int) -> float:
        return max(1e-9, self.cost.times().prefill * self._computed * flushed)

    def expected(self, emitted: int, left: int) -> int:
        """Output tokens that are still to come, of an answer that has `emitted` and may have `left` more."""
        likely = round(self._used * (emitted + left)) - emitted
        return min(left, max(likely, round(self._used * left), 1))

    def gain(self, outlook: Outlook, pressure: Pressure) -> float:
        """Tokens that flushing gains over keeping, per token that this request would make by its next boundary.

        Keep: `running` rows for the next segment. Flush: its blocks beyond those of the assembled prompt let that much
        of the line in (in parts, since several flushes add up), and the assembled prompt is computed first. So 0.1
        says that flushing all requests like this one gives about 10 % more, as long as the line is long enough.
        """
        tokens = min(outlook.segment, outlook.left)
        freed = blocks_of(outlook.prompt + tokens) - blocks_of(outlook.flushed + tokens)
        if freed <= 0 or not pressure.waiting:
            return 0.0
        times, running = self.cost.times(), pressure.running
        admitted = freed / max(1, blocks_of(pressure.head_tokens))
        more = min(admitted, float(pressure.waiting), float(self.max_sequences - running))
        read = pressure.read - outlook.prompt + outlook.flushed + more * pressure.head_tokens
        keep_s = tokens * times.step(running, pressure.read)
        flush_s = tokens * times.step(running + more, read) + self._flush_s(outlook.flushed)
        return (running + more) * keep_s / flush_s - running

    def whole_pays(self, outlook: Outlook, pressure: Pressure) -> bool:
        """Whether room for all that is left makes at least as many tokens a second as going segment by segment.

        Both as if all requests there are were like this one and had just begun.
        """
        whole = max(1, blocks_of(outlook.prompt + outlook.left))
        if whole > self.blocks:
            return False
        demand = max(1, pressure.running + pressure.waiting)
        return self._whole_s(outlook, whole, demand) <= self._parts_s(outlook, demand)

    def _whole_s(self, outlook: Outlook, each: int, demand: int) -> float:
        """Seconds until all have ended that each hold `each` blocks from the beginning: round by round."""
        times, left = self.cost.times(), outlook.left
        rows = min(self.blocks // each, demand, self.max_sequences)
        rounds, rest = divmod(demand, rows)
        read = outlook.prompt + left / 2
        seconds = rounds * left * times.step(rows, rows * read) + demand * times.prefill * outlook.prompt
        return seconds + (left * times.step(rest, rest * read) if rest else 0.0)

    def _parts_s(self, outlook: Outlook, demand: int) -> float:
        """Seconds until all have ended that are flushed at each boundary: as many side by side as fit on average."""
        times, left, flushed = self.cost.times(), outlook.left, outlook.flushed
        length = max(1, round(outlook.segment * _FILLED))
        later = -(-left // length) - 1  # segments after the first
        blocks = float(blocks_of(outlook.prompt + min(outlook.segment, left)))
        if later > 0:
            last = left - later * length
            blocks += (later - 1) * blocks_of(flushed + outlook.segment) + blocks_of(flushed + last)
        rows = min(max(1.0, self.blocks * (later + 1) / blocks), demand, self.max_sequences)
        read = (outlook.prompt + later * flushed) / (later + 1) + min(length, left) / 2
        prefill = outlook.prompt + later * flushed * self._computed
        return demand * (left / rows * times.step(rows, rows * read) + times.prefill * prefill)
