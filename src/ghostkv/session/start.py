"""Where a chain starts from: its beginning, or a place that it had come to before. What that place is: `resumption`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ghostkv.request import BoundaryMark, GenerationState, SegmentRequest
from ghostkv.session.chain import Carried
from ghostkv.session.turn import SegmentRecord


@dataclass(frozen=True, slots=True)
class Start:
    """By default the beginning."""

    carried: Carried | None = None  # what the last flushed boundary left
    records: tuple[SegmentRecord, ...] = ()  # of the segments before it
    ids: tuple[int, ...] = ()  # what is known of the open segment
    kept: tuple[BoundaryMark, ...] = ()  # boundaries within them
    state: GenerationState | None = None  # after `ids`; None without any

    def opened(self, request: SegmentRequest) -> SegmentRequest:
        """The request of the open segment, which prefills the tokens of it that are known."""
        if self.state is None:
            return request
        remaining = request.remaining - len(self.ids)
        return replace(request, prompt=request.prompt + self.ids, state=self.state, remaining=remaining)


FROM_THE_START = Start()
