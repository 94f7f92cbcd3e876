"""Energy of the processor packages, where the kernel shows its counters and lets them be read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_POWERCAP = Path("/sys/class/powercap")
Counters = Mapping[str, tuple[int, int]]
"""Package -> (microjoules, where the counter begins again)."""


def read_counters(folder: Path = _POWERCAP) -> Counters:
    """Of every package; empty where there are none."""
    found = {}
    for package in sorted(folder.glob("*-rapl:[0-9]")):
        try:
            now, most = (int((package / name).read_text()) for name in ("energy_uj", "max_energy_range_uj"))
        except (OSError, ValueError):
            continue
        found[package.name] = (now, most)
    return found


def joules(before: Counters, after: Counters) -> float | None:
    """Between two readings; a counter that began again did so once. None without counters."""
    common = before.keys() & after.keys()
    if not common:
        return None
    return sum((after[name][0] - before[name][0]) % (after[name][1] + 1) for name in common) / 1e6
