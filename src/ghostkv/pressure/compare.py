"""The comparison itself: for each cell each engine in turn, one process at a time, and a row for each."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from ghostkv.errors import ConfigError
from ghostkv.pressure.cells import Cell, Job
from ghostkv.pressure.clients import Line, ask_all
from ghostkv.pressure.engines import Engine, Model, Sampling, Seat
from ghostkv.pressure.measures import measure
from ghostkv.pressure.process import NotStarted, ServerProcess
from ghostkv.pressure.prompts import Count, counted, with_prompts
from ghostkv.pressure.quality import Results
from ghostkv.pressure.replies import Reply, read
from ghostkv.pressure.rows import Row, Rows, key_of
from ghostkv.pressure.watch import Watch, Watched
from ghostkv.pressure.wire import Address, get

_LOOK_S, _CLOSE_LOOK_S = 1.0, 0.2
"""Between two looks at a server, and where one user's memory is to be seen as it grows."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a comparison has in common over cells and engines."""

    model: Model
    count: Count
    sampling: Sampling = field(default_factory=Sampling)
    wave: int = 0  # most requests that may run at once, in every engine; 0: each one's own default
    repeats: int = 1
    again: bool = False  # also what is in the file already
    results: Results = field(default_factory=Results)
    run: Mapping[str, Any] = field(default_factory=dict)  # where the numbers come from: commit, machine, command


@dataclass(frozen=True, slots=True)
class Task:
    """One engine on one cell."""

    cell: Cell
    engine: Engine
    repeat: int


def tasks(cells: Sequence[Cell], engines: Sequence[Engine], repeats: int) -> Iterator[Task]:
    """Engines take turns within a cell, cells within a repeat: what drifts drifts for all."""
    for repeat in range(repeats):
        for cell in cells:
            for engine in engines:
                if cell.all_engines or engine.leads:
                    yield Task(cell, engine, repeat)


def compare(
    cells: Sequence[Cell],
    engines: Sequence[Engine],
    settings: Settings,
    rows: Rows,
    announce: Callable[[str], None] = lambda text: None,
) -> Iterator[Row]:
    """Run what is not in `rows` yet, and append it there; yields every row, old ones too, as they come."""
    work = list(tasks([counted(cell, settings.count) for cell in cells], engines, settings.repeats))
    for number, task in enumerate(work, 1):
        with tempfile.TemporaryDirectory(prefix="ghostkv-pressure-") as folder:
            seat = Seat(task.cell, settings.model, Path(folder), settings.wave)
            configuration = _configuration(task, seat, settings)
            key = key_of(configuration)
            if (known := rows.done(key)) is not None and not settings.again:
                yield known
                continue
            said = partial(_said, announce, f"{number} of {len(work)}: {task.cell.name}, {task.engine.name}")
            said("starting")
            row = _row(task, configuration, key, settings)
            try:
                row |= asyncio.run(_run(task, seat, settings, said))
            except NotStarted as error:
                row["failed"] = error.message
                rows.keep_log(key, error.log)
        rows.append(row)
        yield row


def _said(announce: Callable[[str], None], where: str, what: str) -> None:
    announce(f"{where}: {what}")


def _configuration(task: Task, seat: Seat, settings: Settings) -> dict[str, Any]:
    sampling = {"temperature": settings.sampling.temperature, "seeded": settings.sampling.seeded}
    return {
        "model": settings.model.name,
        "engine": task.engine.name,
        "settings": task.engine.settings(seat),
        "cell": task.cell.identity(),
        "sampling": sampling,
        "repeat": task.repeat,
    }


def _row(task: Task, configuration: Mapping[str, Any], key: str, settings: Settings) -> dict[str, Any]:
    cell = task.cell
    described = {
        "preset": cell.preset,
        "name": cell.name,
        "pressure": round(cell.pressure, 4),
        **cell.about,
        **cell.identity(),
        "demand_tokens": cell.demand_tokens,
        "kv_bytes": cell.pool_tokens * settings.model.kv_bytes_per_token,
    }
    if len({job.prompt for job in cell.jobs}) == 1:
        described["prompt"] = cell.jobs[0].prompt
    precision = {"weights": task.engine.weights, "kv": task.engine.kv}
    return {"key": key, **configuration, **precision, "cell": described, "run": dict(settings.run)}


async def _run(task: Task, seat: Seat, settings: Settings, announce: Callable[[str], None]) -> dict[str, Any]:
    """Start, warm up, measure, end."""
    engine, cell = task.engine, task.cell
    with ExitStack() as stack:
        servers: list[ServerProcess] = []
        started_s = 0.0
        for launch in engine.launches(seat):
            servers.append(stack.enter_context(ServerProcess(launch)))
            started_s += await servers[-1].ready()
        address = servers[-1].address if servers else engine.attached
        if address is None:
            raise ConfigError(f"{engine.name} starts no server and names none")
        keys = engine.keys(seat)
        name = await _model_name(address, keys.get(""))

        def body(job: Job, prompt: str) -> dict[str, Any]:
            return {**engine.body(settings.sampling.fields(job, prompt)), "model": name}

        line = Line(address, body, keys)
        prompts = with_prompts(cell, settings.count)
        announce("warming up")
        await _warm_up(cell, line, settings.count)
        look_s = _LOOK_S if len(cell.jobs) > 1 else _CLOSE_LOOK_S
        async with Watch(servers, address, keys.get(""), lambda metrics: engine.gauges(metrics, seat), look_s) as watch:
            asked = await ask_all(
                cell, prompts, line, lambda done: announce(f"{done} of {len(cell.jobs)} replies have ended")
            )
        watch.seen.started_s = started_s
        ended = [server for server in servers if not server.alive]
    replies = [read(each, settings.count) for each in asked]
    return _found(task, seat, settings, replies, watch.seen, died=bool(ended))


def _found(
    task: Task, seat: Seat, settings: Settings, replies: Sequence[Reply], seen: Watched, *, died: bool
) -> dict[str, Any]:
    counts = task.engine.counts(seen.before, seen.after, seat)
    measures = measure(task.cell, replies)
    if inference_s := counts.get("inference_s"):
        tokens = sum(reply.tokens for reply in replies)
        measures["inference_tokens_per_second"] = round(tokens / inference_s, 3)
    server = {**seen.summary(), "counts": counts, **({"died": True} if died else {})}
    if task.cell.about.get("users") == 1 and len(replies) == 1:
        server["token_times"] = _token_times(replies[0])
    return {"quality": settings.results.of(task.engine, counts), "measures": measures, "server": server}


def _token_times(reply: Reply) -> list[list[float]]:
    """[tokens, second] at about every 50 tokens, for memory over tokens."""
    step = max(1, len(reply.arrivals) // 90)
    return [[tokens, round(at, 3)] for at, tokens in reply.arrivals[::step]]


async def _warm_up(cell: Cell, line: Line, count: Count) -> None:
    """Two short answers, so that what is compiled or mapped on first use is there; whatever comes of them."""
    jobs = tuple(Job(min(job.prompt, 24) or 24, 8, tenant=job.tenant) for job in (*cell.jobs[:1], *cell.jobs[-1:]))
    small = replace(cell, jobs=jobs, seed=cell.seed + 1, timeout_s=300.0)
    await ask_all(small, with_prompts(small, count), line)


async def _model_name(address: Address, key: str | None) -> str:
    """The first model that the server names; "default" where it names none."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    status, body = await get(address, "/v1/models", headers=headers)
    try:
        return str(json.loads(body)["data"][0]["id"]) if status == 200 else "default"
    except (ValueError, KeyError, IndexError, TypeError):
        return "default"
