"""How long the work that is known will take, kept whole or segment by segment: a run ahead in token counts.

A fluid model, answer by answer instead of step by step: it knows blocks, tokens and what steps cost. It knows nothing
of who arrives later, it holds no request, and it decides nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ghostkv.engine.step_cost import StepTimes
from ghostkv.step import blocks_of

_FILLED = 0.86  # of what is reserved for a segment, when its boundary comes


@dataclass(frozen=True, slots=True)
class Work:
    """What is left of one answer, in tokens."""

    prompt: int  # in the pool, or to be computed
    left: int  # output that is still expected, at least 1
    flushed: int  # prompt that it would go on from after a flush; 0: it is never flushed
    segment: int  # output that is reserved at a time
    reserved: int  # output that is reserved now, or is when it gets in
    computed: int = 0  # of the prompt, still to be computed
    spared: bool = False  # it is kept while others are flushed


@dataclass(frozen=True, slots=True)
class _Course:
    """One answer under one way of running all."""

    blocks: float  # on average
    left: int
    read: float  # tokens that a row of it reads, on average
    entry_s: float  # before its first token
    token_s: float = 0.0  # beside its row, for each token
    cut: bool = False  # it waits at its boundaries, where there is no room


@dataclass(frozen=True, slots=True)
class Forecast:
    """Over one pool, at one price."""

    times: StepTimes
    blocks: int
    max_sequences: int
    recomputed: float  # share of a prompt after a flush that is computed

    def fits(self, works: Sequence[Work]) -> bool:
        """Whether there is room for all of them at their ends."""
        return (
            len(works) <= self.max_sequences
            and sum(blocks_of(work.prompt + work.left - 1) for work in works) <= self.blocks
        )

    def whole_s(self, works: Iterable[Work]) -> tuple[float, ...]:
        """Seconds until each has ended, if each has room for all of it before it runs: in order of arrival."""
        return self._run([self._kept(work) for work in works], shared=False)

    def parts_s(self, works: Iterable[Work]) -> tuple[float, ...]:
        """Likewise, if each is flushed at every boundary: then as many run as fit on average."""
        return self._run(
            [self._kept(work) if work.spared or not work.flushed else self._cut(work) for work in works], shared=True
        )

    def _kept(self, work: Work) -> _Course:
        if work.flushed and not work.spared and blocks_of(work.prompt + work.left - 1) > self.blocks:
            return self._cut(work)
        tokens = work.left if work.flushed else max(work.left, work.reserved)  # what is never flushed holds all at once
        blocks = min(self.blocks, blocks_of(work.prompt + tokens - 1))
        entry_s, read = self.times.prefill * work.computed, work.prompt + work.left / 2
        return _Course(blocks, work.left, read, entry_s, cut=bool(work.flushed))

    def _cut(self, work: Work) -> _Course:
        """Segments after the first go on from the assembled prompt; the last one reserves no more than is left."""
        length = max(1, round(work.segment * _FILLED))
        boundary = max(0, work.reserved - (work.segment - length))
        first = min(work.left, boundary)
        later = -(-(work.left - first) // length)
        blocks = float(blocks_of(work.prompt + min(work.reserved, work.left) - 1) * first)
        read = first * (work.prompt + first / 2)
        rest = work.left - first
        for index in range(later):
            tokens = min(length, rest - index * length)
            reserved = min(work.segment, rest - index * length)
            blocks += blocks_of(work.flushed + reserved - 1) * tokens
            read += tokens * (work.flushed + tokens / 2)
        again_s = self.times.prefill * self.recomputed * work.flushed * later
        return _Course(
            min(self.blocks, blocks / work.left),
            work.left,
            read / work.left,
            self.times.prefill * work.computed,
            again_s / work.left,
            cut=True,
        )

    def _run(self, courses: Sequence[_Course], *, shared: bool) -> tuple[float, ...]:
        """Seconds until each ends. `shared`: what is cut runs as one more than fits, and all wait now and then."""
        ends = [0.0] * len(courses)
        line: Iterator[tuple[int, _Course]] = iter(enumerate(courses))
        head = next(line, None)
        running: list[tuple[float, int]] = []  # (tokens of each that runs from the beginning, at its end; index)
        used = read = token_s = now = at = 0.0
        while running or head is not None:
            while head is not None and len(running) < self.max_sequences:
                index, course = head
                if running and used + (1 if shared and course.cut else course.blocks) > self.blocks:
                    break
                heapq.heappush(running, (at + course.left, index))
                used, read, token_s = used + course.blocks, read + course.read, token_s + course.token_s
                now += course.entry_s
                head = next(line, None)
            end, index = heapq.heappop(running)
            share = min(1.0, self.blocks / used)
            tokens, rows = end - at, (len(running) + 1) * share
            now += tokens / share * self.times.step(rows, read * share) + tokens * token_s
            at, course = end, courses[index]
            used, read, token_s = used - course.blocks, read - course.read, token_s - course.token_s
            ends[index] = now
        return tuple(ends)
