"""The nodes of a planned answer, each a chain of its own, running side by side.

A node's text is a function of the request and of the nodes it depends on, never of what else runs: which nodes happen
to decode together changes no byte. What a node is, and what it may need, was decided before (`planning`); their order
in the answer is `planned`'s.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from ghostkv.backends.base import Backend
from ghostkv.errors import InvariantViolation, Overloaded
from ghostkv.protocol.node_prompt import joint
from ghostkv.protocol.tail import choose_tail
from ghostkv.request import FinishReason
from ghostkv.session.chain import Carried, Chain, Closed
from ghostkv.session.context import TurnContext
from ghostkv.session.gather import merge_carried
from ghostkv.session.led import Led
from ghostkv.session.loop import follow
from ghostkv.session.planning import Planned
from ghostkv.session.seat import Seat, Seats, one_worker
from ghostkv.session.shares import Shares
from ghostkv.session.turn import Event, Finished, Output


@dataclass(slots=True)
class NodeRun:
    """One node as it runs."""

    events: asyncio.Queue[Event | Exception | None] = field(default_factory=asyncio.Queue)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    carried: Carried | None = None  # what its latest closed segment left
    generated: int = 0
    last_id: int = -1


class Nodes:
    """Runs every node as soon as those it depends on have ended. `close` cancels what still runs, and waits for it."""

    def __init__(
        self,
        backend: Backend,
        found: Planned,
        context: TurnContext,
        seats: Seats = one_worker,
        closed: Closed = lambda _: None,
    ) -> None:
        """Start; needs a running event loop. `seats` keep to one vocabulary; `closed` is told of every node."""
        self._backend = backend
        self._seats = seats
        self._closed = closed
        self._turn = replace(found.turn, part=True)
        self._plan = found.plan
        self._messages = found.messages
        self._context = context
        self._shares = Shares(found.plan, found.turn.max_tokens)
        plain = replace(self._turn, max_tokens=1, plan=None)
        self._base = Chain.of(plain, context, backend.capabilities()).begin()
        self._taken = asyncio.Event()  # the engine has begun with the first node, so the answer is under way
        self._first = next((node.index for node in found.plan.nodes if self._shares.of(node.index)), 0)
        self.nodes = [NodeRun() for _ in found.plan.nodes]
        self._tasks = [asyncio.create_task(self._run(node.index)) for node in found.plan.nodes]

    @property
    def generated(self) -> int:
        """Tokens of all nodes so far."""
        return sum(node.generated for node in self.nodes)

    def stop_after(self, index: int) -> None:
        """The answer ends in node `index`: cancel all later ones."""
        for task in self._tasks[index + 1 :]:
            task.cancel()

    async def close(self) -> None:
        """Cancel what still runs."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, index: int) -> None:
        node = self.nodes[index]
        for needed in self._plan.nodes[index].depends_on:
            await self.nodes[needed].ended.wait()
        try:
            if self._shares.of(index):
                await self._generate(index, node)
        except Exception as error:  # noqa: BLE001 - whoever reads the events answers for it
            node.events.put_nowait(error)
            return
        self._shares.end(index, node.generated)
        node.events.put_nowait(None)
        node.ended.set()

    async def _generate(self, index: int, node: NodeRun) -> None:
        begun = index != self._first and self._taken.is_set()
        try:
            await self._decode(index, node, begun=begun)
        except Overloaded:
            if index == self._first or begun:
                raise
            await self._taken.wait()
            await self._decode(index, node, begun=True)

    async def _decode(self, index: int, node: NodeRun, *, begun: bool) -> None:
        def closed(carried: Carried) -> None:
            node.carried = carried
            self._closed(carried)

        states = [self._carried(before) for before in self._plan.ancestors(index) if self.nodes[before].generated]
        start = merge_carried(states, self._base, index, self._turn.payload_budget)
        chain = self._chain(index, states)
        seat, seating = Seat(self._backend, chain, start), self._seats(chain)
        async with aclosing(follow(seat, seating, begun=begun, closed=closed)) as events:
            async for event in events:
                if isinstance(event, Output):
                    self._taken.set()
                    node.generated += len(event.tokens)
                    node.last_id = event.tokens[-1].id if event.tokens else node.last_id
                elif isinstance(event, Finished) and self.stops(index, event.reason):
                    self.stop_after(index)
                node.events.put_nowait(event)

    def stops(self, index: int, reason: FinishReason) -> bool:
        """Whether a node that ended for `reason` ends the answer: an end-of-sequence id ends only the node."""
        last, turn = self.nodes[index].last_id, self._turn
        only_the_node = last in self._context.eos_ids and last not in turn.stop_ids and not turn.ignore_eos
        return reason is FinishReason.CANCELLED or (reason is FinishReason.STOP and not only_the_node)

    def _chain(self, index: int, states: list[Carried]) -> Chain:
        turn = replace(
            self._turn,
            id=f"{self._turn.id}.n{index}",
            messages=self._messages[index],
            max_tokens=self._shares.of(index),
            sampling=replace(self._turn.sampling, node=index),
            plan=None,
        )
        chain = Chain.of(turn, self._context, self._backend.capabilities())
        lead = self._lead(index, states, None if chain.policy.budget is None else chain.policy.budget.tail)
        return replace(chain, prompting=Led(chain.prompting, lead)) if lead else chain

    def _lead(self, index: int, states: list[Carried], limit: int | None) -> tuple[int, ...]:
        """The text before the node, as ids: what the nodes it depends on wrote, and its heading.

        Their end, of at most `limit` ids; None: all of it.
        """
        ids: list[int] = []
        nodes = self._plan.nodes
        for state in sorted(states, key=lambda state: state.cursor.node):
            own = state.memory.archive.ids[:]
            heading = nodes[state.cursor.node].heading
            ids += self._context.encode(joint(self._text(ids[-4:]), heading, self._text(own[:4])))
            ids += own
        ids += self._context.encode(joint(self._text(ids[-4:]), nodes[index].heading))
        return tuple(ids) if limit is None else choose_tail(ids, self._context.token_bytes, limit)

    def _text(self, ids: list[int] | tuple[int, ...]) -> str:
        return b"".join(map(self._context.token_bytes, ids)).decode("utf-8", errors="replace")

    def _carried(self, index: int) -> Carried:
        carried = self.nodes[index].carried
        if carried is None:
            raise InvariantViolation(f"node {index} of {self._turn.id} ended without a closed segment")
        return carried
