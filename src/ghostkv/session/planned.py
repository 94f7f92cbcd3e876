"""A planned answer: what its nodes write is streamed strictly in document order; later nodes wait in their queues."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from ghostkv.backends.base import Backend
from ghostkv.protocol.plan import Node
from ghostkv.request import FinishReason
from ghostkv.session.chain import Closed
from ghostkv.session.context import TurnContext
from ghostkv.session.digest import turn_digest
from ghostkv.session.document import Document
from ghostkv.session.loop import run
from ghostkv.session.nodes import Nodes
from ghostkv.session.planning import Planned, planned
from ghostkv.session.seat import Seats, one_worker
from ghostkv.session.turn import Event, Finished, Output, SegmentRecord, Turn


async def run_plan(
    backend: Backend,
    turn: Turn,
    context: TurnContext,
    seats: Seats = one_worker,
    closed: Closed = lambda _: None,
) -> AsyncGenerator[Event, None]:
    """Stream a planned answer: as `session.loop.run` does, with the plan's record in Finished.

    Closing the generator early cancels every engine request. Raises what `planned` raises, before any generation of the
    answer, and what the backend raises.
    """
    found = await planned(backend, turn, context)
    if found.plan.open:
        async with aclosing(run(backend, replace(turn, plan=None), context, seats, closed)) as events:
            async for event in events:
                yield replace(event, plan=found.record) if isinstance(event, Finished) else event
        return
    nodes = Nodes(backend, found, context, seats, closed)
    try:
        answer = _Answer(nodes, found, context.template(turn.messages))
        async with aclosing(answer.events()) as events:
            async for event in events:
                yield event
    finally:
        await nodes.close()


class _Answer:
    """The answer as it grows."""

    def __init__(self, nodes: Nodes, found: Planned, prompt: Sequence[int]) -> None:
        self._nodes = nodes
        self._found = found
        self._prompt = prompt
        self._document = Document(found.turn.stop)
        self._records: list[SegmentRecord] = []
        self._completion = 0
        self._unseen = 0
        self._cut = False  # some node reached the end of its share
        self._ended: FinishReason | None = None  # before the last node

    async def events(self) -> AsyncGenerator[Event, None]:
        for node in self._found.plan.nodes:
            async with aclosing(self._node(node)) as events:
                async for event in events:
                    yield event
            if self._ended is not None:
                break
        if rest := self._document.close():
            yield Output((), rest)
        yield self._finished()

    async def _node(self, node: Node) -> AsyncGenerator[Event, None]:
        queue, begun = self._nodes.nodes[node.index].events, False
        while self._ended is None and (event := await queue.get()) is not None:
            if isinstance(event, Exception):
                raise event
            if not begun:
                begun = True
                if opening := self._document.begin(node.heading):
                    yield Output((), opening)
            if isinstance(event, Output):
                self._completion += len(event.tokens)
                yield Output(event.tokens, self._document.add(event.text), event.resident)
            elif isinstance(event, SegmentRecord):
                self._records.append(replace(event, index=len(self._records), node=node.index))
                yield self._records[-1]
            else:
                self._end(node, event)
            if self._document.stopped and self._ended is None:
                self._ended = FinishReason.STOP
                self._nodes.stop_after(node.index - 1)
        self._cut = self._cut or not begun

    def _end(self, node: Node, end: Finished) -> None:
        self._unseen = max(self._unseen, end.unseen_tokens)
        self._cut = self._cut or end.reason is FinishReason.LENGTH
        if self._nodes.stops(node.index, end.reason):
            self._ended = end.reason
            self._nodes.stop_after(node.index)

    def _finished(self) -> Finished:
        return Finished(
            reason=self._ended or (FinishReason.LENGTH if self._cut else FinishReason.STOP),
            prompt_tokens=len(self._prompt),
            completion_tokens=self._completion,
            exact=False,  # the nodes' prompts are not the client's
            unseen_tokens=self._unseen,
            segments=tuple(self._records),
            discarded_tokens=self._nodes.generated - self._completion,
            plan=self._found.record,
            digest=turn_digest(self._found.turn, self._prompt),
        )
