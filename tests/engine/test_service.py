"""The engine thread: streaming, cancellation, failure and close. Every wait has a limit, so a hang is a failure."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from typing import Any

import pytest

from fakes import ByteDetokenizer, FixedResidency, ScriptedRunner
from ghostkv.engine.admission import Limits
from ghostkv.engine.clock import MonotonicClock
from ghostkv.engine.engine import Engine
from ghostkv.engine.scheduler import Scheduler
from ghostkv.engine.service import AsyncEngine
from ghostkv.errors import ContextLengthExceeded, EngineFault, InvalidRequest, Overloaded
from ghostkv.kv.pool import BlockPool
from ghostkv.request import Delta, FinishReason, GenerationState, Sampling, SegmentRequest
from ghostkv.step import StepPlan, StepResult

LIMIT_S = 10.0


class StepRunner(ScriptedRunner):
    """Runs freely, or one step for each permit; fails when told to."""

    def __init__(self) -> None:
        super().__init__(64, lambda history, draw: 65 + len(history) % 26)
        self.permits: threading.Semaphore | None = None
        self.entered = threading.Semaphore(0)
        self.failure: BaseException | None = None

    def run(self, plan: StepPlan) -> StepResult:
        self.entered.release()
        if self.permits is not None:
            assert self.permits.acquire(timeout=LIMIT_S)
        if self.failure is not None:
            raise self.failure
        return super().run(plan)


class Site:
    def __init__(self) -> None:
        self.runner = StepRunner()
        self.pool = BlockPool(64)
        limits = Limits(max_context=1024, max_sequences=4, step_tokens=64, max_waiting=8)
        self.engine = Engine(Scheduler(self.pool, limits, ByteDetokenizer()), self.runner, MonotonicClock())
        self.service = AsyncEngine(self.engine)

    async def settled(self) -> int:
        """Referenced blocks, read between two steps."""
        return await asyncio.wrap_future(self.service.call(lambda: self.pool.referenced))


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    if site.runner.permits is not None:
        site.runner.permits.release(100_000)
    site.service.close()
    assert not site.service._thread.is_alive()


def run(main: Callable[[], Awaitable[Any]]) -> Any:
    async def limited() -> Any:
        return await asyncio.wait_for(main(), LIMIT_S)

    return asyncio.run(limited())


def request(name: str = "r", remaining: int = 5, prompt: int = 3) -> SegmentRequest:
    return SegmentRequest(
        name, tuple(range(prompt)), Sampling(temperature=0), GenerationState(), FixedResidency(), remaining
    )


async def collect(service: AsyncEngine, asked: SegmentRequest) -> list[Delta]:
    return [delta async for delta in service.generate(asked)]


def test_streams_every_token_and_the_finish(site: Site) -> None:
    deltas = run(lambda: collect(site.service, request()))
    assert "".join(delta.text for delta in deltas) == "DEFGH"
    assert [len(delta.tokens) for delta in deltas] == [1] * 5
    assert [delta.finish is not None for delta in deltas] == [False] * 4 + [True]


def test_many_at_once_and_more_than_run(site: Site) -> None:
    async def main() -> list[list[Delta]]:
        return await asyncio.gather(*(collect(site.service, request(str(n), 20 + n)) for n in range(5)))

    for n, deltas in enumerate(run(main)):
        assert {delta.request_id for delta in deltas} == {str(n)}
        assert sum(len(delta.tokens) for delta in deltas) == 20 + n


def test_refusals_reach_the_caller_alone(site: Site) -> None:
    async def main() -> None:
        site.runner.permits = threading.Semaphore(0)
        streams = [asyncio.ensure_future(collect(site.service, request(str(n)))) for n in range(4)]
        await asyncio.to_thread(site.runner.entered.acquire)  # the first step runs, whoever is in it
        late = [asyncio.ensure_future(collect(site.service, request(f"late {n}"))) for n in range(13)]
        same = asyncio.ensure_future(collect(site.service, request("0")))
        large = asyncio.ensure_future(collect(site.service, request("large", 1000, 100)))
        await asyncio.sleep(0)
        site.runner.permits.release(10_000)
        with pytest.raises(ContextLengthExceeded):
            await large
        with pytest.raises(InvalidRequest, match="already"):
            await same
        answers = await asyncio.gather(*late, return_exceptions=True)
        assert sum(isinstance(answer, Overloaded) for answer in answers) >= 5
        assert all(isinstance(answer, Overloaded) or len(answer) == 5 for answer in answers)  # type: ignore[arg-type]
        assert [len(deltas) for deltas in await asyncio.gather(*streams)] == [5] * 4

    run(main)


def test_leaving_the_iterator_frees_within_one_step(site: Site) -> None:
    async def main() -> None:
        site.runner.permits = threading.Semaphore(3)
        async with aclosing(site.service.generate(request(remaining=900))) as stream:
            got = [await anext(stream) for _ in range(3)]
            assert len(got) == 3
        site.runner.permits.release(1)  # the step that may be under way
        assert await site.settled() == 0
        assert len(site.runner.plans) <= 4
        assert site.engine.idle and site.engine.stats.finished["cancelled"] == 1

    run(main)


def test_a_cancelled_task_frees(site: Site) -> None:
    async def main() -> None:
        task = asyncio.create_task(collect(site.service, request(remaining=900)))
        await asyncio.to_thread(site.runner.entered.acquire)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await site.settled() == 0

    run(main)


def test_an_abandoned_iterator_frees(site: Site) -> None:
    async def main() -> None:
        async for _ in site.service.generate(request(remaining=900)):
            break
        gc.collect()
        await asyncio.sleep(0.01)
        assert await site.settled() == 0

    run(main)


def test_cancel_by_id_ends_the_stream(site: Site) -> None:
    site.runner.permits = permits = threading.Semaphore(1)

    async def main() -> None:
        async with aclosing(site.service.generate(request(remaining=900))) as stream:
            await anext(stream)
            site.service.cancel("unknown")
            site.service.cancel("r")
            permits.release(900)
            last = [delta async for delta in stream][-1]
            assert last.finish is not None and last.finish.reason is FinishReason.CANCELLED
        assert await site.settled() == 0

    run(main)


def test_an_old_stream_does_not_cancel_a_new_one_of_its_name(site: Site) -> None:
    async def main() -> None:
        old = site.service.generate(request(remaining=900))
        await anext(old)
        site.service.cancel("r")
        new = asyncio.create_task(collect(site.service, request(remaining=300)))
        await asyncio.sleep(0)
        await old.aclose()
        assert sum(len(delta.tokens) for delta in await new) == 300

    run(main)


def test_a_fault_answers_pending_and_later_requests(site: Site) -> None:
    cause = ValueError("lost a tensor")

    async def main() -> None:
        site.runner.permits = threading.Semaphore(0)
        pending = [asyncio.create_task(collect(site.service, request(str(n)))) for n in range(8)]
        await asyncio.to_thread(site.runner.entered.acquire)
        unread = asyncio.create_task(collect(site.service, request("unread")))
        called = site.service.call(lambda: 1)
        await asyncio.sleep(0)
        assert site.service.healthy
        site.runner.failure = cause
        site.runner.permits.release(1)
        answers: list[object] = [*await asyncio.gather(*pending, unread, return_exceptions=True)]
        answers += await asyncio.gather(asyncio.wrap_future(called), return_exceptions=True)
        with pytest.raises(EngineFault, match="lost a tensor"):
            await collect(site.service, request("late"))
        with pytest.raises(EngineFault):
            site.service.call(lambda: 1)
        assert len({id(answer) for answer in answers}) == 10
        for answer in answers:
            assert isinstance(answer, EngineFault) and answer.__cause__ is cause
            assert "ValueError: lost a tensor" in answer.message

    run(main)
    assert not site.service.healthy and site.service.fault is cause
    site.service.cancel("0")
    site.service.close()


@pytest.mark.parametrize("where", ["policy", "books"])
def test_faults_outside_the_runner(site: Site, where: str) -> None:
    class Broken(FixedResidency):
        def reserve(self, remaining: int) -> int:
            raise ZeroDivisionError("policy")

    async def main() -> None:
        if where == "policy":
            asked = SegmentRequest("r", (1,), Sampling(), GenerationState(), Broken(), 5)
            with pytest.raises(EngineFault, match="ZeroDivisionError"):
                await collect(site.service, asked)
            return
        await collect(site.service, request())
        site.pool._free.pop()
        for _ in range(200):  # found once it has gone idle, before anything is served wrongly
            await asyncio.sleep(0.01)
            if not site.service.healthy:
                break
        with pytest.raises(EngineFault, match="InvariantViolation"):
            await collect(site.service, request())

    run(main)
    assert not site.service.healthy


def test_close_ends_what_is_pending(site: Site) -> None:
    async def main() -> None:
        site.runner.permits = threading.Semaphore(2)
        tasks = [asyncio.create_task(collect(site.service, request(str(n), 100))) for n in range(6)]
        await asyncio.to_thread(site.runner.entered.acquire)
        closing = asyncio.create_task(asyncio.to_thread(site.service.close))
        await asyncio.sleep(0.05)
        site.runner.permits.release(1000)
        await closing
        for answer in await asyncio.gather(*tasks, return_exceptions=True):
            assert not isinstance(answer, BaseException)
            assert answer[-1].finish is not None and answer[-1].finish.reason is FinishReason.CANCELLED
        with pytest.raises(EngineFault, match="closed"):
            await collect(site.service, request())

    run(main)
    assert site.service.fault is None and not site.service.healthy
    assert site.pool.referenced == 0
    site.pool.check_integrity()
    site.service.close()


def test_several_event_loops(site: Site) -> None:
    results: dict[int, list[Delta]] = {}

    def client(n: int) -> None:
        results[n] = run(lambda: collect(site.service, request(str(n), 50)))

    threads = [threading.Thread(target=client, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert {n: len(deltas) for n, deltas in results.items()} == dict.fromkeys(range(4), 50)


def test_one_call_per_event_loop_and_step(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        site.runner.permits = threading.Semaphore(0)
        tasks = [asyncio.create_task(collect(site.service, request(str(n), 20))) for n in range(4)]
        await asyncio.sleep(0.02)
        loop, calls = asyncio.get_running_loop(), []
        original = loop.call_soon_threadsafe

        def counted(*args: Any, **kwargs: Any) -> Any:
            calls.append(args)
            return original(*args, **kwargs)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        site.runner.permits.release(10_000)
        await asyncio.gather(*tasks)
        assert 20 <= len(calls) <= 21  # 80 deltas; 21 steps if one request came a step before the others

    run(main)


def test_an_event_loop_that_dies_takes_its_requests_with_it(site: Site) -> None:
    site.runner.permits = threading.Semaphore(1)
    loop = asyncio.new_event_loop()
    stream = site.service.generate(request("orphan", 900))
    loop.run_until_complete(anext(stream))
    loop.close()
    site.runner.permits.release(10_000)
    assert len(run(lambda: collect(site.service, request("other")))) == 5
    assert run(site.settled) == 0


def test_what_a_call_raises_is_the_callers(site: Site) -> None:
    def fail() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        site.service.call(fail).result(LIMIT_S)
    assert site.service.call(lambda: threading.current_thread().name).result(LIMIT_S) == "ghostkv-engine"
    assert site.service.healthy


def test_an_idle_engine_sleeps(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    run(lambda: collect(site.service, request()))
    looks: list[int] = []
    monkeypatch.setattr(site.engine, "step", lambda: looks.append(1) or [])  # type: ignore[func-returns-value]
    run(lambda: asyncio.sleep(0.3))
    assert looks == [1]  # at the books, once
