"""The clients: each asks when its time has come, and leaves when its patience is over. One event loop, one process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ghostkv.pressure.cells import Cell, Job
from ghostkv.pressure.replies import BROKEN, STOPPED, TIMEOUT, Asked
from ghostkv.pressure.wire import Address, Received, post

PATH = "/v1/completions"
Body = Callable[[Job, str], Mapping[str, Any]]
"""A job and its prompt -> the request."""


@dataclass(frozen=True, slots=True)
class Line:
    """How to ask one server."""

    address: Address
    body: Body
    keys: Mapping[str, str]  # tenant -> its API key; those without send none


async def ask_all(
    cell: Cell, prompts: Sequence[str], line: Line, told: Callable[[int], None] = lambda done: None
) -> list[Asked]:
    """Play a cell, and what each job got, in order. `told` hears how many have ended."""
    run = _Run(cell, prompts, line, told)
    return await run.all()


class _Run:
    def __init__(self, cell: Cell, prompts: Sequence[str], line: Line, told: Callable[[int], None]) -> None:
        self._cell, self._prompts, self._line, self._told = cell, prompts, line, told
        self._over = [asyncio.Event() for _ in cell.jobs]
        self._start = time.perf_counter()
        self._done = 0

    def _clock(self) -> float:
        return time.perf_counter() - self._start

    async def all(self) -> list[Asked]:
        """Every job; those in the background are stopped when the others have ended."""
        tasks = [asyncio.create_task(self._one(index)) for index in range(len(self._cell.jobs))]
        try:
            await asyncio.gather(*(task for task, job in zip(tasks, self._cell.jobs) if not job.background))
            for task, job in zip(tasks, self._cell.jobs):
                if job.background:
                    task.cancel()
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    async def _one(self, index: int) -> Asked:
        job = self._cell.jobs[index]
        received, at, left = Received(), self._clock(), ""
        try:
            at = await self._turn(job)
            async with asyncio.timeout(self._cell.timeout_s):
                await self._post(index, received)
        except TimeoutError:
            left = TIMEOUT
        except OSError:
            left = BROKEN
        except asyncio.CancelledError:
            if not job.background:
                raise
            left = STOPPED
        self._done += 1
        self._over[index].set()
        self._told(self._done)
        return Asked(job, at, self._clock(), received, left)

    async def _turn(self, job: Job) -> float:
        """Wait for the job's time; that time."""
        begin = 0.0
        if job.follows is not None:
            await self._over[job.follows].wait()
            begin = self._clock()
        at = begin + job.arrival_s
        await asyncio.sleep(max(0.0, at - self._clock()))
        return at

    async def _post(self, index: int, received: Received) -> None:
        job = self._cell.jobs[index]
        key = self._line.keys.get(job.tenant)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        body = self._line.body(job, self._prompts[index])
        await post(self._line.address, PATH, body, received, self._clock, headers)
