"""The continuity loop over a fake backend: order, assembly, invisible boundaries, refusals, cancellation."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import FakeBackend, fake_capabilities
from ghostkv.backends.base import Backend
from ghostkv.errors import ContextLengthExceeded, EngineFault, InvalidRequest, InvariantViolation
from ghostkv.protocol.rules import BoundaryRule, FixedBoundary
from ghostkv.request import (
    BoundaryView,
    Decision,
    Delta,
    FinishReason,
    Message,
    Sampling,
    SegmentRequest,
    Token,
)
from ghostkv.residency import SegmentBudget, policy
from ghostkv.session.chain import Chain
from ghostkv.session.context import TurnContext
from ghostkv.session.digest import turn_digest
from ghostkv.session.loop import run
from ghostkv.session.turn import Event, Finished, Output, Phases, SegmentRecord, Turn

STORY = re.findall(r" ?\w+|\S|\n", "The storm rose over the ridge. Nobody spoke, and the habitat was silent.\n" * 40)
SYSTEM, ASK = Message("system", "be brief"), Message("user", "a story")
BUDGET = SegmentBudget(target=10, cap=16, tail=8, state=0, recall=0)


@dataclass(frozen=True)
class SmallSegment:
    """`segment` with constants that suit short tests."""

    name: str = "segment"
    budget: SegmentBudget = BUDGET
    visible: None = None

    def reserve(self, remaining: int) -> int:
        return min(self.budget.cap, remaining)

    def at_boundary(self, view: BoundaryView) -> Decision:
        return Decision.FLUSH


@dataclass
class Ticking:
    """A clock that moves by one second whenever it is read."""

    now: float = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def template(messages: Sequence[Message]) -> list[int]:
    """A role id and one id a character; 9 begins the answer."""
    return [part for message in messages for part in (len(message.role), *map(ord, message.content))] + [9]


def context_for(
    backend: FakeBackend,
    eos: tuple[str, ...] = (),
    boundary: BoundaryRule | None = None,
    budget: SegmentBudget = BUDGET,
) -> TurnContext:
    return TurnContext(
        template=template,
        encode=lambda text: [ord(c) for c in text],
        token_bytes=backend.token_bytes,
        eos_ids=tuple(backend.ids[piece.encode()] for piece in eos),
        clock=Ticking(),
        boundary=boundary,
        policies=lambda name: SmallSegment(budget=budget) if name == "segment" else policy(name),
    )


def turn(residency: str = "segment", max_tokens: int = 60, **fields: object) -> Turn:
    base = Turn("t", Sampling(), max_tokens, messages=(SYSTEM, ASK), residency=residency)
    return replace(base, **fields)  # type: ignore[arg-type]


def events(backend: Backend, asked: Turn, context: TurnContext) -> list[Event]:
    async def collect() -> list[Event]:
        return [event async for event in run(backend, asked, context)]

    return asyncio.run(collect())


def text_of(found: Iterable[Event]) -> str:
    return "".join(event.text for event in found if isinstance(event, Output))


def tokens_of(found: Iterable[Event]) -> list[Token]:
    return [token for event in found if isinstance(event, Output) for token in event.tokens]


def finished(found: list[Event]) -> Finished:
    assert isinstance(found[-1], Finished)
    return found[-1]


def words(tokens: Iterable[int], backend: FakeBackend) -> str:
    return b"".join(map(backend.token_bytes, tokens)).decode()


# --- the chain ---


def test_segments_follow_each_other() -> None:
    backend = FakeBackend(STORY)
    found = events(backend, turn(max_tokens=40), context_for(backend))
    assert text_of(found) == "".join(STORY[:40])
    assert [request.id for request in backend.requests] == ["t.0", "t.1", "t.2", "t.3"]
    assert [(request.state.emitted, request.remaining) for request in backend.requests] == [
        (0, 40),
        (14, 26),
        (25, 15),
        (39, 1),
    ]
    head = template((SYSTEM, ASK))
    assert [list(request.prompt[: len(head)]) for request in backend.requests] == [head] * 4
    assert [words(request.prompt[len(head) :], backend) for request in backend.requests] == [
        "",
        " Nobody spoke, and the habitat was",
        "The storm rose over the ridge. Nobody",
        "The storm rose over the",
    ]


def test_records_and_the_end() -> None:
    backend = FakeBackend(STORY)
    found = events(backend, turn(max_tokens=40), context_for(backend))
    records = [event for event in found if isinstance(event, SegmentRecord)]
    head_ids = template((SYSTEM, ASK))
    head = len(head_ids)
    assert [record.index for record in records] == [0, 1, 2, 3]
    assert [record.boundary and record.boundary.kind for record in records] == ["word", "sentence", "word", None]
    assert [record.usage.prompt_tokens for record in records] == [head, head + 7, head + 8, head + 5]
    # The last generated token is not resident; 16 tokens of 100 bytes are a block.
    assert [record.usage.resident_tokens for record in records] == [31, 35, 39, 23]
    assert [record.live_kv_bytes for record in records] == [3200, 4800, 4800, 3200]
    # The clock ticks whenever it is read, and a prompt is rendered in two steps.
    assert [record.phases for record in records] == [Phases(recall=1.0, render=2.0, extract=1.0, merge=1.0)] * 4
    assert finished(found) == Finished(
        FinishReason.LENGTH,
        prompt_tokens=head,
        completion_tokens=40,
        exact=False,
        unseen_tokens=0,
        segments=tuple(records),
        digest=turn_digest(turn(max_tokens=40), head_ids),
    )


def test_what_each_segment_leaves_is_told_before_its_record() -> None:
    backend = FakeBackend(STORY)
    said: list[Any] = []

    async def collect() -> None:
        async for event in run(backend, turn(max_tokens=40), context_for(backend), closed=said.append):
            if isinstance(event, SegmentRecord):
                said.append(event)

    asyncio.run(collect())
    assert [isinstance(each, SegmentRecord) for each in said] == [False, True] * 4
    for carried, record in zip(said[::2], said[1::2], strict=True):
        assert len(carried.memory.payload.data) == record.payload_bytes
        assert carried.cursor.segment == record.index + 1
    assert list(said[-2].memory.archive.ids) == backend.script[:40]


def test_after_a_cap_the_next_segment_counts_from_the_start() -> None:
    backend = FakeBackend([*"7" * 16, " it", ".", " Go", *[" on"] * 7, ".", " So", *[" on"] * 20])
    records = finished(events(backend, turn(max_tokens=30), context_for(backend))).segments
    assert [(r.boundary and r.boundary.kind, r.usage.generated_tokens) for r in records] == [
        ("cap", 16),
        ("sentence", 12),
        (None, 2),
    ]


def test_the_order_of_the_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode, extract, merge, and only then the next prompt; the record closes a segment."""
    backend = FakeBackend(STORY)
    log = backend.log
    for name in ("recall", "render", "extract", "merge"):
        monkeypatch.setattr(Chain, name, logged(log, name, getattr(Chain, name)))

    async def collect() -> None:
        async for event in run(backend, turn(max_tokens=30), context_for(backend)):
            kind = type(event).__name__
            if log[-1] != kind:
                log.append(kind)

    asyncio.run(collect())
    decode = ["generate t.{}", "Output", "finish t.{}", "Output"]
    segment = ["recall", "render", *decode, "extract", "merge", "SegmentRecord"]
    assert log == [*(step.format(i) for i in range(3) for step in segment), "Finished"]


def logged(log: list[str], name: str, step: Callable[..., object]) -> Callable[..., object]:
    def call(*args: object) -> object:
        log.append(name)
        return step(*args)

    return call


def test_full_is_one_segment_and_exact() -> None:
    backend = FakeBackend(STORY)
    found = events(backend, turn("full", max_tokens=300), context_for(backend))
    assert [request.remaining for request in backend.requests] == [300]
    assert backend.requests[0].state.rules == ()
    end = finished(found)
    assert (end.exact, end.unseen_tokens, len(end.segments), end.completion_tokens) == (True, 0, 1, 300)


def test_a_backend_that_is_not_exact_gives_no_exact_answer() -> None:
    backend = FakeBackend(STORY, fake_capabilities(exact=False))
    assert not finished(events(backend, turn("full", 5), context_for(backend))).exact


OLD = (Message("user", "q" * 5), Message("assistant", "a" * 9))  # 16 ids
LATEST = (Message("user", "r" * 2), Message("assistant", "b" * 2))  # 6 ids


def test_earlier_exchanges_use_what_is_left_of_the_allowance() -> None:
    backend = FakeBackend(STORY)
    messages = (SYSTEM, *OLD, *LATEST, ASK)
    context = context_for(backend, budget=replace(BUDGET, state=4, recall=2))
    found = events(backend, turn(max_tokens=40, messages=messages), context)
    head, latest = template((SYSTEM, ASK)), template((SYSTEM, *LATEST, ASK))
    # The constants are 8 + 4 + 2: at first the 6 ids of the latest exchange fit, and beside a tail of 8 they still do.
    assert [request.prompt[: len(latest)] == tuple(latest) for request in backend.requests] == [True] * 4
    assert max(len(request.prompt) for request in backend.requests) == len(head) + 14
    end = finished(found)
    assert (end.prompt_tokens, end.unseen_tokens) == (len(template(messages)), 16)


def test_an_answer_to_a_shortened_history_is_not_exact() -> None:
    backend = FakeBackend(STORY)
    end = finished(events(backend, turn(max_tokens=5, messages=(*OLD, *OLD, ASK)), context_for(backend)))
    assert (len(end.segments), end.exact, end.unseen_tokens) == (1, False, 32)


def test_full_takes_the_whole_history() -> None:
    backend = FakeBackend(STORY)
    events(backend, turn("full", 5, messages=(*OLD, *OLD, ASK)), context_for(backend))
    assert list(backend.requests[0].prompt) == template((*OLD, *OLD, ASK))


def test_prompts_depend_on_the_request_and_not_on_the_pool() -> None:
    small, large = FakeBackend(STORY, fake_capabilities(pool_tokens=64)), FakeBackend(STORY)
    asked = turn(messages=(SYSTEM, *OLD, *LATEST, ASK))
    assert events(small, asked, context_for(small)) == events(large, asked, context_for(large))
    assert small.requests == large.requests


def test_a_completion_keeps_its_prompt() -> None:
    backend = FakeBackend(STORY)
    prompt = tuple(range(20, 45))
    found = events(backend, turn(max_tokens=40, messages=(), prompt=prompt), context_for(backend))
    assert [request.prompt[:25] for request in backend.requests] == [prompt] * 4
    assert words(backend.requests[1].prompt[25:], backend) == " Nobody spoke, and the habitat was"
    assert finished(found).prompt_tokens == 25


def test_the_request_carries_what_the_client_said() -> None:
    backend = FakeBackend(STORY)
    sampling = Sampling(seed=7, choice=2, min_tokens=3)
    asked = turn("full", 5, sampling=sampling, stop_ids=(5, 4), tenant="x", messages=(*OLD, ASK))
    events(backend, asked, context_for(backend, eos=("\n",)))
    (request,) = backend.requests
    assert request.sampling == replace(sampling, terminators=(5, 4, backend.ids[b"\n"]))
    assert request.tenant == asked.trust
    assert request.state.client_ids == frozenset(template((*OLD, ASK)))
    assert request.residency is policy("full")


def test_penalties_count_the_whole_prompt_of_the_client_even_where_it_is_dropped() -> None:
    backend = FakeBackend(STORY)
    messages = (Message("user", "xyz" * 10), Message("assistant", "b"), ASK)
    events(backend, turn(max_tokens=40, messages=messages), context_for(backend))
    assert {request.state.client_ids for request in backend.requests} == {frozenset(template(messages))}


# --- ends ---


def test_a_stop_string_over_a_flushed_boundary() -> None:
    stop = " spoke, and the hab"
    pieces = [*STORY[7:11], " the", " hab", "itat"]  # Nobody spoke , and the hab|itat
    backend = FakeBackend(pieces)
    for every in range(1, 6):
        found = events(backend, turn(stop=("never", stop)), context_for(backend, boundary=FixedBoundary(every)))
        assert text_of(found) == " Nobody"
        assert (finished(found).reason, finished(found).completion_tokens) == (FinishReason.STOP, 6)


def test_end_of_sequence_ends() -> None:
    backend = FakeBackend(STORY)
    found = events(backend, turn(), context_for(backend, eos=("\n",)))
    assert text_of(found) == "".join(STORY[:16])
    assert (finished(found).reason, finished(found).completion_tokens) == (FinishReason.STOP, 17)


def test_ignored_end_of_sequence_is_streamed_and_counted_but_never_carried() -> None:
    pieces = [piece for word in STORY[:60] for piece in (word, "<eos>")]
    backend = FakeBackend(pieces)
    found = events(backend, turn(max_tokens=100, ignore_eos=True), context_for(backend, eos=("<eos>",)))
    end = backend.ids[b"<eos>"]
    assert [token.id for token in tokens_of(found)].count(end) == 50
    assert finished(found).completion_tokens == 100
    assert len(backend.requests) > 5
    assert all(end not in request.prompt for request in backend.requests)
    assert all(end not in request.sampling.terminators for request in backend.requests)
    head = len(template((SYSTEM, ASK)))
    for request in backend.requests[1:]:
        tail, so_far = words(request.prompt[head:], backend), "".join(pieces[: request.state.emitted])
        assert so_far.replace("<eos>", "").endswith(tail)


def test_stop_ids_end_even_where_end_of_sequence_is_ignored() -> None:
    backend = FakeBackend(STORY)
    asked = turn(ignore_eos=True, stop_ids=(backend.ids[b" silent"],))
    found = events(backend, asked, context_for(backend, eos=(" ridge",)))
    assert text_of(found) == "".join(STORY[:14])


# --- boundaries leave no trace in the output ---

PIECES = st.lists(
    st.sampled_from([b"a", b" B", b". ", b"\n", b"ST", b"OP", b"\xf0\x9f", b"\x99\x82", b" the", b"\xc3", b"```\n"]),
    min_size=1,
    max_size=40,
)


@settings(max_examples=60)
@given(pieces=PIECES, every=st.integers(1, 17), min_tokens=st.integers(0, 30), max_tokens=st.integers(1, 50))
@pytest.mark.parametrize("residency", ["full", "segment"])
def test_boundaries_leave_no_trace(
    residency: str, pieces: list[bytes], every: int, min_tokens: int, max_tokens: int
) -> None:
    backend = FakeBackend(pieces)
    asked = turn(residency, max_tokens, stop=("STOP", "\nB"), sampling=Sampling(min_tokens=min_tokens))
    plain = events(backend, replace(asked, residency="full"), context_for(backend))
    cut = events(backend, asked, context_for(backend, boundary=FixedBoundary(every)))
    assert text_of(cut) == text_of(plain)
    assert tokens_of(cut) == tokens_of(plain)
    assert (finished(cut).reason, finished(cut).completion_tokens) == (
        finished(plain).reason,
        finished(plain).completion_tokens,
    )
    assert finished(cut).exact == (len(finished(cut).segments) == 1)
    assert residency == "segment" or finished(cut).exact


@pytest.mark.parametrize(
    ("ignored", "lines"), [((), [(1, 2), (5, 6), (9, 10)]), (("<eos>", "<eos>"), [(0, 1), (4, 5), (8, 9)])]
)
def test_an_opening_fence_is_repeated(ignored: tuple[str, ...], lines: list[tuple[int, int]]) -> None:
    pieces = ["```", "py\n", *[piece for i in range(40) for piece in (f"x{i}", " = 1", "\n")]]
    backend = FakeBackend([*ignored, *pieces])
    context = context_for(backend, eos=tuple(dict.fromkeys(ignored)))
    events(backend, turn(max_tokens=60, ignore_eos=True), context)
    head = len(template((SYSTEM, ASK)))
    tails = [words(request.prompt[head:], backend) for request in backend.requests]
    assert tails[1:4] == [f"```py\nx{a} = 1\nx{b} = 1\n" for a, b in lines]


# --- refusals, faults, cancellation ---


@pytest.mark.parametrize(
    ("residency", "question", "numbers"),
    [
        ("full", "a story", "60 tokens, but the request needs 118 (18 in the prompt, 100 for the answer)"),
        ("segment", "a story" + "y" * 19, "needs 61: its head (system messages and the last message) is 37"),
    ],
)
def test_refused_before_any_generation(residency: str, question: str, numbers: str) -> None:
    backend = FakeBackend(STORY, fake_capabilities(max_context=60))
    asked = turn(residency, 100, messages=(SYSTEM, Message("user", question)))
    with pytest.raises(ContextLengthExceeded, match=re.escape(numbers)):
        events(backend, asked, context_for(backend))
    assert backend.log == []


def test_an_unknown_policy_is_refused() -> None:
    backend = FakeBackend(STORY)
    with pytest.raises(InvalidRequest, match="full, segment"):
        events(backend, turn("forever"), context_for(backend))
    assert backend.log == []


async def read_some(backend: FakeBackend, count: int) -> None:
    stream = run(backend, turn(), context_for(backend))
    for _ in range(count):
        await anext(stream)
    await stream.aclose()


@pytest.mark.parametrize(("count", "request_id"), [(1, "t.0"), (13, "t.0"), (17, "t.1")])
def test_closing_early_cancels_the_segment_that_runs(count: int, request_id: str) -> None:
    backend = FakeBackend(STORY)
    asyncio.run(read_some(backend, count))
    assert backend.log[-1] == f"cancel {request_id}"
    assert sum(line.startswith("cancel") for line in backend.log) == 1


def test_a_cancelled_task_cancels_its_request() -> None:
    backend = FakeBackend(STORY)

    async def interrupted() -> None:
        reached = asyncio.Event()

        async def consume() -> None:
            async for _ in run(backend, turn(max_tokens=3000), context_for(backend)):
                reached.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(consume())
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(interrupted())
    assert [line for line in backend.log if line.startswith("cancel")] == [f"cancel {backend.requests[-1].id}"]


def test_an_answer_that_ended_cancels_nothing() -> None:
    backend = FakeBackend(STORY)
    events(backend, turn(), context_for(backend))
    assert not [line for line in backend.log if line.startswith("cancel")]


@dataclass
class Broken(FakeBackend):
    """Ends its stream without a finish, or raises."""

    error: Exception | None = None
    cancelled: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(STORY)

    async def generate(self, request: SegmentRequest) -> AsyncIterator[Delta]:
        yield Delta(request.id, (Token(1000),), "The")
        if self.error is not None:
            raise self.error


def test_a_stream_without_a_finish_is_a_fault() -> None:
    backend = Broken()
    with pytest.raises(EngineFault, match=r"t\.0"):
        events(backend, turn(), context_for(backend))
    assert backend.log == ["cancel t.0"]


def test_a_fault_of_the_backend_reaches_the_caller() -> None:
    backend = Broken(EngineFault("the engine stopped"))
    with pytest.raises(EngineFault, match="the engine stopped"):
        events(backend, turn(), context_for(backend))


@dataclass(frozen=True)
class Liar(SmallSegment):
    """Says that it never flushes, and flushes."""

    budget: None = None  # type: ignore[assignment]

    def reserve(self, remaining: int) -> int:
        return 5


def test_a_flush_that_the_policy_does_not_know_is_a_bug() -> None:
    backend = FakeBackend(STORY)
    with pytest.raises(InvariantViolation, match="never flushes"):
        events(backend, turn(), replace(context_for(backend), policies=lambda name: Liar()))


def test_a_kept_boundary_is_no_segment() -> None:
    backend = FakeBackend(STORY)
    found = events(backend, turn("full", 40), context_for(backend, boundary=FixedBoundary(16)))
    assert len(backend.requests) == 1
    assert finished(found).segments[0].boundary is None
