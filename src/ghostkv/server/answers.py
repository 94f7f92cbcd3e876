"""Runs the answers of one HTTP request at the same time, and ends them when nobody listens any more."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from fastapi import Request

from ghostkv.errors import EngineFault
from ghostkv.request import FinishReason, Token
from ghostkv.server.serving import Serving
from ghostkv.session.turn import Event, Finished, Output, Turn

T = TypeVar("T")


class ClientGone(Exception):
    """The client closed the connection; there is nobody to answer."""


@dataclass(slots=True)
class Answer:
    """What one answer came to."""

    text: list[str] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    finished: Finished | None = None


class Answers:
    """The events of several turns as they come, each with its turn's index. `close` cancels what still runs."""

    def __init__(self, serving: Serving, turns: Sequence[Turn]) -> None:
        """Start all turns; needs a running event loop."""
        self._serving = serving
        self._events: asyncio.Queue[tuple[int, Event | BaseException]] = asyncio.Queue()
        self._first: tuple[int, Event] | None = None
        self._open = len(turns)
        self._tasks = [asyncio.create_task(self._pump(index, turn), name=turn.id) for index, turn in enumerate(turns)]

    async def settle(self, seconds: float) -> None:
        """Wait for the first event, so that a refusal is raised here; at most `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                index, event = await self._events.get()
        except TimeoutError:
            return
        if isinstance(event, BaseException):
            raise event
        self._first = index, event

    def __aiter__(self) -> Self:
        """The iterator itself."""
        return self

    async def __anext__(self) -> tuple[int, Event]:
        """Raises what a turn raises, and EngineFault for a turn that the server ended."""
        if not self._open:
            raise StopAsyncIteration
        index, event = self._first or await self._events.get()
        self._first = None
        if isinstance(event, BaseException):
            raise event
        if isinstance(event, Finished):
            self._open -= 1
            if event.reason is FinishReason.CANCELLED:
                raise EngineFault("the answer was ended before it was complete: the server is shutting down")
        return index, event

    def close(self) -> None:
        """Cancel. Needs no await, so it works in a task that is itself being cancelled."""
        for task in self._tasks:
            task.cancel()

    async def _pump(self, index: int, turn: Turn) -> None:
        observers = self._serving.observers
        for observer in observers:
            observer.started(turn)
        failure: BaseException | None = None
        try:
            async with aclosing(self._serving.worker.run(turn)) as stream:
                async for event in stream:
                    for observer in observers:
                        observer.event(turn, event)
                    self._events.put_nowait((index, event))
        except Exception as error:  # noqa: BLE001 - whoever reads the events answers for it
            failure = error
            self._events.put_nowait((index, error))
        except BaseException as error:
            failure = error
            raise
        finally:
            for observer in observers:
                observer.ended(turn, failure)


async def collect(serving: Serving, turns: Sequence[Turn]) -> list[Answer]:
    """Run all turns to their ends."""
    answers = [Answer() for _ in turns]
    running = Answers(serving, turns)
    try:
        async for index, event in running:
            if isinstance(event, Output):
                answers[index].text.append(event.text)
                answers[index].tokens += event.tokens
            elif isinstance(event, Finished):
                answers[index].finished = event
    finally:
        running.close()
    return answers


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled if the client goes away. The body must have been read before."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
