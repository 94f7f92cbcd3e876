"""Planned answers over a fake backend: document order, shares, stops, refusals, and nothing left running."""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import AsyncIterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import FakeBackend, fake_capabilities
from ghostkv.errors import ContextLengthExceeded, EngineFault, InvalidRequest, Overloaded
from ghostkv.protocol.node_prompt import node_note, noted
from ghostkv.protocol.plan import OPEN, Node, Plan, topological_segment
from ghostkv.protocol.render import Conversation
from ghostkv.request import Delta, FinishReason, Message, Sampling, SegmentRequest
from ghostkv.residency import SegmentBudget, policy
from ghostkv.session.context import TurnContext
from ghostkv.session.loop import run
from ghostkv.session.planned import run_plan
from ghostkv.session.planning import check_plan
from ghostkv.session.turn import Event, Finished, Output, SegmentRecord, Turn
from session.test_loop import SmallSegment, template

PIECES = ["a", "B", " the", ". ", "\n", "\n\n", "a\n\nB", " Mars", "<eos>", "!"]
ASK = (Message("system", "be brief"), Message("user", "a report"))
LARGE = SegmentBudget(target=10, cap=16, tail=8, state=0, recall=0)


class Telling(FakeBackend):
    """What it says is a function of prompt and node; how fast each node says it is up to `seed`."""

    def __init__(self, seed: int = 0, pieces: list[str] = PIECES, **options: int) -> None:
        super().__init__(
            pieces, fake_capabilities(max_context=options.get("max_context", 100_000), pool_tokens=100_000)
        )
        self.random = random.Random(seed)
        self.slow = seed > 0
        self.running: set[str] = set()
        self.together = 0

    async def generate(self, request: SegmentRequest) -> AsyncIterator[Delta]:
        self.requests.append(request)
        self.running.add(request.id)
        self.together = max(self.together, len(self.running))
        inner = FakeBackend([])
        inner.ids, inner._bytes = self.ids, self._bytes
        key = repr((request.prompt, request.sampling.node)).encode()
        inner.script = [1000 + zlib.crc32(key + bytes([i])) % len(self.ids) for i in range(40)]
        try:
            async for delta in inner.generate(request):
                for _ in range(self.random.randrange(4) if self.slow else 0):
                    await asyncio.sleep(0)
                yield delta
        finally:
            self.running.discard(request.id)


def context_for(backend: FakeBackend, eos: bool = True) -> TurnContext:
    return TurnContext(
        template=template,
        encode=lambda text: [ord(c) for c in text],
        token_bytes=lambda token: bytes([token]) if token < 256 else backend.token_bytes(token),
        eos_ids=(backend.ids[b"<eos>"],) if eos and b"<eos>" in backend.ids else (),
        clock=lambda: 0.0,
        policies=lambda name: SmallSegment(budget=LARGE) if name == "segment" else policy(name),
    )


def turn(plan: Plan | str | None, max_tokens: int = 60, **fields: object) -> Turn:
    base = Turn("t", Sampling(seed=3), max_tokens, messages=ASK, residency="full", plan=plan)  # type: ignore[arg-type]
    return replace(base, **fields)  # type: ignore[arg-type]


async def collect(backend: FakeBackend, asked: Turn, context: TurnContext | None = None) -> list[Event]:
    return [event async for event in run_plan(backend, asked, context or context_for(backend))]


def events(backend: FakeBackend, asked: Turn, context: TurnContext | None = None) -> list[Event]:
    return asyncio.run(collect(backend, asked, context))


def text_of(found: list[Event]) -> str:
    return "".join(event.text for event in found if isinstance(event, Output))


def end_of(found: list[Event]) -> Finished:
    assert isinstance(found[-1], Finished)
    return found[-1]


def side_by_side(count: int) -> Plan:
    return Plan.of(Node(i, f"part {i}", mode="parallel") for i in range(count))


def in_a_row(count: int) -> Plan:
    return Plan.of(Node(i, f"part {i}", depends_on=(i - 1,) if i else ()) for i in range(count))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    count = draw(st.integers(2, 6))
    return Plan.of(
        Node(
            index,
            f"part {index}",
            target=draw(st.sampled_from([0.5, 1.0, 3.0])),
            depends_on=tuple(sorted(draw(st.sets(st.integers(0, index - 1))))) if index else (),
            heading=draw(st.sampled_from(["", "", f"## {index}"])),
        )
        for index in range(count)
    )


# --- the same answer as one node after the other ---


def hamilton(total: int, targets: list[float]) -> list[int]:
    exact = [total * Fraction(target) / sum(map(Fraction, targets)) for target in targets]
    parts = [int(share) for share in exact]
    while sum(parts) < total:
        parts[max(range(len(parts)), key=lambda i: (exact[i] - parts[i], -i))] += 1
    return parts


def gap(before: str, heading: str, after: str) -> str:
    if not before:
        breaks = 0
    else:
        here = len(before) - len(before.rstrip("\n"))
        there = 0 if heading else len(after) - len(after.lstrip("\n"))
        breaks = max(0, 2 - here - there)
    return "\n" * breaks + (heading + "\n\n" if heading else "")


def lead_ids(written: list[tuple[str, str, list[int]]]) -> list[int]:
    """Ids of (heading, text, ids) one after the other; of the last only what stands before it."""
    lead, found = "", list[int]()
    for heading, text, ids in written:
        between = gap(lead, heading, text)
        lead, found = lead + between + text, [*found, *map(ord, between), *ids]
    return found


async def one_by_one(plan: Plan, max_tokens: int, stop: str) -> tuple[str, int]:  # noqa: C901 - a whole reference
    """Text and tokens, by raw completions of prompts put together here, one node after the other."""
    backend = Telling()
    context = context_for(backend)
    eos = backend.ids[b"<eos>"]
    count = len(plan.nodes)
    before = [set[int]() for _ in plan.nodes]
    for node in plan.nodes:
        before[node.index] = {a for b in node.depends_on for a in (b, *before[b])}
    shares = hamilton(max_tokens, [node.target for node in plan.nodes])
    texts, ids = [""] * count, [list[int]() for _ in plan.nodes]
    document, total = "", 0
    for node in plan.nodes:
        i = node.index
        if not shares[i]:
            continue
        written = [a for a in (*sorted(before[i]), i) if shares[a]]
        lead = lead_ids([(plan.nodes[a].heading, texts[a], ids[a]) for a in written])
        prompt = (*template(noted(Conversation.of(ASK, template), node_note(plan, i))), *lead)
        asked = Turn("r", Sampling(seed=3, node=i), shares[i], prompt=tuple(prompt), residency="full")
        shown, used = bool(node.heading), 0
        if shown:
            document += gap(document, node.heading, "")
        async for event in run(backend, asked, context):
            if not isinstance(event, Output):
                continue
            used += len(event.tokens)
            ids[i] += [token.id for token in event.tokens if token.id != eos]
            before_it = document
            if event.text:
                document += event.text if shown else gap(document, "", event.text) + event.text
            texts[i] += event.text
            if stop and stop in document:
                cut = document.index(stop)
                # A node of which nothing is left gets no blank line before it.
                return document[:cut] if shown or document[cut:] != event.text else before_it, total + used
            shown = shown or bool(event.text)
        total += used
        later = [d for d in range(count) if i in before[d]]
        if later:
            for d, more in zip(later, hamilton(shares[i] - used, [plan.nodes[d].target for d in later]), strict=True):
                shares[d] += more
        shares[i] = used
    return document, total


@settings(max_examples=120)
@given(plan=plans(), max_tokens=st.integers(1, 90), seed=st.integers(1, 9), stop=st.sampled_from(["", "a\n\nB", "s!"]))
def test_concurrency_changes_no_byte(plan: Plan, max_tokens: int, seed: int, stop: str) -> None:
    backend = Telling(seed)
    found = events(backend, turn(plan, max_tokens, stop=(stop,) if stop else ()))
    text, tokens = asyncio.run(one_by_one(plan, max_tokens, stop))
    assert text_of(found) == text
    end = end_of(found)
    assert end.completion_tokens == tokens <= max_tokens
    assert end.completion_tokens == sum(len(event.tokens) for event in found if isinstance(event, Output))
    assert sum(request.remaining for request in backend.requests) >= tokens
    assert not backend.running
    assert not end.exact


@settings(max_examples=60)
@given(plan=plans(), max_tokens=st.integers(1, 200), seed=st.integers(1, 9))
def test_segments_of_nodes(plan: Plan, max_tokens: int, seed: int) -> None:
    """Under a policy that flushes, timing changes nothing either, and usage adds up."""
    found, again = (events(Telling(s), turn(plan, max_tokens, residency="segment")) for s in (seed, 0))
    assert text_of(found) == text_of(again)
    assert end_of(found) == end_of(again)
    records = [event for event in found if isinstance(event, SegmentRecord)]
    assert records == list(end_of(found).segments)
    assert [record.index for record in records] == list(range(len(records)))
    assert [record.node for record in records] == sorted(record.node for record in records)
    assert sum(record.usage.generated_tokens for record in records) == end_of(found).completion_tokens
    assert max(record.tail for record in records) <= LARGE.tail


# --- order and shares ---


def test_independent_nodes_run_together_and_dependent_ones_wait() -> None:
    backend = Telling()
    events(backend, turn(side_by_side(4)))
    assert backend.together == 4
    backend = Telling()
    events(backend, turn(in_a_row(4)))
    assert backend.together == 1


def test_a_later_node_that_is_done_waits_for_its_turn() -> None:
    class Lagging(Telling):
        async def generate(self, request: SegmentRequest) -> AsyncIterator[Delta]:
            async for delta in super().generate(request):
                for _ in range(200 if request.sampling.node == 0 else 0):
                    await asyncio.sleep(0)
                yield delta

    plan = Plan.of(Node(i, f"part {i}", mode="parallel", heading=f"# {i}") for i in range(3))
    text = text_of(events(Lagging(), turn(plan)))
    assert text == text_of(events(Telling(), turn(plan)))
    assert text.index("# 0") < text.index("# 1") < text.index("# 2")


def test_what_a_node_leaves_unused_is_passed_on_in_a_chain_and_not_beside() -> None:
    def shares(plan: Plan) -> list[int]:
        backend = Telling(pieces=["<eos>"])  # every node ends after one token
        events(backend, turn(plan, 30))
        return [request.remaining for request in backend.requests]

    assert shares(in_a_row(3)) == [10, 10 + 5, 10 + 4 + 14]
    assert shares(side_by_side(3)) == [10, 10, 10]


def test_a_node_without_a_share_is_left_out() -> None:
    backend = Telling(pieces=["a"])
    found = events(backend, turn(side_by_side(5), 3))
    assert text_of(found) == "a\n\na\n\na"
    assert (end_of(found).reason, end_of(found).completion_tokens) == (FinishReason.LENGTH, 3)


def test_randomness_and_penalties() -> None:
    backend = Telling(pieces=["a", "B"])
    plan = Plan.of([Node(0, "x"), Node(1, "y"), Node(2, "z", depends_on=(0, 1))])
    events(backend, turn(plan, 12))
    by_node = {request.sampling.node: request for request in backend.requests}
    assert sorted(by_node) == [0, 1, 2]
    assert by_node[0].state.counts == by_node[1].state.counts == ()
    assert sum(count for _, count in by_node[2].state.counts) == 8
    assert {request.state.client_ids for request in backend.requests} == {frozenset(template(ASK))}


# --- ends ---


def test_end_of_sequence_ends_a_node_only() -> None:
    backend = Telling(pieces=["<eos>"])
    end = end_of(events(backend, turn(side_by_side(3))))
    assert (end.reason, end.completion_tokens, len(backend.requests)) == (FinishReason.STOP, 3, 3)


@pytest.mark.parametrize("how", ["string", "id"])
def test_a_stop_ends_the_answer_and_cancels_later_nodes(how: str) -> None:
    backend = Telling(pieces=["a"])
    stops = {"stop": ("aaa",)} if how == "string" else {"stop_ids": (backend.ids[b"a"],)}
    plan = side_by_side(4)
    found = events(backend, turn(plan, 4000, **stops))
    end = end_of(found)
    assert end.reason is FinishReason.STOP
    assert text_of(found) == ""  # neither a stop string nor a stop id is output
    assert end.completion_tokens == (3 if how == "string" else 1)
    assert (end.discarded_tokens > 0) == (how == "string")
    assert not backend.running


def test_a_stop_string_across_two_nodes() -> None:
    backend = Telling(pieces=["a"])
    found = events(backend, turn(side_by_side(3), 9, stop=("a\n\naa",)))
    assert text_of(found) == "aa"
    # The second node's first "a" might begin a stop string of its own, so it came with the token after the match.
    assert (end_of(found).reason, end_of(found).completion_tokens) == (FinishReason.STOP, 6)
    assert end_of(found).discarded_tokens + 6 <= 9


def test_an_open_plan_is_no_plan() -> None:
    plain, backend = Telling(), Telling()

    async def without() -> list[Event]:
        return [event async for event in run(plain, turn(None), context_for(plain))]

    expected = asyncio.run(without())
    for plan in ("auto", OPEN):
        found = events(backend, turn(plan))
        assert found[:-1] == expected[:-1]
        assert replace(end_of(found), plan=None) == expected[-1]
        record = end_of(found).plan
        assert record is not None and [node.note for node in record.nodes] == [""]
    assert [request.prompt for request in backend.requests] == [plain.requests[0].prompt] * 2


def test_the_record_says_what_was_decided() -> None:
    plan = topological_segment("", [{"title": "Sea", "target": 3}, {"title": "Land", "depends_on": [0]}])
    record = end_of(events(Telling(), turn(plan, 40))).plan
    assert record is not None
    assert record.source == "given"
    assert [node.node for node in record.nodes] == list(plan.nodes)
    assert [node.max_tokens for node in record.nodes] == [30, 10]
    assert record.nodes[0].note == "Write only part 1 of 2: Sea. The other parts are written separately."
    assert "part 2 of 2: Land. Go on" in record.nodes[1].note
    assert record.nodes[0].digest != record.nodes[1].digest


# --- a model's outline ---


def outlining(outline: str) -> Telling:
    class Outlining(Telling):
        async def generate(self, request: SegmentRequest) -> AsyncIterator[Delta]:
            if request.id.startswith("t.outline"):
                inner = FakeBackend([])
                inner.ids, inner._bytes = self.ids, self._bytes
                inner.script = [self.ids[outline.encode()], self.ids[b"<eos>"]]
                async for delta in inner.generate(request):
                    yield delta
                return
            async for delta in super().generate(request):
                yield delta

    return Outlining(pieces=[*PIECES, outline])


def test_a_plan_from_the_model() -> None:
    backend = outlining("Sure!\n1. The ship\n2. **The storm**\n3) Conclusion\n")
    end = end_of(events(backend, turn("model")))
    assert end.plan is not None
    assert end.plan.source == "model"
    assert [node.node.title for node in end.plan.nodes] == ["The ship", "The storm", "Conclusion"]
    assert [node.node.depends_on for node in end.plan.nodes] == [(), (0,), (0, 1)]
    assert (end.plan.outline_tokens, end.plan.said) == (2, "")
    assert end.completion_tokens <= 60


def test_no_outline_is_one_open_node() -> None:
    end = end_of(events(outlining("I cannot do that."), turn("model")))
    assert end.plan is not None
    assert len(end.plan.nodes) == 1
    assert "no outline was found" in end.plan.said
    assert end.exact


# --- refusals and faults ---


@pytest.mark.parametrize(
    ("fields", "answers", "param"),
    [
        ({"sampling": Sampling(logprobs=0)}, 1, "logprobs"),
        ({"sampling": Sampling(min_tokens=4)}, 1, "min_tokens"),
        ({}, 2, "n"),
        ({"messages": (), "prompt": (1, 2)}, 1, "ghostkv.plan"),
    ],
)
@pytest.mark.parametrize("plan", ["auto", "model", side_by_side(2)])
def test_what_does_not_go_with_a_plan(plan: Plan | str, fields: dict[str, Any], answers: int, param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        check_plan(turn(plan, **fields), answers)
    assert refusal.value.param == param
    check_plan(turn(None, **fields), answers)


def test_too_large_a_plan_is_refused_before_any_generation() -> None:
    backend = Telling(max_context=100)
    events(backend, turn(OPEN, 50))
    count = len(backend.requests)
    with pytest.raises(ContextLengthExceeded):
        events(backend, turn(in_a_row(3), 80))
    assert len(backend.requests) == count


class Failing(Telling):
    """Raises in the given node, at once or after its first token."""

    def __init__(self, node: int, error: Exception, *, late: bool) -> None:
        super().__init__()
        self.failing, self.error, self.late = node, error, late

    async def generate(self, request: SegmentRequest) -> AsyncIterator[Delta]:
        if request.sampling.node == self.failing and not self.late:
            raise self.error
        async for delta in super().generate(request):
            yield delta
            if request.sampling.node == self.failing:
                raise self.error


@pytest.mark.parametrize("node", [0, 1, 3])
@pytest.mark.parametrize("late", [True, False])
def test_a_fault_reaches_the_caller_and_leaves_nothing_running(node: int, late: bool) -> None:
    backend = Failing(node, EngineFault("the engine stopped"), late=late)

    async def consume() -> set[str]:
        with pytest.raises(EngineFault, match="the engine stopped"):
            await collect(backend, turn(side_by_side(4), 400))
        return backend.running

    assert asyncio.run(consume()) == set()


@pytest.mark.parametrize("count", [1, 5, 40])
def test_closing_early_cancels_every_node(count: int) -> None:
    backend = Telling(pieces=["a"])

    async def consume() -> tuple[set[str], int]:
        stream = run_plan(backend, turn(side_by_side(4), 400), context_for(backend))
        for _ in range(count):
            await anext(stream)
        await stream.aclose()
        return backend.running, len(asyncio.all_tasks())

    assert asyncio.run(consume()) == (set(), 1)


class Full(Telling):
    """Turns new requests away while `line` lasts, but none that has begun."""

    def __init__(self, admitted: int) -> None:
        super().__init__()
        self.admitted = admitted

    async def generate(self, request: SegmentRequest) -> AsyncIterator[Delta]:
        await asyncio.sleep(0)
        if not request.begun:
            self.admitted -= 1
            if self.admitted < 0:
                raise Overloaded("full")
        async for delta in super().generate(request):
            yield delta


def test_a_full_line_refuses_a_whole_answer_and_never_part_of_one() -> None:
    plan = side_by_side(4)
    with pytest.raises(Overloaded):
        events(Full(0), turn(plan))
    assert text_of(events(Full(1), turn(plan))) == text_of(events(Telling(), turn(plan)))
