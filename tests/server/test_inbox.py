"""What nobody has read yet: joined without a loss, and short however much was said."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ghostkv.errors import DeadlineExceeded
from ghostkv.request import FinishReason, Token
from ghostkv.server.inbox import Inbox
from ghostkv.session.turn import Event, Finished, Output

END = Finished(FinishReason.STOP, 1, 1, exact=True, unseen_tokens=0)

outputs = st.builds(
    Output,
    st.lists(st.builds(Token, st.integers(0, 9), st.floats(-9, 0)), max_size=3).map(tuple),
    st.text("abc", max_size=3),
    st.integers(0, 50),
    st.lists(st.builds(Token, st.integers(0, 9)), max_size=2).map(tuple),
)


def tokens_of(said: list[tuple[int, Event]], index: int) -> tuple[list[Token], list[Token], str]:
    mine = [event for at, event in said if at == index and isinstance(event, Output)]
    return (
        [token for event in mine for token in event.tokens],
        [token for event in mine for token in event.prompt],
        "".join(event.text for event in mine),
    )


@given(st.lists(st.tuples(st.integers(0, 2), st.one_of(outputs, st.just(END), st.none())), max_size=30))
def test_nothing_is_lost_or_moved_over_an_end(said: list[tuple[int, Event | None]]) -> None:
    """None stands for the reader, who takes one item."""

    async def run() -> list[tuple[int, Event]]:
        inbox, read = Inbox(), list[tuple[int, Event]]()
        for index, event in said:
            if event is not None:
                inbox.put(index, event)
            elif len(inbox):
                read.append(await inbox.get())
        while len(inbox):
            read.append(await inbox.get())
        return read

    put = [(index, event) for index, event in said if event is not None]
    read = asyncio.run(run())
    for index in range(3):
        assert tokens_of(read, index) == tokens_of(put, index)
        ends = [at for at, (who, event) in enumerate(put) if who == index and event is END]
        found = [at for at, (who, event) in enumerate(read) if who == index and event is END]
        assert len(ends) == len(found)
        for before, after in zip(ends, found, strict=True):  # an end stands after as many tokens as it did
            assert tokens_of(read[:after], index) == tokens_of(put[:before], index)


def test_a_reader_that_is_away_finds_one_item_for_each_answer() -> None:
    async def run() -> None:
        inbox = Inbox()
        for count in range(10_000):
            inbox.put(count % 4, Output((Token(count),), "x", resident=count))
        assert len(inbox) == 4
        index, event = await inbox.get()
        assert isinstance(event, Output)
        assert (index, event.text, event.resident) == (0, "x" * 2500, 9996)
        assert [token.id for token in event.tokens] == list(range(0, 10_000, 4))
        inbox.put(0, Output((Token(1),), "y"))  # what was taken is not added to
        assert len(inbox) == 4

    asyncio.run(run())


def test_an_error_comes_after_what_was_said_before_it() -> None:
    async def run() -> None:
        inbox = Inbox()
        inbox.put(1, Output((Token(1),), "x"))
        inbox.put(0, DeadlineExceeded("late"))
        assert isinstance(inbox.failure, DeadlineExceeded)
        assert await inbox.get() == (1, Output((Token(1),), "x"))
        with pytest.raises(DeadlineExceeded):
            await inbox.get()

    asyncio.run(run())


def test_a_reader_that_gives_up_waiting_loses_nothing() -> None:
    async def run() -> None:
        inbox = Inbox()
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.001):
                    await inbox.get()
        waiting = asyncio.create_task(inbox.get())
        await asyncio.sleep(0)
        inbox.put(0, END)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await inbox.get() == (0, END)

    asyncio.run(run())
