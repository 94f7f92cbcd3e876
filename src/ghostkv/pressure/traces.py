"""Recorded arrivals as cells: who asks when, and how long prompts and answers are.

Time is stretched evenly, so the gaps keep their coefficient of variation.
Three formats: Azure's CSV of 2023 (TIMESTAMP, ContextTokens, GeneratedTokens), Mooncake's JSON lines (timestamp in
milliseconds, input_length, output_length), and ServeGen's archive of clients, each a CSV of rates and a JSON of
length distributions for windows of time, from which arrivals are drawn.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import fmean, pstdev

from ghostkv.errors import ConfigError
from ghostkv.pressure.cells import Cell, Job
from ghostkv.pressure.presets import within
from ghostkv.pressure.prompts import lengths
from ghostkv.pressure.servegen import drawn

_LEAST_PROMPT, _LEAST_OUTPUT = 16, 8


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a trace, as recorded: seconds and tokens."""

    at: float
    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class Cut:
    """How much of a trace is played."""

    count: int = 96
    """The first so many requests."""
    span_s: float = 180.0
    """Their arrivals are stretched over so many seconds."""
    context: int = 8192
    """What would not fit a model's context is left out, and counted."""
    pool_mib: int = 96


def azure(path: Path) -> Iterable[Arrival]:
    """In order of arrival."""
    rows = csv.DictReader(io.StringIO(_read(path)))
    first: datetime | None = None
    for row in rows:
        at = datetime.fromisoformat(row["TIMESTAMP"][:26])
        first = first or at
        yield Arrival((at - first).total_seconds(), int(row["ContextTokens"]), int(row["GeneratedTokens"]))


def mooncake(path: Path) -> Iterable[Arrival]:
    """In order of arrival."""
    for line in _read(path).splitlines():
        row = json.loads(line)
        yield Arrival(row["timestamp"] / 1000, row["input_length"], row["output_length"])


def servegen(path: Path) -> Iterable[Arrival]:
    """Drawn from the clients' rates and lengths, seed 0, in order of arrival."""
    return (Arrival(*each) for each in drawn(path, seed=0))


_READERS: Mapping[str, tuple[Callable[[Path], Iterable[Arrival]], int]] = {
    "azure": (azure, 4),
    "mooncake": (mooncake, 8),
    "servegen": (servegen, 4),
}
"""Name -> (reader, what lengths are divided by, so that they fit a small model's context)."""


def arrivals(name: str, path: Path, cut: Cut | None = None) -> Cell:
    """The trace called `name` as a cell. Raises ConfigError where the file is not of its format."""
    if name not in _READERS:
        raise ConfigError(f"there is no trace format {name!r}: choose among {', '.join(_READERS)}")
    cut = cut or Cut()
    read, scale = _READERS[name]
    try:
        jobs, left_out = _jobs(read(path), scale, cut)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: not a trace of {name}: {error!r}") from error
    gaps = [after.arrival_s - before.arrival_s for before, after in pairwise(jobs)]
    prompt, output = lengths(jobs)
    about = {
        "users": len(jobs),
        "prompt": prompt,
        "output": output,
        "trace": name,
        "scale": scale,
        "span_s": cut.span_s,
        "cv": round(pstdev(gaps) / fmean(gaps), 3),
        "left_out": left_out,
    }
    return Cell("arrivals", f"{name}, lengths / {scale}", tuple(jobs), within(cut.pool_mib), about=about)


def _jobs(trace: Iterable[Arrival], scale: int, cut: Cut) -> tuple[list[Job], int]:
    taken: list[Arrival] = []
    left_out = 0
    for each in trace:
        arrival = Arrival(
            each.at, max(_LEAST_PROMPT, each.prompt // scale), max(_LEAST_OUTPUT, round(each.output / scale))
        )
        if arrival.prompt + arrival.output > cut.context:
            left_out += 1
            continue
        taken.append(arrival)
        if len(taken) == cut.count:
            break
    if len(taken) < 3 or taken[-1].at <= taken[0].at:
        raise ValueError("fewer than three arrivals")
    start, stretch = taken[0].at, cut.span_s / (taken[-1].at - taken[0].at)
    jobs = [Job(each.prompt, each.output, round((each.at - start) * stretch, 4)) for each in taken]
    return jobs, left_out


def _read(path: Path) -> str:
    raw = path.read_bytes()
    return (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode()
