"""Every interleaving of requests, steps and accidents on a tiny model and a tiny pool, up to a bound.

`python tests/exhaustive.py` explores further than the test does. What runs is the real model under the real scheduler
and pool; a session's decisions are `session.chain`'s, its capsules go through bytes, and it goes on as `resumption` and
`fork` say. Not explored: threads, the store, and what the controller predicts (each decision is taken both ways here).

A state is known again by all that can make a difference: the names of blocks and the age of the process cannot.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import itertools
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from checkpoints import write_hf_checkpoint
from ghostkv.backends.embedded import EmbeddedBackend
from ghostkv.config import EngineConfig
from ghostkv.engine.admission import Limits
from ghostkv.engine.controller import Controller
from ghostkv.engine.forecast import Work
from ghostkv.engine.scheduler import Scheduler
from ghostkv.engine.step_cost import StepCost
from ghostkv.errors import GhostError
from ghostkv.kv.pool import BlockPool
from ghostkv.kv.prefix_index import Node
from ghostkv.model.load import LoadedModel, load_model, pool_bytes
from ghostkv.protocol.render import Assembled
from ghostkv.protocol.rules import FixedBoundary
from ghostkv.request import BoundaryView, Decision, Delta, FinishReason, Sampling, SegmentRequest, SegmentUsage, Window
from ghostkv.residency import SegmentBudget
from ghostkv.session.capsule import Answering, Capsule
from ghostkv.session.chain import Carried, Chain
from ghostkv.session.fork import Names, boundaries, forked
from ghostkv.session.record import NewTurn, SessionRecord
from ghostkv.session.resumption import resumed
from ghostkv.session.turn import Event, Output, SegmentRecord, Turn
from ghostkv.session.worker import Worker
from ghostkv.step import BLOCK_TOKENS, Row, StepPlan
from ghostkv.text.detokenizer import Detokenizer
from ghostkv.verify.seen import Sight, Watched

BLOCKS = 7  # of the pool: two answers that are kept whole need eight
EVERY = 2  # tokens between boundaries, and what is reserved at a time
CHUNK = 32  # prompt tokens of a step
CONFIG = EngineConfig(dtype="float32", speculation="off")
# The second blocks are equal and stand after different first ones; the third fills while the answer is generated.
PROMPTS = {"a": (40, *range(100, 145)), "b": (41, *range(100, 145))}
FORK = "f"
ACCIDENTS = ("evict one", "evict all", "cancel", "crash", "log", "fork")
_USAGE = SegmentUsage(0, 0, 0, 0, 0.0, 0.0, 0.0)
_SECONDS = 0.01  # that every step is said to take

Slots = npt.NDArray[np.float32]  # [slots, numbers of keys and values over all layers]


class Choices:
    """What is decided at the next boundaries, in the order in which they come; after those it is to keep."""

    def __init__(self) -> None:
        self.asked = 0
        self._next: deque[Decision] = deque()

    def prepare(self, decisions: Sequence[Decision]) -> None:
        self.asked, self._next = 0, deque(decisions)

    def take(self) -> Decision:
        self.asked += 1
        return self._next.popleft() if self._next else Decision.KEEP


_BUDGET = SegmentBudget(target=EVERY, cap=EVERY, tail=1, state=0, recall=0, whole=True)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A policy like `auto` whose decisions are those of `choices`."""

    choices: Choices = field(compare=False)
    name: str = "chosen"
    budget: SegmentBudget = _BUDGET
    visible: Window | None = None

    def reserve(self, remaining: int) -> int:
        return min(EVERY, remaining)

    def at_boundary(self, view: BoundaryView) -> Decision:
        return self.choices.take()


class Indifferent(Controller):
    """Predicts that nothing is gained and that segments pay, whatever it was told: what is done is `Choices`'."""

    def gain(self, works: Sequence[Work]) -> float:
        return 0.0


@dataclass(frozen=True, slots=True)
class Session:
    """An answer as its client, its store and the process that runs it see it. A value."""

    turn: str  # its id, which its requests are called by
    source: str  # whose prompt and seed it has: its own, or its parent's
    phase: str = "new"  # "asked", "running", "broken off", "ended", "gone"
    decisions: str = ""  # K or F for each boundary so far
    events: tuple[Event, ...] = ()
    carried: Carried | None = None  # what the last flush left
    assembled: Assembled | None = None  # the prompt of its open segment, without what was known of it
    ids: tuple[int, ...] = ()  # of its open segment
    request: SegmentRequest | None = None  # that is to be added to the line next
    committed: bytes = b""  # its capsule
    kept: str = ""  # what of it is committed, in short

    @property
    def segments(self) -> int:
        return sum(isinstance(event, SegmentRecord) for event in self.events)

    @property
    def tokens(self) -> int:
        return sum(len(event.tokens) for event in self.events if isinstance(event, Output))

    @property
    def short(self) -> str:
        """All that tells it from others: by the contract the rest follows from this."""
        line = "" if self.request is None else "+"
        return f"{self.turn}{self.source} {self.phase}{line} {self.decisions}{self.tokens}.{len(self.ids)} {self.kept}"


@dataclass(slots=True)
class World:
    """One state. `path` is how it was reached."""

    scheduler: Scheduler
    memory: list[torch.Tensor]
    sessions: dict[str, Session]
    accidents: int = 0
    path: tuple[str, ...] = ()


class Violation(AssertionError):
    """What must hold does not, after these actions."""

    def __init__(self, path: tuple[str, ...], said: str) -> None:
        super().__init__(f"{said}\nafter: {' > '.join(path)}")


class Explorer:
    """A model, what its answers are when nothing happens, and the states that can be reached."""

    def __init__(self, path: Path, tokens: int = 4) -> None:
        """`tokens` of an answer: 4 have one boundary that is kept or flushed, 6 have two."""
        self.tokens = tokens
        config = replace(CONFIG, kv_budget=pool_bytes(path, CONFIG, BLOCKS))
        self.model: LoadedModel = load_model(path, config)
        self.sight, self.choices = Sight(), Choices()
        self.runner = Watched(self.model.runner, self.sight)
        self.seen: Counter[str] = Counter()
        policy = Chosen(self.choices)
        backend = EmbeddedBackend(replace(self.model, runner=self.runner), config)
        try:
            worker = Worker.embedded(backend, config, time.perf_counter)
            context = replace(worker.context, boundary=FixedBoundary(EVERY), policies=lambda name: policy)
            self.worker = replace(worker, context=context)
            self.expected = dict(self._undisturbed())
        finally:
            backend.close()
        # Those answers were computed by as many threads as there are cores; what follows is one core's.
        self.runner._limits = replace(self.runner._limits, threads=1)
        self._detokenizer = Detokenizer(self.worker.tokenizer)
        self._limits = Limits(self.model.checkpoint.shape.context, max_sequences=8, step_tokens=CHUNK)
        self._controller = Indifferent(StepCost(), BLOCKS, self._limits.max_sequences)
        self._chains: dict[tuple[str, str], Chain] = {}
        self._exact: dict[tuple[int, ...], Slots] = {}
        self._records: dict[tuple[str, str], SessionRecord] = {}

    # --- what should be ---

    def _undisturbed(self) -> Iterator[tuple[tuple[str, str, int], tuple[int, str, int, int]]]:
        """(turn, decisions before it, index) -> the token, its logits, segment and tokens before it."""
        for source in PROMPTS:
            for vector in itertools.product(Decision, repeat=(self.tokens - 1) // EVERY):
                self.choices.prepare(vector)
                events = asyncio.run(self._answer(source))
                tokens = [token.id for event in events if isinstance(event, Output) for token in event.tokens]
                places = self.sight.taken(source)
                assert len(tokens) == len(places) == self.tokens
                for index, (token, (place, logits)) in enumerate(zip(tokens, places.items(), strict=True)):
                    yield (source, letters(vector[: index // EVERY]), index), (token, logits, *place)

    async def _answer(self, source: str) -> list[Event]:
        return [event async for event in self.worker.run(self._turn(source, source))]

    def exact(self, tokens: tuple[int, ...]) -> Slots:
        """The KV of exactly these tokens, computed alone. It uses the memory of whoever runs."""
        if tokens not in self._exact:
            table = np.arange(BLOCKS, dtype=np.int32)
            before = self._saved()
            for at in range(0, len(tokens), CHUNK):
                part = tokens[at : at + CHUNK]
                self.runner.run(StepPlan(0, 0.0, (Row("exact", part, at, table, ()),)))
            self._exact[tokens] = gathered(self._saved(), table, len(tokens))
            self._load(before)
        return self._exact[tokens]

    # --- exploring ---

    def explore(self, accidents: int, most: int = 10**9) -> tuple[int, bool]:
        """Breadth first, so that the first violation is a shortest one: (states, whether those are all).

        A path has at most so many accidents; steps and requests are not bounded, since answers end.
        """
        known, waiting = set[object](), deque([self._first()])
        known.add(self._key(waiting[0]))
        while waiting:
            if len(known) >= most:
                return len(known), False
            world = waiting.popleft()
            for after in self._after(world, accidents):
                if (key := self._key(after)) not in known:
                    known.add(key)
                    waiting.append(after)
        return len(known), True

    def _first(self) -> World:
        sessions = {name: Session(name, name) for name in PROMPTS}
        return World(self._scheduler(), [torch.full_like(part, float("nan")) for part in self._saved()], sessions)

    def _after(self, world: World, most: int) -> Iterator[World]:
        for name, act in self._actions(world, most):
            path = (*world.path, name)
            try:
                for after in act():
                    after.path = path
                    self.seen["transitions"] += 1
                    self.seen[name.partition(" ")[0]] += 1
                    self._check(after)
                    yield after
            except Violation:
                raise
            except (AssertionError, GhostError, LookupError, TypeError, ValueError) as error:
                raise Violation(path, f"{type(error).__name__}: {error}") from error

    def _actions(self, world: World, most: int) -> Iterator[tuple[str, Callable[[], Iterator[World]]]]:
        for session in world.sessions.values():
            name = session.turn
            if session.phase in ("new", "asked"):
                yield f"admit {name}", partial(self._admit, world, name)
            elif session.phase == "broken off":
                yield f"restore {name}", partial(self._restore, world, name)
        if not world.scheduler.idle:
            yield "step", lambda: self._step(world)
        if world.accidents == most:
            return
        yield from self._accidents(world)

    def _accidents(self, world: World) -> Iterator[tuple[str, Callable[[], Iterator[World]]]]:
        if world.scheduler.pool.cached:
            yield "evict one", lambda: self._evict(world, all_of_them=False)
            yield "evict all", lambda: self._evict(world, all_of_them=True)
        if any(session.phase in ("asked", "running") for session in world.sessions.values()):
            yield "crash", lambda: self._crash(world)
        for session in world.sessions.values():
            name = session.turn
            if session.phase == "running":
                yield f"cancel {name}", partial(self._cancel, world, name)
                if self._kept(session) != session.kept:
                    yield f"log {name}", partial(self._log, world, name)
            if session.committed and session.phase != "gone" and FORK not in world.sessions:
                yield f"fork {name}", partial(self._fork, world, name)

    # --- actions: each gives the states that it may lead to ---

    def _admit(self, world: World, name: str) -> Iterator[World]:
        after, session = self._copy(world), world.sessions[name]
        if session.phase == "new":
            session = self._opened(replace(session, phase="asked"))
            session = self._commit(session)
        request, session = session.request, replace(session, phase="running", request=None)
        assert request is not None
        after.scheduler.add(request, 0.0)
        after.sessions[name] = session
        yield after

    def _restore(self, world: World, name: str) -> Iterator[World]:
        after, session = self._copy(world), world.sessions[name]
        found = resumed(Capsule.decode(session.committed, self.worker.named), self.worker, None)
        chain, start = self._chain(session), found.start
        carried = start.carried or chain.begin()
        assembled = chain.assemble(carried)
        events = tuple(found.record.turns[-1].events)
        session = replace(
            session, phase="running", decisions=decided(events), events=events, carried=start.carried, ids=start.ids
        )
        request = start.opened(replace(chain.request(session.segments, assembled, carried), begun=True))
        after.scheduler.add(request, 0.0)
        after.sessions[name] = replace(session, assembled=assembled)
        yield after

    def _step(self, world: World) -> Iterator[World]:
        planned = self._copy(world)
        hits = planned.scheduler.pool.cached
        plan = planned.scheduler.plan(0.0)
        assert plan is not None, "requests wait, and nothing can run"
        self.seen["hits"] += planned.scheduler.pool.cached < hits
        self._load(planned.memory)
        self.sight._rows.clear()
        result = replace(self.runner.run(plan), seconds=_SECONDS, sampling_s=0.0)
        self._check_logits(world, self.sight._rows)
        planned.memory = self._saved()
        several: list[tuple[Decision, ...]] = [()]
        while several:
            decisions = several.pop()
            after = self._copy(planned)
            self.choices.prepare(decisions)
            for delta in after.scheduler.commit(plan, result):
                self._take(after, delta)
            if not decisions and self.choices.asked:
                every = itertools.product(Decision, repeat=self.choices.asked)
                several = [each for each in every if Decision.FLUSH in each]
            yield after

    def _evict(self, world: World, *, all_of_them: bool) -> Iterator[World]:
        after = self._copy(world)
        pool = after.scheduler.pool
        if all_of_them:
            pool.drop_cached()
            assert pool.cached == 0
        else:
            taken = pool.admit_apart(pool.free + 1)  # one more than are free
            assert taken is not None
            pool.release(taken)
        after.accidents += 1
        yield after

    def _cancel(self, world: World, name: str) -> Iterator[World]:
        """Its client has gone for good: nothing of it stays."""
        after, session = self._copy(world), world.sessions[name]
        request = f"{session.turn}.{session.segments}"
        assert after.scheduler.cancel(request, 0.0) is not None, f"{request} is not known"
        after.sessions[name] = Session(session.turn, session.source, "gone")
        after.accidents += 1
        yield after

    def _crash(self, world: World) -> Iterator[World]:
        """Everything is gone but what is committed, and memory holds what it likes."""
        sessions = {}
        for name, session in world.sessions.items():
            broken = session.phase in ("asked", "running", "broken off")
            lost = replace(session, decisions="", events=(), carried=None, assembled=None, ids=(), request=None)
            sessions[name] = replace(lost, phase="broken off") if broken else session
        memory = [torch.full_like(part, float("nan")) for part in world.memory]
        yield World(self._scheduler(), memory, sessions, world.accidents + 1)

    def _log(self, world: World, name: str) -> Iterator[World]:
        """The tokens so far are committed, as under `full` now and then, and where a session moves."""
        after = self._copy(world)
        after.sessions[name] = self._commit(world.sessions[name])
        after.accidents += 1
        yield after

    def _fork(self, world: World, name: str) -> Iterator[World]:
        """At each of its committed boundaries."""
        parent = world.sessions[name]
        capsule = Capsule.decode(parent.committed, self.worker.named)
        for place in boundaries(capsule):
            made = forked(capsule, self.worker, place.index, Names(FORK, FORK, 0))
            if not made.record.running:
                continue
            after = self._copy(world)
            events = tuple(made.record.turns[-1].events)
            kept = f"{decided(events)}{sum(len(event.tokens) for event in events if isinstance(event, Output))}"
            fork = Session(FORK, parent.source, "broken off", committed=made.encode(), kept=kept)
            after.sessions[FORK] = fork
            after.accidents += 1
            yield after

    # --- what a session does between its requests ---

    def _opened(self, session: Session) -> Session:
        """With the request of its next segment."""
        chain = self._chain(session)
        carried = session.carried or chain.begin()
        assembled = chain.assemble(carried)
        request = replace(chain.request(session.segments, assembled, carried), begun=bool(session.events))
        return replace(session, assembled=assembled, ids=(), request=request)

    def _take(self, world: World, delta: Delta) -> None:
        name = delta.request_id.rpartition(".")[0]
        session = world.sessions[name]
        self._check_tokens(session, delta)
        mark, finish = delta.boundary, delta.finish
        if delta.tokens:
            kept = mark if mark is not None and mark.decision is Decision.KEEP else None
            output = Output(delta.tokens, delta.text, kept=kept)
            session = replace(session, events=(*session.events, output), ids=(*session.ids, output.tokens[0].id))
        if mark is not None:
            self.seen[f"{mark.decision.value} {mark.reason}".strip()] += 1
            session = replace(session, decisions=session.decisions + letters([mark.decision]))
        if finish is None:
            world.sessions[name] = session if mark is None else self._commit(session)
            return
        chain, assembled = self._chain(session), session.assembled
        assert assembled is not None
        carried = session.carried or chain.begin()
        carried = chain.merge(carried, chain.extract(carried, session.ids, finish), finish, assembled)
        record = SegmentRecord(session.segments, _USAGE, mark, 0, decisions=() if mark is None else (mark,))
        session = replace(session, events=(*session.events, record))
        if finish.reason is FinishReason.FLUSH:
            session = self._commit(replace(session, phase="asked", carried=carried))
            world.sessions[name] = self._opened(session)
            return
        assert finish.reason is FinishReason.LENGTH and session.tokens == self.tokens
        self.seen["ended"] += 1
        world.sessions[name] = replace(session, phase="ended", carried=None, assembled=None, ids=())

    def _commit(self, session: Session) -> Session:
        record = self._record(session)
        record = record.with_last(record.turns[-1].refilled(session.events))
        answering = Answering.of(self._turn(session.turn, session.source), self.worker)
        capsule = Capsule.at(self.worker.named, record, answering, session.carried)
        return replace(session, committed=capsule.encode(), kept=self._kept(session))

    def _kept(self, session: Session) -> str:
        return f"{session.decisions}{session.tokens}"

    def _chain(self, session: Session) -> Chain:
        key = session.turn, session.source
        if key not in self._chains:
            capabilities = self.worker.backend.capabilities()
            self._chains[key] = Chain.of(self._turn(*key), self.worker.context, capabilities)
        return self._chains[key]

    def _record(self, session: Session) -> SessionRecord:
        key = session.turn, session.source
        if key not in self._records:
            turn = self._turn(*key)
            asked = NewTurn(turn.id, "completions", "{}", 0, turn.sampling.seed, self.tokens, len(turn.prompt))
            made = SessionRecord(session.turn, "", 0, self.worker.name, self.worker.manifest)
            self._records[key] = made.opened(asked)
        return self._records[key]

    # --- what must hold ---

    def _check_logits(self, world: World, rows: dict[tuple[str, int], str]) -> None:
        """The next logits of each answer are those that it would have had undisturbed."""
        for (request, length), logits in rows.items():
            name, _, segment = request.rpartition(".")
            session = world.sessions[name]
            _, expected, at_segment, at_length = self.expected[session.source, session.decisions, session.tokens]
            assert (at_segment, at_length) == (int(segment), length), f"{name} is elsewhere than it would be"
            assert logits == expected, f"the next logits of {name} after {length} tokens are others"

    def _check_tokens(self, session: Session, delta: Delta) -> None:
        for index, token in enumerate(delta.tokens, session.tokens):
            expected, *_ = self.expected[session.source, session.decisions, index]
            assert token.id == expected, f"token {index} of {session.turn} is {token.id} instead of {expected}"

    def _check(self, world: World) -> None:
        scheduler, pool = world.scheduler, world.scheduler.pool
        scheduler.check_integrity()
        running = scheduler._running
        held = {sequence.allocation.key for sequence in running.values()}
        assert pool._held.keys() == held, f"{len(pool._held)} hold blocks and {len(held)} requests run"
        claimed = {f"{each.turn}.{each.segments}" for each in world.sessions.values() if each.phase == "running"}
        assert claimed == {*running, *(each.request.id for each in scheduler._line)}, (
            "the sessions' requests are not those that there are"
        )
        if not running:
            assert pool.free + pool.cached == BLOCKS, "blocks have leaked"
        for node in pool._index:
            path = tokens_of(node)
            found = gathered(world.memory, np.array([node.block]), BLOCK_TOKENS)
            expected = self.exact(path)[-BLOCK_TOKENS:]
            assert np.array_equal(found, expected), f"block {node.block} is not its prefix of {len(path)} tokens"
        for sequence in running.values():
            tokens, table = tuple(sequence.tokens[: sequence.filled]), sequence.allocation.table
            assert len(table) * BLOCK_TOKENS >= sequence.prompt_tokens + sequence.reserved - 1
            if tokens:
                found = gathered(world.memory, table, len(tokens))
                assert np.array_equal(found, self.exact(tokens)), f"{sequence.request.id} reads another prefix"

    # --- states ---

    def _key(self, world: World) -> object:
        """Equal for states of which no one could tell which is which, but for the names of blocks."""
        scheduler, pool = world.scheduler, world.scheduler.pool
        line = tuple((each.request.id, each.request.state.emitted > 0) for each in scheduler._line)  # of one program
        running = tuple(
            (name, each.filled, each.reserved, tuple(map(self._label(pool), each.allocation.table.tolist())))
            for name, each in scheduler._running.items()
        )
        cached = tuple(tokens_of(pool._node(block)) for block in pool._cached)
        sessions = tuple(session.short for session in world.sessions.values())
        return world.accidents, sessions, line, running, cached

    def _label(self, pool: BlockPool) -> Callable[[int], object]:
        def label(block: int) -> object:
            node = pool._index.of_block(block)
            return pool._refs[block] if node is None else (pool._refs[block], tokens_of(node))

        return label

    def _scheduler(self) -> Scheduler:
        scheduler = Scheduler(BlockPool(BLOCKS, identity=self.model.manifest), self._limits, self._detokenizer)
        scheduler._controller = scheduler._ahead._controller = self._controller
        return scheduler

    def _copy(self, world: World) -> World:
        """Apart from `world` in all that changes; what is never written, or only measures, is shared."""
        scheduler = world.scheduler
        requests = [each.request for each in scheduler._line]
        requests += [each.request for each in scheduler._running.values()]
        states = [request.state for request in requests]
        shared = (scheduler._detokenizer, scheduler.limits, scheduler.speculation, scheduler._controller)
        index = scheduler.pool._index
        never = (*index._nodes, *(node.tokens for node in index))  # tuples of numbers, of which there are many
        memo: dict[int, Any] = {id(each): each for each in (*shared, *requests, *states, *never)}
        memory = world.memory  # a step makes a new one
        return World(copy.deepcopy(scheduler, memo), memory, dict(world.sessions), world.accidents)

    def _turn(self, turn: str, source: str) -> Turn:
        """Greedy, and sampled."""
        sampling = Sampling(temperature=0.0) if source == "a" else Sampling(temperature=0.9, seed=7)
        return Turn(turn, sampling, self.tokens, prompt=PROMPTS[source], ignore_eos=True, residency="chosen")

    def _parts(self) -> list[torch.Tensor]:
        return [part for layer in self.model.runner._kv.layers for part in (layer.keys, layer.values)]

    def _saved(self) -> list[torch.Tensor]:
        return [part.clone() for part in self._parts()]

    def _load(self, memory: list[torch.Tensor]) -> None:
        for part, content in zip(self._parts(), memory, strict=True):
            part.copy_(content)


def letters(decisions: Sequence[Decision]) -> str:
    return "".join("F" if decision is Decision.FLUSH else "K" for decision in decisions)


def decided(events: Sequence[Event]) -> str:
    """The decisions among events, in order."""
    found = [event.kept if isinstance(event, Output) else getattr(event, "boundary", None) for event in events]
    return letters([mark.decision for mark in found if mark is not None])


def tokens_of(node: Node) -> tuple[int, ...]:
    """The prefix that a node says it stands for."""
    before = () if node.parent is None else tokens_of(node.parent)
    return (*before, *node.tokens)


def gathered(memory: Sequence[torch.Tensor], table: npt.NDArray[Any], slots: int) -> Slots:
    """What stands in the first `slots` slots of these blocks: float32 KV, whose keys have the slots last."""
    blocks = [part.numpy().reshape(BLOCKS, -1)[table] for part in memory]
    found = []
    for index, part in enumerate(blocks):
        shape, order = (
            ((2, -1, BLOCK_TOKENS), (0, 3, 1, 2)) if index % 2 == 0 else ((2, BLOCK_TOKENS, -1), (0, 2, 1, 3))
        )
        by_slot = part.reshape(len(table), *shape).transpose(order)
        found.append(by_slot.reshape(len(table) * BLOCK_TOKENS, -1)[:slots])
    return np.concatenate(found, axis=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accidents", type=int, default=3, help="most of them on one path")
    parser.add_argument("--tokens", type=int, default=6, help="of an answer; every second is a boundary")
    parser.add_argument("--most", type=int, default=10**9, help="states after which it stops")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        explorer = Explorer(write_hf_checkpoint(Path(folder) / "small"), arguments.tokens)
        began = time.process_time()
        states, complete = explorer.explore(arguments.accidents, arguments.most)
        seconds = time.process_time() - began
    print(f"{states} states, {'all there are' if complete else 'not all'}, {seconds:.0f} s of one core")
    print(", ".join(f"{name}: {count}" for name, count in sorted(explorer.seen.items())))


if __name__ == "__main__":
    main()
