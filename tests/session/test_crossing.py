"""Segments of one answer on several workers: the text goes on, and what is counted goes on with it."""

from __future__ import annotations

import asyncio
import codecs
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import FakeBackend, Reciter, byte_tokenizer, fake_capabilities
from ghostkv.backends.base import Capabilities, Load
from ghostkv.protocol.plan import Node, Plan
from ghostkv.protocol.rules import BoundaryRule, FixedBoundary
from ghostkv.request import BoundaryView, Decision, FinishReason, Message, Sampling, Steering, Window
from ghostkv.residency import Policy, SegmentBudget, policy
from ghostkv.routing import DEFAULT_ROUTER, Switch, router
from ghostkv.session.chain import Carried, Chain
from ghostkv.session.context import TurnContext
from ghostkv.session.crossing import Crossing, Station
from ghostkv.session.loop import run
from ghostkv.session.planned import run_plan
from ghostkv.session.seat import one_worker
from ghostkv.session.translate import translated
from ghostkv.session.turn import Event, Finished, Output, SegmentRecord, Turn

ANSWER = "".join(f"{i:03}°C é{i:03} up. " for i in range(400))
WORDS, TRIPLES = rb" ?\w+|[\x80-\xff]+|`+|[^\w]", rb".{1,3}"
STORY = ["The", " storm", " rose", " over", " the", " ridge", ".", " Nobody", " spoke", "."]
ASCII = "".join(f"{i:03} up {i:03}. " for i in range(400))
ASK = (Message("system", "be brief"), Message("user", "a story"))
BUDGET = SegmentBudget(target=10, cap=16, tail=8, state=0, recall=0)


@dataclass(frozen=True)
class Small:
    """`segment` with constants that suit short tests."""

    name: str = "segment"
    budget: SegmentBudget = BUDGET
    visible: Window | None = None

    def reserve(self, remaining: int) -> int:
        return min(self.budget.cap, remaining)

    def at_boundary(self, view: BoundaryView) -> Decision:
        return Decision.FLUSH


def template(first: int, messages: Sequence[Message]) -> list[int]:
    return [part for message in messages for part in (first, *map(ord, message.content))] + [first + 1]


@dataclass
class Yard:
    """Workers over reciters, of which the schedule gives the only one with room for each segment."""

    reciters: list[Any]  # FakeBackends
    vocabularies: list[int]
    schedule: Callable[[int], int]
    boundary: BoundaryRule | None = None
    capabilities: list[Capabilities] = field(default_factory=list)
    dead: frozenset[int] = frozenset()
    following: Callable[[str], Sequence[int]] | None = None

    @property
    def segments(self) -> int:
        return sum(len(reciter.requests) for reciter in self.reciters)

    def context(self, index: int) -> TurnContext:
        reciter = self.reciters[index]
        return TurnContext(
            template=partial(template, 1 + 2 * self.vocabularies[index]),
            encode=reciter.encode,
            token_bytes=reciter.token_bytes,
            eos_ids=(5 + self.vocabularies[index],),
            clock=lambda: 0.0,
            boundary=self.boundary,
            policies=lambda name: find(name),
        )

    def station(self, index: int) -> Station:
        def load() -> Load:
            return Load(10**6 if self.schedule(self.segments) == index else 0, 0)

        return Station(
            f"w{index}",
            index,
            self.reciters[index],
            self.context(index),
            self.vocabularies[index],
            self.following or self.reciters[index].encode,
            load,
            lambda: index not in self.dead,
        )

    def events(self, turn: Turn, *, alone: bool = False) -> list[Event]:
        stations = [self.station(i) for i in range(len(self.reciters))]

        async def collect() -> list[Event]:
            seats = one_worker if alone else partial(Crossing, stations, switch_of(stations))
            return [event async for event in run(self.reciters[0], turn, stations[0].context, seats)]

        return asyncio.run(collect())


def switch_of(stations: Sequence[Station]) -> Switch:
    return Switch(router(DEFAULT_ROUTER), len(stations))


def find(name: str) -> Policy:
    return Small() if name == "segment" else policy(name)


def two_vocabularies(
    schedule: Callable[[int], int], answer: str = ANSWER, boundary: BoundaryRule | None = None
) -> Yard:
    return Yard([Reciter(answer, WORDS, 10_000), Reciter(answer, TRIPLES, 50_000)], [0, 1], schedule, boundary)


def turn(max_tokens: int = 80, residency: str = "segment", **fields: Any) -> Turn:
    return replace(Turn("t", Sampling(), max_tokens, messages=ASK, residency=residency), **fields)


def text_of(found: Iterable[Event]) -> str:
    return "".join(event.text for event in found if isinstance(event, Output))


def ids_of(found: Iterable[Event]) -> list[int]:
    return [token.id for event in found if isinstance(event, Output) for token in event.tokens]


def records_of(found: Iterable[Event]) -> list[SegmentRecord]:
    return [event for event in found if isinstance(event, SegmentRecord)]


def finished(found: list[Event]) -> Finished:
    assert isinstance(found[-1], Finished)
    return found[-1]


def written(yard: Yard, found: Iterable[Event]) -> list[bytes]:
    """The bytes of each token, by the vocabulary of the worker that chose it."""
    return [b"".join(reciter.token_bytes(token_id) for reciter in yard.reciters) for token_id in ids_of(found)]


def cut(pieces: Iterable[bytes], stops: Sequence[str], least: int) -> tuple[int, str] | None:
    """Number of tokens and text at the first stop string that is complete at token `least` or later."""
    decoder, text = codecs.getincrementaldecoder("utf-8")("replace"), ""
    for count, piece in enumerate(pieces, 1):
        before, text = text, text + decoder.decode(piece)
        ends = [(at + len(s), at) for s in stops if (at := text.find(s, max(0, len(before) - len(s) + 1))) >= 0]
        if count >= least and ends:
            return count, text[: min(ends)[1]]
    return None


SCHEDULES = st.lists(st.integers(0, 1), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(
    schedule=SCHEDULES,
    every=st.one_of(st.none(), st.integers(1, 13)),
    max_tokens=st.integers(1, 90),
    min_tokens=st.integers(0, 90),
    stop=st.lists(st.integers(0, 300), max_size=3),
)
def test_the_text_goes_on_and_stops_as_one_stream(
    schedule: list[int], every: int | None, max_tokens: int, min_tokens: int, stop: list[int]
) -> None:
    """Whatever crosses where: the output is the answer's text, cut where a loop over the chosen tokens cuts it."""
    stops = tuple(ANSWER[at : at + 7] for at in stop)
    boundary = None if every is None else FixedBoundary(every)
    yard = two_vocabularies(lambda segment: schedule[segment % len(schedule)], boundary=boundary)
    least = min(min_tokens, max_tokens)
    found = yard.events(turn(max_tokens, stop=stops, sampling=Sampling(min_tokens=least)))
    pieces = written(yard, found)
    assert ANSWER.encode().startswith(b"".join(pieces))
    expected = cut(pieces, stops, least)
    end = finished(found)
    if expected is not None:
        assert (end.reason, end.completion_tokens, text_of(found)) == (FinishReason.STOP, *expected)
    else:
        assert (end.reason, end.completion_tokens) == (FinishReason.LENGTH, max_tokens)
        assert text_of(found) == b"".join(pieces).decode(errors="replace")
    assert len(pieces) == end.completion_tokens


@pytest.mark.parametrize("every", range(1, 8))
def test_a_stop_string_over_a_crossing(every: int) -> None:
    yard = two_vocabularies(lambda segment: segment % 2, ASCII, FixedBoundary(every))
    found = yard.events(turn(40, stop=("never", ASCII[31:49])))
    assert len(records_of(found)) > 1
    assert text_of(found) == ASCII[:31]


@pytest.mark.parametrize("least", [1, 5, 6, 11, 23, 39])
def test_min_tokens_counts_over_crossings(least: int) -> None:
    endless, stopped = (two_vocabularies(lambda segment: segment % 2, ASCII, FixedBoundary(5)) for _ in range(2))
    pieces = written(endless, endless.events(turn(60)))
    found = stopped.events(turn(60, stop=(" up ",), sampling=Sampling(min_tokens=least)))
    assert (finished(found).completion_tokens, text_of(found)) == cut(pieces, (" up ",), least)


@settings(max_examples=40, deadline=None)
@given(schedule=SCHEDULES, every=st.one_of(st.none(), st.integers(1, 13)))
def test_every_request_counts_the_whole_answer_in_its_own_ids(schedule: list[int], every: int | None) -> None:
    boundary = None if every is None else FixedBoundary(every)
    yard = two_vocabularies(lambda segment: schedule[segment % len(schedule)], boundary=boundary)
    found = yard.events(turn(100, sampling=Sampling(frequency_penalty=1.0)))
    records, ids = records_of(found), ids_of(found)
    own: list[list[int]] = [[], []]  # the answer as each vocabulary has it, translated when it is needed
    pending = ["", ""]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    seen, at = [0, 0], 0
    for record in records:
        index = int(record.worker[1:])
        reciter, other = yard.reciters[index], 1 - index
        request = reciter.requests[seen[index]]
        seen[index] += 1
        assert request.state.emitted == at
        assert request.state.client_ids == frozenset(template(1 + 2 * index, ASK))
        assert request.sampling.terminators == (5 + index,)
        own[index] += [i for text in pending[index].split("\0") for i in reciter.encode(text)]  # segment by segment
        pending[index] = ""
        assert Counter(dict(request.state.counts)) == Counter(own[index])
        tail = [token_id for token_id in request.prompt if token_id >= 10_000]
        assert own[index][len(own[index]) - len(tail) :] == tail and (tail or not at)
        chosen = ids[at : at + record.usage.generated_tokens]
        at += len(chosen)
        own[index] += chosen
        pending[other] += decoder.decode(reciter.text(chosen)) + "\0"


def test_a_text_inside_a_character_does_not_cross() -> None:
    yard = two_vocabularies(lambda segment: segment == 0, "ab°" + ANSWER, FixedBoundary(1))
    found = yard.events(turn(3))
    assert written(yard, found) == [b"ab\xc2", b"\xb000", b"0"]
    assert [record.worker for record in records_of(found)] == ["w1", "w1", "w0"]
    assert records_of(found)[1].reason == "the text ends inside a character"
    assert text_of(found) == "ab°000"


def test_an_open_fence_is_repeated_in_the_other_vocabulary() -> None:
    code = "```py\n" + "".join(f"{i:03}{i:03}{i:03}\n" for i in range(100))
    yard = two_vocabularies(lambda segment: segment % 2, code)
    for reciter in yard.reciters:
        reciter.known = 9
    found = yard.events(turn(120))
    assert len(records_of(found)) > 6
    for index, reciter in enumerate(yard.reciters):
        for request in reciter.requests[0 if index else 1 :]:
            tail = reciter.text(request.prompt)
            assert tail.startswith(b"```py\n") and 6 < len(tail) < 60, (index, tail)


def test_records_and_exactness() -> None:
    yard = two_vocabularies(lambda segment: segment % 2, ASCII)
    found = yard.events(turn(60))
    records = records_of(found)
    assert [record.worker for record in records] == [f"w{i % 2}" for i in range(len(records))]
    assert len(records) > 3
    assert all(re.match(r"density [01]\.\d\d: ", record.reason) for record in records)
    assert not finished(found).exact
    assert finished(found).prompt_tokens == len(template(1, ASK))
    once = two_vocabularies(lambda segment: 1).events(turn(5))
    assert [record.worker for record in records_of(once)] == ["w1"] and not finished(once).exact
    home = two_vocabularies(lambda segment: 0).events(turn(5))
    assert [record.worker for record in records_of(home)] == ["w0"] and finished(home).exact


def test_density_chooses_among_those_with_room() -> None:
    """A light question, then a dense segment."""
    answer = "Mass: 312 kg\nSeal: 88-GH-20\nDue: 12 May 2031\n" + ASCII
    yard = two_vocabularies(lambda segment: 0, answer)
    stations = [replace(yard.station(i), load=lambda: Load(10**6, 0)) for i in (0, 1)]

    async def collect() -> list[Event]:
        asked = turn(40, messages=(Message("user", "tell me how it went with them"),))
        seats = partial(Crossing, stations, switch_of(stations))
        return [e async for e in run(yard.reciters[0], asked, stations[0].context, seats)]

    first, second, *_ = records_of(asyncio.run(collect()))
    assert (first.worker, first.reason[12:]) == ("w0", ": the weakest with room")
    assert first.density > 0.6
    assert (second.worker, second.reason) == ("w1", f"density {first.density:.2f}: the strongest with room")


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (turn(40, "full"), "residency full stays with one worker"),
        (turn(40, messages=(), prompt=(1, 2, 3)), "its ids are of one vocabulary"),
        (turn(40, stop_ids=(77,)), "its ids are of one vocabulary"),
        (turn(40, sampling=Sampling(logit_bias=((3, 1.0),))), "its ids are of one vocabulary"),
        (turn(40, sampling=Sampling(logprobs=0)), "its ids are of one vocabulary"),
        (turn(40, steering=Steering((("calm", 3),))), "no other can take it"),
    ],
)
def test_what_stays(asked: Turn, reason: str) -> None:
    yard = two_vocabularies(lambda segment: 1)
    yard.reciters[0]._capabilities = replace(fake_capabilities(), steering=("calm",))
    found = yard.events(asked)
    assert {(record.worker, record.reason) for record in records_of(found)} == {("w0", reason)}
    assert finished(found).exact == (asked.residency == "full")


def test_a_structured_answer_is_one_segment_on_a_worker_of_its_vocabulary() -> None:
    yard = two_vocabularies(lambda segment: 1)
    records = records_of(yard.events(turn(40, grammar=byte_tokenizer().grammars.regex("x+"))))
    assert [(record.worker, record.reason) for record in records] == [("w0", "its ids are of one vocabulary")]


def test_a_worker_that_cannot_take_the_turn_or_is_ended_is_left_out() -> None:
    small = Reciter(ANSWER, TRIPLES, 50_000, fake_capabilities(max_context=24))
    yard = Yard([Reciter(ANSWER, WORDS, 10_000), small], [0, 1], lambda segment: 1)
    assert {record.worker for record in records_of(yard.events(turn(40)))} == {"w0"}
    yard = two_vocabularies(lambda segment: 1)
    yard.dead = frozenset((1,))
    assert {record.worker for record in records_of(yard.events(turn(40)))} == {"w0"}


# --- equal vocabularies ---


@settings(max_examples=30, deadline=None)
@given(schedule=SCHEDULES, every=st.one_of(st.none(), st.integers(1, 13)), logprobs=st.sampled_from([None, 0]))
def test_crossing_to_an_equal_vocabulary_changes_nothing(
    schedule: list[int], every: int | None, logprobs: int | None
) -> None:
    pieces = [b"a", b" B", b". ", b"\n", b"ST", b"\xf0\x9f", b"\x99\x82", b" the", b"\xc3", b"```\n"] * 9

    class Shared(FakeBackend):
        def encode(self, text: str) -> list[int]:
            return [ord(c) for c in text]

    def never(text: str) -> list[int]:
        raise AssertionError(f"{text!r} is translated")

    boundary = None if every is None else FixedBoundary(every)
    asked = turn(80, stop=("T\nB",), sampling=Sampling(logprobs=logprobs, presence_penalty=1.0))
    log: list[Any] = []

    def yard() -> Yard:
        made = Yard([Shared(pieces), Shared(pieces)], [0, 0], lambda _: schedule[len(log) % len(schedule)], boundary)
        made.following = never
        for reciter in made.reciters:
            reciter.requests = log
        return made

    alone = yard().events(asked, alone=True)
    requests = list(log)
    log.clear()
    crossed = yard().events(asked)
    assert log == requests
    assert ids_of(crossed) == ids_of(alone) and text_of(crossed) == text_of(alone)
    plain = [replace(record, worker="", reason="") for record in records_of(crossed)]
    assert plain == records_of(alone)
    used = [schedule[i % len(schedule)] for i in range(len(plain))]
    assert [record.worker for record in records_of(crossed)] == [f"w{i}" for i in used]


@given(every=st.integers(3, 30))
@settings(max_examples=10, deadline=None)
def test_there_and_back_is_the_identity(every: int) -> None:
    yard = two_vocabularies(lambda segment: 0, boundary=FixedBoundary(every))
    left: list[Carried] = []
    asked = turn(60, stop=("never",))
    words, triples = (Chain.of(asked, yard.context(i), yard.reciters[i].capabilities()) for i in (0, 1))

    class Noting(Crossing):
        def __call__(self, seat: Any) -> Any:
            left.append(seat.carried)
            return super().__call__(seat)

    async def drive() -> None:
        stations = [yard.station(0)]
        seats = partial(Noting, stations, switch_of(stations))
        async for _ in run(yard.reciters[0], asked, words.context, seats):
            pass

    asyncio.run(drive())
    now = left[-1]
    text = yard.reciters[0].text(now.memory.archive.ids).decode()
    there = translated(now, triples.begin(), [text], yard.reciters[1].encode, yard.reciters[1].token_bytes)
    assert yard.reciters[1].text(there.memory.archive.ids).decode() == text
    assert there.state.emitted == now.state.emitted > 0
    assert translated(there, now, [], yard.reciters[0].encode, yard.reciters[0].token_bytes) == now


# --- plans ---


def test_the_nodes_of_a_plan_stay_in_one_vocabulary() -> None:
    """Each continues the ids of those before it; among workers of one vocabulary that changes no byte."""
    plan = Plan.of(Node(i, f"part {i}", depends_on=(i - 1,) if i else ()) for i in range(3))
    asked = turn(120, plan=plan)

    class Shared(FakeBackend):
        def encode(self, text: str) -> list[int]:
            return [ord(c) for c in text]

    async def collect(yard: Yard, *, crossing: bool) -> list[Event]:
        stations = [yard.station(i) for i in range(len(yard.reciters))]
        seats = partial(Crossing, stations, switch_of(stations), one_vocabulary=True) if crossing else one_worker
        return [event async for event in run_plan(yard.reciters[0], asked, stations[0].context, seats)]

    yard = Yard(
        [Shared(STORY), Reciter(ANSWER, TRIPLES, 50_000), Shared(STORY)], [0, 1, 0], lambda segment: 2 - segment % 3
    )
    found = asyncio.run(collect(yard, crossing=True))
    plain = asyncio.run(collect(Yard([Shared(STORY)], [0], lambda segment: 0), crossing=False))
    assert {record.worker for record in records_of(found)} == {"w0", "w2"}
    assert yard.reciters[1].requests == []
    assert (ids_of(found), text_of(found)) == (ids_of(plain), text_of(plain))
