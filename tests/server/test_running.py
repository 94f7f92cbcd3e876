"""A session's answer without HTTP: how it ends, who is told, and where text without tokens goes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ghostkv.config import SessionLimits
from ghostkv.errors import EngineFault, Interrupted, Overloaded, SessionBusy, SessionNotFound
from ghostkv.protocol.facts import Fact, Kind, Position, Sentence
from ghostkv.protocol.ledger import Ledger
from ghostkv.protocol.payload import Cursor, Payload
from ghostkv.protocol.reader import Reader
from ghostkv.protocol.transition import Memory, OpenText
from ghostkv.request import FinishReason, GenerationState, Message, Sampling, SegmentUsage, Token
from ghostkv.server.desk import Desk
from ghostkv.server.running import Reading, Whole
from ghostkv.session.chain import Carried, Closed
from ghostkv.session.record import NewTurn, SessionRecord
from ghostkv.session.table import SessionTable
from ghostkv.session.turn import Event, Finished, Output, SegmentRecord, Turn

KEY = ("t", "s")
TURN = Turn("x", Sampling(), 10, messages=(Message("user", "hi"),))
NEW = NewTurn("x", "chat.completions", "{}", 0, 1, 10, 3, TURN.messages)
END = Finished(FinishReason.STOP, 3, 3, exact=True, unseen_tokens=0)
RECORD = SegmentRecord(0, SegmentUsage(3, 0, 3, 5, 0.0, 0.0, 0.0), None, 16)


class Tap:
    """An answer that gives what it is told to."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[Event | Exception] = asyncio.Queue()
        self.closed = False
        self.tell: Closed = lambda _: None
        self._ended = False

    def open(self, closed: Closed) -> Tap:
        self.tell = closed
        return self

    async def __anext__(self) -> tuple[int, Event]:
        if self._ended:
            raise StopAsyncIteration
        event = await self.events.get()
        if isinstance(event, Exception):
            raise event
        self._ended = isinstance(event, Finished)
        return 0, event

    def close(self) -> None:
        self.closed = True


def said(text: str) -> Output:
    return Output((Token(ord(text[0])),), text)


def on_desk(check: Callable[[Desk, Tap], Awaitable[None]], **limits: Any) -> None:
    async def run() -> None:
        before = asyncio.all_tasks()
        desk = Desk(SessionTable(SessionLimits(**limits)))
        desk.table.create(SessionRecord("s", "t", 0, "model", "manifest"))
        await check(desk, Tap())
        assert asyncio.all_tasks() == before and desk._running == {}

    asyncio.run(asyncio.wait_for(run(), 20))


async def rest(reading: Reading) -> list[Event]:
    return [event async for _, event in reading]


async def given_time(steps: int = 5) -> None:
    for _ in range(steps):
        await asyncio.sleep(0)


def test_readers_see_all_from_the_beginning_and_to_the_end() -> None:
    async def check(desk: Desk, tap: Tap) -> None:
        first = await desk.begin(KEY, NEW, TURN, tap.open)
        early = asyncio.create_task(rest(first))
        tap.events.put_nowait(said("a"))
        await given_time()
        late = asyncio.create_task(rest(desk.read(KEY, desk.table.get(KEY).turns[0])))
        for event in (said("b"), RECORD, END):
            await given_time()
            tap.events.put_nowait(event)
        everything = [said("a"), said("b"), RECORD, END]
        assert [await early, await late] == [everything] * 2
        assert await rest(desk.read(KEY, desk.table.get(KEY).turns[0])) == everything
        assert tap.closed and not desk.table.get(KEY).running

    on_desk(check)


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("error", [EngineFault("no more"), Overloaded("full"), RuntimeError("a bug")])
def test_a_failure_reaches_every_reader_and_only_what_was_said_is_kept(after: int, error: Exception) -> None:
    async def check(desk: Desk, tap: Tap) -> None:
        before = desk.table.get(KEY)
        readings = [await desk.begin(KEY, NEW, TURN, tap.open)]
        readings.append(desk.read(KEY, desk.table.get(KEY).turns[0]))
        told: list[Event | Exception] = [*[said("a")] * after, error]
        for event in told:
            tap.events.put_nowait(event)
        for reading in readings:
            if not after:
                with pytest.raises(type(error)):
                    await reading.settle(5)
            with pytest.raises(type(error)):
                await rest(reading)
        if after:
            [turn] = desk.table.get(KEY).turns
            assert "broke off" in turn.error
            with pytest.raises(Interrupted, match="broke off"):
                await rest(desk.read(KEY, turn))
        else:
            assert desk.table.get(KEY) == before
        assert tap.closed

    on_desk(check)


def test_what_does_not_even_begin_leaves_the_session_free() -> None:
    async def check(desk: Desk, tap: Tap) -> None:
        def refuse(closed: Closed) -> Tap:
            raise Overloaded("full")

        before = desk.table.get(KEY)
        with pytest.raises(Overloaded):
            await desk.begin(KEY, NEW, TURN, refuse)
        assert desk.table.get(KEY) == before
        reading = await desk.begin(KEY, NEW, TURN, tap.open)
        tap.events.put_nowait(END)
        assert await rest(reading) == [END]

    on_desk(check)


def test_an_answer_that_is_stopped_before_its_first_step() -> None:
    async def check(desk: Desk, tap: Tap) -> None:
        reading = await desk.begin(KEY, NEW, TURN, tap.open)
        await desk.delete(KEY)
        assert tap.closed
        with pytest.raises(Interrupted, match="deleted"):
            await rest(reading)
        with pytest.raises(SessionNotFound):
            desk.table.get(KEY)
        reading.close()

    on_desk(check)


def test_a_grace_begins_with_the_last_reader_and_ends_with_the_next() -> None:
    async def check(desk: Desk, tap: Tap) -> None:
        one = await desk.begin(KEY, NEW, TURN, tap.open)
        other = desk.read(KEY, desk.table.get(KEY).turns[0])
        one.close()
        one.close()  # a reader leaves once
        await asyncio.sleep(0.1)
        assert desk.table.get(KEY).running
        other.close()
        third = desk.read(KEY, desk.table.get(KEY).turns[0])
        await asyncio.sleep(0.1)
        assert desk.table.get(KEY).running
        third.close()
        while desk.table.get(KEY).running:
            await asyncio.sleep(0.01)
        assert "nobody read it" in desk.table.get(KEY).turns[0].error
        assert tap.closed

    on_desk(check, grace_s=0.05)


def test_the_next_request_waits_for_an_abandoned_one_to_end_and_one_of_two_comes_in() -> None:
    async def check(desk: Desk, tap: Tap) -> None:
        reading = await desk.begin(KEY, NEW, TURN, tap.open)
        with pytest.raises(SessionBusy):
            desk.free(KEY)
        with pytest.raises(SessionBusy):
            await desk.begin(KEY, NEW, TURN, Tap().open)
        tap.events.put_nowait(said("a"))
        await given_time()
        reading.close()
        taps = [Tap(), Tap()]
        begun = await asyncio.gather(*(desk.begin(KEY, NEW, TURN, each.open) for each in taps), return_exceptions=True)
        [chosen] = [each for each in begun if isinstance(each, Reading)]
        assert sum(isinstance(each, SessionBusy) for each in begun) == 1
        taps[begun.index(chosen)].events.put_nowait(END)
        assert await rest(chosen) == [END]
        assert [turn.first for turn in desk.table.get(KEY).turns] == [0, 1]

    on_desk(check)


def test_deleting_ends_also_what_begins_meanwhile() -> None:
    async def check(desk: Desk, tap: Tap) -> None:
        (await desk.begin(KEY, NEW, TURN, tap.open)).close()
        other = Tap()
        reading, _ = await asyncio.gather(desk.begin(KEY, NEW, TURN, other.open), desk.delete(KEY))
        assert tap.closed and other.closed
        with pytest.raises(Interrupted, match="deleted"):
            await rest(reading)

    on_desk(check)


def carrying(node: int, *values: str) -> Carried:
    sentences = [Sentence(Position(1, node, i), 0, "assistant", f"It is {value}.") for i, value in enumerate(values)]
    facts = [
        Fact(sentence, Kind.IDENTIFIER, "it", "code", value, value)
        for sentence, value in zip(sentences, values, strict=True)
    ]
    cursor = Cursor(1, node, 1)
    sealed = Payload(Ledger().merge(facts), cursor).within(4096)
    return Carried(GenerationState(), replace(Memory(), payload=sealed), OpenText(Reader(1, "assistant", node)), cursor)


def test_what_segments_and_nodes_leave_is_one_payload() -> None:
    async def check(desk: Desk, tap: Tap) -> None:
        reading = await desk.begin(KEY, NEW, TURN, tap.open)
        tap.tell(carrying(0, "A-1"))
        assert desk.table.get(KEY).payload == carrying(0, "A-1").memory.payload.data
        tap.tell(carrying(0, "A-1", "A-2"))
        assert desk.table.get(KEY).payload == carrying(0, "A-1", "A-2").memory.payload.data
        tap.tell(carrying(2, "C-3"))
        values = [fact.value for fact in Payload.decode(desk.table.get(KEY).payload).ledger.facts]
        assert values == ["A-1", "A-2", "C-3"]
        tap.events.put_nowait(END)
        await rest(reading)
        tap.tell(carrying(0, "too late"))
        assert "too late" not in desk.table.get(KEY).payload.decode()

    on_desk(check)


def of_kind(kind: str, n: int) -> Event:
    if kind == "segment":
        return replace(RECORD, index=n)
    if kind == "read":
        return Output((), "", prompt=(Token(n),))
    return {"t": said(f"{n},"), "text": Output((), f"<{n}>"), "held": Output((Token(n),), "")}[kind]


EVENTS = st.lists(st.sampled_from(("t", "text", "held", "segment", "read")), max_size=12)


@given(EVENTS, st.booleans())
def test_text_goes_with_a_token_and_nothing_is_lost(kinds: list[str], patient: bool) -> None:
    made: list[Event] = []
    for n, kind in enumerate(kinds):
        made.append(of_kind(kind, n))
    made.append(END)
    whole = Whole(patient=patient)
    taken = [event for each in made for event in whole.take(each)]
    assert whole.rest() == []

    def outputs(events: list[Event]) -> list[Output]:
        return [event for event in events if isinstance(event, Output)]

    assert "".join(o.text for o in outputs(taken)) == "".join(o.text for o in outputs(made))
    assert [t for o in outputs(taken) for t in o.tokens] == [t for o in outputs(made) for t in o.tokens]
    assert [e for e in taken if not (isinstance(e, Output) and (e.tokens or e.text))] == [
        e for e in made if not (isinstance(e, Output) and (e.tokens or e.text))
    ]
    tokens = [o for o in outputs(made) if o.tokens]
    alone = [o for o in outputs(taken) if o.text and not o.tokens]
    if patient and tokens:
        assert alone == []
    assert len(alone) <= 1  # where nothing follows, or there is no token at all
    if not patient:  # a token is never kept waiting
        fresh = Whole(patient=False)
        for each in made:
            now = fresh.take(each)
            if isinstance(each, Output) and each.tokens:
                assert [o.tokens for o in outputs(now)][-1] == each.tokens
