"""Arrivals drawn from a ServeGen archive.

Each client is a renewal process with a gap distribution for each window of time, and its lengths follow histograms.
"""

from __future__ import annotations

import ast
import csv
import heapq
import io
import json
import math
import random
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_WINDOW_S = 600.0
_Lengths = dict[int, float]  # tokens -> share


@dataclass(frozen=True, slots=True)
class _Client:
    gaps: dict[int, tuple[str, float, float]]  # window's start -> (distribution, shape, scale in seconds)
    inputs: dict[int, _Lengths]
    outputs: dict[int, _Lengths]


def drawn(path: Path, *, seed: int) -> Iterator[tuple[float, int, int]]:
    """(seconds, input tokens, output tokens) of all clients together, in order, from the first window with requests.

    Raises ValueError for another archive.
    """
    streams = [_requests(client, random.Random(f"{seed} {name}")) for name, client in _clients(path).items()]
    return heapq.merge(*streams)


def _clients(path: Path) -> dict[str, _Client]:
    texts: dict[str, dict[str, str]] = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                stem, _, kind = Path(member.name).name.rpartition("-")
                if member.isfile() and kind in ("trace.csv", "dataset.json") and (file := archive.extractfile(member)):
                    texts.setdefault(stem, {})[kind] = file.read().decode()
    except tarfile.TarError as error:
        raise ValueError(str(error).partition("\n")[0]) from error
    if not texts or any(len(parts) != 2 for parts in texts.values()):
        raise ValueError("no pairs of trace.csv and dataset.json")
    return {name: _client(parts["trace.csv"], parts["dataset.json"]) for name, parts in sorted(texts.items())}


def _client(trace: str, dataset: str) -> _Client:
    gaps = {}
    for start, _, _, kind, first, second in csv.reader(io.StringIO(trace)):
        if kind:
            gaps[int(float(start))] = (kind, float(first), float(second))
    windows = {int(start): found for start, found in json.loads(dataset).items()}
    inputs, outputs = (
        {start: found for start, each in windows.items() if (found := ast.literal_eval(each[name]))}
        for name in ("input_tokens", "output_tokens")
    )
    return _Client(gaps, inputs, outputs)


def _requests(client: _Client, rng: random.Random) -> Iterator[tuple[float, int, int]]:
    if not client.inputs or not client.outputs:
        return
    for start, (kind, shape, scale) in sorted(client.gaps.items()):
        at = start + rng.random() * _gap(rng, kind, shape, scale)
        while at < start + _WINDOW_S:
            yield at, _length(rng, client.inputs, start), _length(rng, client.outputs, start)
            at += _gap(rng, kind, shape, scale)


def _gap(rng: random.Random, kind: str, shape: float, scale: float) -> float:
    if kind == "Gamma":
        return rng.gammavariate(shape, scale)
    if kind == "Weibull":
        return scale * math.pow(-math.log(1.0 - rng.random()), 1.0 / shape)
    raise ValueError(f"a gap distribution {kind!r}")


def _length(rng: random.Random, windows: dict[int, _Lengths], start: int) -> int:
    latest = max((each for each in windows if each <= start), default=min(windows))
    return rng.choices(list(windows[latest]), list(windows[latest].values()))[0]
