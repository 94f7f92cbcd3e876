"""What is ahead of an engine, as its scheduler sees it: whether whole answers pay, and when a request would be done.

It gathers what runs and waits for a `forecast` and remembers what that said for a while. It changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from ghostkv.engine.admission import reservation
from ghostkv.engine.controller import Controller
from ghostkv.engine.forecast import Work
from ghostkv.engine.order import Line, Waiting
from ghostkv.engine.sequence import Sequence
from ghostkv.errors import DeadlineExceeded, GhostError, Overloaded
from ghostkv.request import SegmentRequest

_KNOWN = 256  # answers that are looked ahead over
_AGAIN = 64  # steps after which it is looked again though nobody came or went
_MOST_WAIT_S = 60  # of a Retry-After
DEADLINE = "ghostkv.deadline_s"
"""The request's field."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds until an answer would be complete."""

    alone: float  # its own prompt and tokens, with nothing beside it
    whole: float  # with what runs and what is ahead of it in line


class Lookahead:
    """Over one scheduler's line and running requests."""

    def __init__(self, controller: Controller, line: Line, running: Mapping[str, Sequence]) -> None:
        self._controller = controller
        self._line = line
        self._running = running
        self._changes = 0  # answers that have come or gone
        self._looked = self._looked_at = -1  # at so many of them, and in which step
        self._gain, self._spares = 0.0, True  # what was seen

    def changed(self) -> None:
        """An answer has come or gone."""
        self._changes += 1

    def gain(self, step: int) -> float:
        """See `Controller.gain`, over all there is: in step `step`, or a little before it."""
        if self._looked != self._changes or step - self._looked_at >= _AGAIN:
            self._looked, self._looked_at = self._changes, step
            known = [*islice(self._known(self._line), _KNOWN)]
            works = [work for work, _ in known]
            self._gain = self._controller.gain(works) if works else 0.0
            self._spares = self._gain <= 0 or self._controller.spares(works, [repeatable for _, repeatable in known])
        return self._gain

    def spares(self, step: int) -> bool:
        """Whether answers that can be had again are kept while others are flushed: see `Controller.spares`."""
        self.gain(step)
        return self._spares

    def whole_pays(self, step: int) -> bool:
        """Whether room for whole answers is worth waiting for. Where all fit side by side nobody has to wait for it."""
        return self.gain(step) < 0

    def turn_s(self, sequence: Sequence) -> float:
        """See `Controller.turn_s`, of a running request at its boundary."""
        request = sequence.request
        left = max(1, self._controller.expected(sequence.emitted, request.remaining - sequence.generated))
        computed = round(self._controller.recomputed * request.flushed_prompt)
        segment = max(1, request.residency.reserve(left))
        flushed = Work(request.flushed_prompt, left, request.flushed_prompt, segment, min(segment, left), computed)
        kept = Work(len(sequence.tokens), left, request.flushed_prompt, segment, 0)
        others = [work for work, _ in islice(self._known(self._line, sequence), _KNOWN)]
        return self._controller.turn_s([kept, *others], flushed)

    def predict(self, request: SegmentRequest, deadline: float, found: int, step: int) -> Prediction | None:
        """When a request that would come now would be done; None as long as no step was measured or no answer ended.

        `deadline` on the engine's clock; `found` prompt tokens are in the pool already.
        """
        controller = self._controller
        if not (controller.cost.measured and controller.learned):
            return None
        own = self._own(request, found)
        ahead = [work for work, _ in islice(self._known(self._line.ahead(request, deadline)), _KNOWN)]
        whole = self.whole_pays(step)
        return Prediction(controller.seconds([own], whole=whole), controller.seconds([*ahead, own], whole=whole))

    def alone_s(self, request: SegmentRequest, found: int = 0) -> float:
        """Seconds for the rest of an answer with nothing beside it; 0 before anything was measured."""
        if not self._controller.cost.measured:
            return 0.0
        return self._controller.seconds([self._own(request, found)], whole=True)

    def _own(self, request: SegmentRequest, found: int) -> Work:
        """Before answers have ended nobody knows how long they are, and only what must come is counted."""
        emitted = request.state.emitted
        least = max(1, min(request.remaining, request.sampling.min_tokens - emitted))
        left = max(least, self._controller.expected(emitted, request.remaining)) if self._controller.learned else least
        prompt = len(request.prompt)
        segment = max(1, reservation(request))
        flushed = request.flushed_prompt or (prompt if segment < left else 0)
        return Work(prompt, left, flushed, segment, segment, prompt - found)

    def _known(self, waiting: Iterable[Waiting], without: Sequence | None = None) -> Iterator[tuple[Work, bool]]:
        """All that runs, and those who wait, each with whether it can be had again."""
        expected = self._controller.expected
        for sequence in self._running.values():
            if sequence is without:
                continue
            request = sequence.request
            left = max(1, expected(sequence.emitted, request.remaining - sequence.generated))
            reserved = max(0, sequence.reserved - sequence.generated)
            computed = max(0, sequence.prompt_tokens - sequence.filled)
            yield _work(request, len(sequence.tokens), left, reserved, computed), request.repeatable
        for each in waiting:
            request = each.request
            left = max(1, expected(request.state.emitted, request.remaining))
            share = self._controller.recomputed if request.state.emitted else 1.0
            computed = round(share * len(request.prompt))
            yield _work(request, len(request.prompt), left, None, computed), request.repeatable


def _work(request: SegmentRequest, prompt: int, left: int, reserved: int | None, computed: int) -> Work:
    """Of what is never weighed only what is reserved is known."""
    if not request.flushed_prompt:
        left = min(left, max(1, reservation(request)))
    segment = max(1, request.residency.reserve(left))
    if reserved is None:
        reserved = segment if request.flushed_prompt else reservation(request)
    return Work(prompt, left, request.flushed_prompt, segment, reserved, computed)


def refusal(request: SegmentRequest, predicted: Prediction) -> GhostError | None:
    """Why a request with a deadline is not let in: DeadlineExceeded where waiting helps nothing, else Overloaded."""
    seconds = request.deadline_s
    if seconds is None or predicted.whole <= seconds:
        return None
    if predicted.alone > seconds:
        return DeadlineExceeded(
            f"the prompt and the answer are predicted to take {predicted.alone:.2f} s with nothing else running, more "
            f"than the deadline of {seconds:g} s",
            param=DEADLINE,
        )
    after = max(1, min(_MOST_WAIT_S, math.ceil(predicted.whole - seconds)))
    return Overloaded(
        f"the answer is predicted to be complete in {predicted.whole:.2f} s, of which {predicted.alone:.2f} s are its "
        f"own and the rest is ahead of it in line: later than its deadline of {seconds:g} s; try again in {after} s",
        param=DEADLINE,
        retry_after=after,
    )
