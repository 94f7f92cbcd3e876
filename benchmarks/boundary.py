"""What a boundary costs: 16 sessions at once on SmolLM2 under `segment`. Appends to results/boundary.jsonl.

Printed: the session's own work (recall, render, extract, merge) as a share of the time in which the engine is busy, by
wall clock and by processor time; prompt tokens prefilled at a boundary; payload bytes after 50 segments of text that is
dense with facts. The processor times do not depend on what else the machine does, the wall times do.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace

from record import append

from ghostkv.backends.embedded import EmbeddedBackend
from ghostkv.config import EngineConfig
from ghostkv.evaluate.documents import Shape, document
from ghostkv.evaluate.lab import Generated, Lab
from ghostkv.model.pull import resolve_model
from ghostkv.protocol.payload import DEFAULT_BUDGET
from ghostkv.request import Message, Sampling
from ghostkv.residency import policy
from ghostkv.session.chain import Chain
from ghostkv.session.turn import SegmentRecord, Turn
from ghostkv.session.worker import Worker

PHASES = ("recall", "render", "extract", "merge")
MOST_SHARE, MOST_UNCACHED, MOST_PAYLOAD = 0.02, 130, DEFAULT_BUDGET
TOKENS = 1300  # more than six times the cap of a segment
SYSTEM = Message("system", "You are a careful archivist. Write plain prose, with names, numbers and dates.")
TOPICS = (
    *("a survey of a harbour", "the log of an expedition to a glacier", "the history of a small observatory"),
    *("the restoration of a bridge", "a voyage between two islands", "the founding of a library"),
    *("a season on a farm", "the building of a radio telescope", "a report on a power station"),
    *("the work of a mountain rescue team", "the records of a chess club", "an inquiry into a railway accident"),
    *("the inventory of a museum", "the diary of a lighthouse keeper", "the design of a greenhouse on Mars"),
    *("the opening of a school",),
)


class PhaseClock:
    """The wall clock, which also adds up the processor seconds between its odd and its even readings.

    A loop reads its clock at the start and at the end of each phase, and nothing else runs in that thread between.
    """

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self._begun: float | None = None

    def __call__(self) -> float:
        """Seconds, monotonic."""
        now = time.thread_time()
        if self._begun is None:
            self._begun = now
        else:
            self.cpu_s += now - self._begun
            self._begun = None
        return time.perf_counter()


def sessions(lab: Lab) -> list[Generated]:
    """One answer to each topic, all at once."""

    async def every() -> list[Generated]:
        turns = [
            Turn(
                id=f"boundary-{i}",
                sampling=Sampling(temperature=0.8, seed=i),
                max_tokens=TOKENS,
                messages=(SYSTEM, Message("user", f"Write about {topic}.")),
                ignore_eos=True,
            )
            for i, topic in enumerate(TOPICS)
        ]
        return await asyncio.gather(*(lab.answer(turn, policy("segment")) for turn in turns))

    return asyncio.run(every())


def load(lab: Lab, backend: EmbeddedBackend) -> dict[str, object]:
    """Shares and prefilled tokens of sixteen sessions."""
    clock = PhaseClock()
    timed = Lab(replace(lab.worker, context=replace(lab.worker.context, clock=clock)))
    busy, wall, cpu = backend.stats.step_seconds, time.perf_counter(), time.process_time()
    answers = sessions(timed)
    busy, wall, cpu = backend.stats.step_seconds - busy, time.perf_counter() - wall, time.process_time() - cpu
    records = [record for answer in answers for record in answer.segments]
    boundaries = [record for record in records if record.index]
    seconds = {phase: sum(getattr(record.phases, phase) for record in records) for phase in PHASES}
    return {
        "part": "load",
        "sessions": len(answers),
        "fewest_boundaries": min(len(answer.segments) - 1 for answer in answers),
        "boundaries": len(boundaries),
        "tokens": sum(len(answer.ids) for answer in answers),
        "wall_s": wall,
        "busy_s": busy,
        "phases_s": seconds,
        "wall_share": sum(seconds.values()) / busy,
        "cpu_share": clock.cpu_s / cpu,
        "idle_share": clock.cpu_s / (cpu / (os.cpu_count() or 1)),  # of busy wall time, if every core were the engine's
        "cpu_ms_per_segment": 1e3 * clock.cpu_s / len(records),
        "uncached": sum(record.rehydrated for record in boundaries) / len(boundaries),
        "state": _mean(boundaries, lambda record: record.state),
        "recalled": _mean(boundaries, lambda record: record.recalled),
        "tail": _mean(boundaries, lambda record: record.tail),
    }


def dense(lab: Lab, segments: int = 50) -> dict[str, object]:
    """Payload and processor time per segment of a forced answer in which most sentences state a fact."""
    chosen = policy("segment")
    text = document(3, Shape(distances=(segments + 4,), background=4.0), lab.count).text
    question = (SYSTEM, Message("user", "Write the yearbook of the region."))
    clock = PhaseClock()
    with _timed_chain(clock):
        forced = lab.forced(question, chosen, lab.encode(text))
    closed = forced[:segments]
    payload = closed[-1].carried.memory.payload
    return {
        "part": "dense",
        "segments": len(closed),
        "payload_bytes": max(len(segment.carried.memory.payload.data) for segment in closed),
        "facts": len(payload.payload.ledger.facts),
        "dropped": payload.payload.dropped,
        "cpu_ms_per_segment": 1e3 * clock.cpu_s / len(forced),
    }


@contextmanager
def _timed_chain(clock: PhaseClock) -> Iterator[None]:
    """Every phase of every chain on `clock`: a forced answer has no loop that would read one."""
    phases: dict[str, Callable[..., object]] = {name: getattr(Chain, name) for name in ("select", *PHASES)}

    def timed(phase: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            clock()
            try:
                return phase(*arguments)
            finally:
                clock()

        return call

    for name, phase in phases.items():
        setattr(Chain, name, timed(phase))
    try:
        yield
    finally:
        for name, phase in phases.items():
            setattr(Chain, name, phase)


def _mean(records: Sequence[SegmentRecord], of: Callable[[SegmentRecord], int]) -> float:
    return sum(map(of, records)) / len(records)


def report(under_load: dict[str, object], forced: dict[str, object]) -> None:
    """Print what was measured beside what it has to be."""
    for row in (under_load, forced):
        for name, value in row.items():
            print(f"{name:>20}: {value:.4g}" if isinstance(value, float) else f"{name:>20}: {value}")
    for name, value, most in (
        ("wall share", under_load["wall_share"], MOST_SHARE),
        ("cpu share", under_load["cpu_share"], MOST_SHARE),
        ("share on an idle machine, estimated", under_load["idle_share"], MOST_SHARE),
        ("uncached tokens", under_load["uncached"], MOST_UNCACHED),
        ("payload bytes", forced["payload_bytes"], MOST_PAYLOAD),
    ):
        print(f"{name}: {value:.4g}, to be at most {most}: {'met' if float(str(value)) <= most else 'MISSED'}")


def main() -> None:
    config = EngineConfig(max_sequences=len(TOPICS))
    backend = EmbeddedBackend.load(resolve_model("smollm2", print), config, print)
    lab = Lab(Worker.embedded(backend, config, time.perf_counter))
    try:
        rows = load(lab, backend), dense(lab)
    finally:
        backend.close()
    report(*rows)
    shared = {"config": asdict(config), "budget": asdict(policy("segment").budget)}  # type: ignore[arg-type]
    print(f"written to {append('boundary', [row | shared for row in rows])}")


if __name__ == "__main__":
    main()
