"""The continuity loop: an answer as a chain of segments, each one engine request.

It decides nothing about memory (the residency policy does, asked by the engine) and nothing about what a boundary is
(rules do). It keeps the protocol's order: assemble, decode, extract, flush, and again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from ghostkv.backends.base import Backend
from ghostkv.errors import EngineFault
from ghostkv.protocol.render import Assembled
from ghostkv.request import BoundaryMark, Decision, Delta, Finish, FinishReason
from ghostkv.session.chain import Chain, TurnContext
from ghostkv.session.turn import Event, Finished, Output, SegmentRecord, Turn


async def run(backend: Backend, turn: Turn, context: TurnContext) -> AsyncGenerator[Event, None]:
    """Stream one answer: Outputs, a SegmentRecord at the end of each segment, Finished last.

    Closing the generator early cancels the engine request. Raises InvalidRequest, ContextLengthExceeded among them,
    before any generation, and what the backend raises.
    """
    chain = Chain.of(turn, context, backend.capabilities())
    carried = chain.begin()
    records: list[SegmentRecord] = []
    while True:
        started = context.clock()
        assembled = chain.assemble(carried)
        render_s = context.clock() - started

        segment = _Decoded()
        request = chain.request(len(records), assembled, carried)
        try:
            async for delta in backend.generate(request):
                segment.take(delta)
                if delta.tokens or delta.text:
                    yield Output(delta.tokens, delta.text)
        finally:
            if segment.finish is None:
                backend.cancel(request.id)
        finish = segment.finish
        if finish is None:
            raise EngineFault(f"the backend ended {request.id} without saying why")

        started = context.clock()
        carried = chain.extract(carried, segment.ids, finish)
        extract_s = context.clock() - started
        live = chain.live_kv_bytes(finish.usage)
        records.append(SegmentRecord(len(records), finish.usage, segment.boundary, live, extract_s, render_s))
        yield records[-1]
        if finish.reason is not FinishReason.FLUSH:
            yield _finished(chain, finish, assembled, records)
            return


class _Decoded:
    """What the deltas of one request add up to."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.boundary: BoundaryMark | None = None  # the one that was flushed
        self.finish: Finish | None = None

    def take(self, delta: Delta) -> None:
        self.ids += [token.id for token in delta.tokens]
        self.finish = delta.finish
        if delta.boundary is not None and delta.boundary.decision is Decision.FLUSH:
            self.boundary = delta.boundary


def _finished(chain: Chain, finish: Finish, assembled: Assembled, records: Sequence[SegmentRecord]) -> Finished:
    return Finished(
        reason=finish.reason,
        prompt_tokens=len(chain.prompt),
        completion_tokens=finish.state.emitted,
        exact=chain.capabilities.exact and len(records) == 1 and assembled.dropped == 0,
        unseen_tokens=assembled.dropped,
        segments=tuple(records),
    )
