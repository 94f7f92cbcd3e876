"""Runs the answers of one HTTP request at the same time, and ends them when nobody listens any more."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, TypeVar

from fastapi import Request
from starlette.types import Receive

from ghostkv.errors import DeadlineExceeded, EngineFault, GhostError, InvalidRequest
from ghostkv.request import FinishReason, Token
from ghostkv.server.access import check_owner
from ghostkv.server.gate import Asked, Place, Room
from ghostkv.server.inbox import Inbox
from ghostkv.server.serving import Serving
from ghostkv.session.chain import Carried, Closed
from ghostkv.session.start import FROM_THE_START, Start
from ghostkv.session.turn import Event, Finished, Output, Turn

T = TypeVar("T")


class Reader(Protocol):
    """Events of answers, each with its answer's index."""

    def __aiter__(self) -> AsyncIterator[tuple[int, Event]]:
        """In order."""
        ...

    def close(self) -> None:
        """Nobody reads any more. Needs no await."""
        ...


class ClientGone(Exception):
    """The client closed the connection; there is nobody to answer."""


@dataclass(slots=True)
class Answer:
    """What one answer came to."""

    text: list[str] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    prompt: list[Token] = field(default_factory=list)  # where log-probabilities of it were asked for
    finished: Finished | None = None


class Answers:
    """The events of several turns as they come, each with its turn's index. `close` cancels what still runs.

    It lives by itself: who reads it, how fast, and where that goes, is no concern of it.
    """

    def __init__(
        self,
        serving: Serving,
        turns: Sequence[Turn],
        closed: Closed = lambda _: None,
        start: Start | None = None,
        *,
        apart: bool = False,
    ) -> None:
        """Start all turns, whose deadlines begin now; needs a running event loop. Raises what `Gate.enter` does.

        `closed` is told what each of their segments leaves. With a `start` they go on from there: the line has let them
        in before. `apart`: each of their outputs comes as it was made, however slowly they are read.
        """
        check_owner(turns)
        self._serving = serving
        self._closed = closed
        self._from = start or FROM_THE_START
        self._inbox = Inbox(apart=apart)
        self._open = len(turns)
        self._begun = False
        self._ended_by: GhostError | None = None
        deadline_s = self._deadline(turns)
        asked = [Asked(serving.worker.prompt_tokens(turn), turn.max_tokens) for turn in turns]
        room = Room(serving.worker.config.max_waiting, serving.config.max_waiting_tokens)
        if start is not None:
            room = Room(sys.maxsize, sys.maxsize)
        places = serving.gate.enter(asked, room, self.end, deadline_s)
        self._tasks = [self._start(*each) for each in zip(range(len(turns)), turns, places, strict=True)]
        loop = asyncio.get_running_loop()
        self._timer = None if deadline_s is None else loop.call_later(deadline_s, self._expire, deadline_s)

    async def settle(self, seconds: float) -> None:
        """Wait for the first event, so that a refusal is raised here; at most `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._inbox.some()
        if (failure := self._inbox.failure) is not None:
            raise failure

    def __aiter__(self) -> Self:
        """The iterator itself."""
        return self

    async def __anext__(self) -> tuple[int, Event]:
        """Raises what a turn raises, and what the answers were ended by. Cancelling it loses nothing."""
        if not self._open:
            raise StopAsyncIteration
        index, event = await self._inbox.get()
        if isinstance(event, Finished):
            self._open -= 1
            if event.reason is FinishReason.CANCELLED:
                raise EngineFault("the answer was ended before it was complete: the engine is shutting down")
        return index, event

    def end(self, error: GhostError) -> None:
        """End what still runs with `error`, which the reader gets after all that was said before."""
        if self._ended_by is None and not all(task.done() for task in self._tasks):
            self._ended_by = error
            self.close()
            self._inbox.put(0, error)

    def close(self) -> None:
        """Cancel. Needs no await, so it works in a task that is itself being cancelled."""
        for task in self._tasks:
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()

    def _deadline(self, turns: Sequence[Turn]) -> float | None:
        """Seconds. What the server grants to all who name none is also the most that one may name."""
        most = self._serving.config.max_deadline_s
        named = min((turn.deadline_s for turn in turns if turn.deadline_s is not None), default=most)
        if named is not None and most is not None and named > most:
            raise InvalidRequest(
                f"ghostkv.deadline_s is {named:g}, but an answer may take at most {most:g} s here",
                param="ghostkv.deadline_s",
            )
        return named

    def _expire(self, seconds: float) -> None:
        said = "before it was complete" if self._begun else "while it was waiting in line"
        self.end(DeadlineExceeded(f"the deadline of {seconds:g} s passed {said}", param="ghostkv.deadline_s"))

    def _start(self, index: int, turn: Turn, place: Place) -> asyncio.Task[None]:
        task = asyncio.create_task(self._pump(index, turn, place), name=turn.id)
        # Not in the task itself: one that is cancelled before its first step never runs at all.
        task.add_done_callback(lambda _: self._serving.gate.leave(place))
        return task

    async def _pump(self, index: int, turn: Turn, place: Place) -> None:
        observers = self._serving.observers
        for observer in observers:
            observer.started(turn)

        def closed(carried: Carried) -> None:
            self._closed(carried)
            for observer in observers:
                observer.closed(turn, carried)

        failure: BaseException | None = None
        try:
            async with aclosing(self._serving.worker.run(turn, closed, self._from)) as stream:
                async for event in stream:
                    self._begun = True
                    self._serving.gate.took(place, event)
                    for observer in observers:
                        observer.event(turn, event)
                    self._inbox.put(index, event)
        except Exception as error:  # noqa: BLE001 - whoever reads the events answers for it
            failure = error
            self._inbox.put(index, error)
        except BaseException as error:
            failure = self._ended_by or error
            raise
        finally:
            for observer in observers:
                observer.ended(turn, failure)


async def collect(serving: Serving, turns: Sequence[Turn]) -> list[Answer]:
    """Run all turns to their ends."""
    return await gathered(Answers(serving, turns), len(turns))


async def gathered(running: Reader, count: int) -> list[Answer]:
    """What `count` answers come to."""
    answers = [Answer() for _ in range(count)]
    try:
        async for index, event in running:
            if isinstance(event, Output):
                answers[index].text.append(event.text)
                answers[index].tokens += event.tokens
                answers[index].prompt += event.prompt
            elif isinstance(event, Finished):
                answers[index].finished = event
    finally:
        running.close()
    return answers


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled if the client goes away. The body must have been read before."""
    return await while_listening(request.receive, work)


async def while_listening(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """`unless_gone` for a response, which has no request."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
