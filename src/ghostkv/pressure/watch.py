"""Looks at a server while it works: memory of its processes, KV bytes, processor time, its own counters."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ghostkv.pressure.energy import joules, read_counters
from ghostkv.pressure.engines import Gauges, Metrics
from ghostkv.pressure.process import ServerProcess, cpu_seconds, resident_bytes
from ghostkv.pressure.wire import Address, get

_SAMPLE = re.compile(r"([\w:]+)(\{[^}]*\})? (\S+)")
_KIND = re.compile(r'(?:decision|exact)="\w+"')
_MOST_POINTS = 240


@dataclass(slots=True)
class Watched:
    """What was seen: one entry of each list for each look. Bytes; seconds since the cell's start."""

    at: list[float] = field(default_factory=list)
    resident: list[int] = field(default_factory=list)
    live: list[float] = field(default_factory=list)  # empty where the engine does not tell
    cpu_s: float = 0.0
    energy_j: float | None = None  # of the whole machine; None where no counter can be read
    started_s: float = 0.0
    peak_kv: float | None = None
    before: Metrics = field(default_factory=dict)
    after: Metrics = field(default_factory=dict)

    def trace(self) -> list[list[float]]:
        """[second, live KV bytes or -1, RSS bytes], thinned out evenly."""
        live = self.live if len(self.live) == len(self.at) else [-1.0] * len(self.at)
        points = [[round(at, 2), kv, rss] for at, kv, rss in zip(self.at, live, self.resident)]
        step = -(-len(points) // _MOST_POINTS) or 1
        return points[::step]

    def summary(self) -> dict[str, Any]:
        """For a row: live KV averaged over looks, its peak by the engine's own word or the highest look, RSS."""
        peak = self.peak_kv if self.peak_kv is not None else max(self.live, default=None)
        mean = sum(self.live) / len(self.live) if self.live else None
        return {
            "start_s": round(self.started_s, 2),
            "cpu_s": round(self.cpu_s, 2),
            "energy_j": None if self.energy_j is None else round(self.energy_j, 1),
            "kv_live_mean_bytes": None if mean is None else round(mean),
            "kv_live_peak_bytes": None if peak is None else round(peak),
            "kv_peak_by": "engine" if self.peak_kv is not None else "looks" if self.live else None,
            "rss_peak_bytes": max(self.resident, default=0),
            "looks": len(self.at),
            "trace": self.trace(),
        }


async def read_metrics(address: Address, key: str | None) -> dict[str, float]:
    """Samples of /metrics, labels added up; of decisions and exact answers also by label. {} where there are none."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    status, body = await get(address, "/metrics", headers=headers)
    totals: dict[str, float] = {}
    for line in body.decode(errors="replace").splitlines() if status == 200 else ():
        if (found := _SAMPLE.match(line)) is not None:
            names = [found[1]]
            if found[2] and (kind := _KIND.search(found[2])):
                names.append(f"{found[1]}{{{kind[0]}}}")
            for name in names:
                totals[name] = totals.get(name, 0.0) + float(found[3])
    return totals


class Watch:
    """Looks every `every_s` seconds until it is left. An async context manager; `seen` is complete then."""

    def __init__(
        self,
        servers: Sequence[ServerProcess],
        address: Address,
        key: str | None,
        gauges: Callable[[Metrics], Gauges],
        every_s: float = 1.0,
    ) -> None:
        self.seen = Watched()
        self._servers, self._address, self._key = servers, address, key
        self._gauges, self._every_s = gauges, every_s

    async def __aenter__(self) -> Watch:
        """The first reading of counters."""
        self.seen.before = await read_metrics(self._address, self._key)
        self._cpu_before = cpu_seconds(self._pids())
        self._energy_before = read_counters()
        self._begun = time.perf_counter()
        self._task = asyncio.create_task(self._look())
        return self

    async def __aexit__(self, *_: object) -> None:
        """The last one."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        pids = self._pids()
        self.seen.cpu_s = cpu_seconds(pids) - self._cpu_before
        self.seen.energy_j = joules(self._energy_before, read_counters())
        self.seen.after = await read_metrics(self._address, self._key)
        self.seen.peak_kv = self._gauges(self.seen.after).peak

    def _pids(self) -> list[int]:
        return [pid for server in self._servers for pid in server.tree()]

    async def _look(self) -> None:
        while True:
            metrics = await read_metrics(self._address, self._key)
            self.seen.at.append(time.perf_counter() - self._begun)
            self.seen.resident.append(resident_bytes(self._pids()))
            if (live := self._gauges(metrics).live) is not None:
                self.seen.live.append(live)
            await asyncio.sleep(self._every_s)
