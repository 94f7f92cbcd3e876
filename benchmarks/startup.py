"""How long `ghostkv serve` takes from exec to a /ready that says 200, by phase, and what it then holds in memory.

Every start is a process of its own; the first one of each precision fills the caches and is not counted. Pages of the
KV pool are not resident before something is written to them, so the pool is small and what is resident of it counts as
the rest does. Appends to results/startup.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from statistics import median
from typing import Any

from record import append

_MIB = 2**20
_WATCHDOG_S = 600.0


def start(model: str, dtype: str, kv_budget: str) -> dict[str, Any]:
    """One start: seconds, phases as logged, and bytes of memory."""
    command = [sys.executable, "-m", "ghostkv", "serve", "--model", model, "--dtype", dtype, "--kv-budget", kv_budget]
    began = time.monotonic()
    with subprocess.Popen(
        [*command, "--port", "0", "--log-format", "json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            assert server.stderr is not None
            found = re.search(r"http://\S+?:\d+", server.stdout.readline())
            if found is None:
                raise SystemExit(f"the server did not start: {server.stderr.read()}")
            _wait_until_ready(found[0], began)
            seconds = time.monotonic() - began
            spent = Path(f"/proc/{server.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[11:13]
            status = Path(f"/proc/{server.pid}/status").read_text(encoding="utf-8")
        finally:
            server.send_signal(signal.SIGTERM)
        logged = [json.loads(line) for line in server.stderr if line.startswith("{")]
    loaded, ready = (next(line for line in logged if line["message"] == text) for text in ("loaded", "ready"))
    resident = {name: int(size) * 1024 for name, size in re.findall(r"(VmRSS|VmHWM):\s+(\d+) kB", status)}
    return {
        "seconds": round(seconds, 3),
        "processor_seconds": sum(map(int, spent)) / os.sysconf("SC_CLK_TCK"),
        "phases": {name: value for name, value in ready.items() if name.endswith("_s")},
        "load_phases": {name: value for name, value in loaded.items() if name.endswith("_s")},
        "weight_bytes": loaded["weight_bytes"],
        "pool_bytes": loaded["pool_bytes"],
        "resident_bytes": resident["VmRSS"],
        "peak_bytes": resident["VmHWM"],
        "above_bytes": resident["VmRSS"] - loaded["weight_bytes"],
    }


def _wait_until_ready(url: str, began: float) -> None:
    while time.monotonic() - began < _WATCHDOG_S:
        try:
            with urllib.request.urlopen(f"{url}/ready", timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.005)
    raise SystemExit("the server did not become ready")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "int8"])
    parser.add_argument("--kv-budget", default="16MiB")
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    rows: list[dict[str, object]] = []
    print(
        f"{'dtype':>9} {'median s':>9} {'least s':>8} {'weights':>8} {'pool':>8} {'above':>8} {'peak above':>10}  MiB"
    )
    for dtype in arguments.dtypes:
        start(arguments.model, dtype, arguments.kv_budget)
        runs = [start(arguments.model, dtype, arguments.kv_budget) for _ in range(arguments.repeats)]
        seconds = [run["seconds"] for run in runs]
        middle = sorted(runs, key=lambda run: float(run["seconds"]))[len(runs) // 2]
        above = max(run["above_bytes"] for run in runs)
        peak = max(run["peak_bytes"] - run["resident_bytes"] + run["above_bytes"] for run in runs)
        sizes = (middle["weight_bytes"], middle["pool_bytes"], above, peak)
        shown = " ".join(f"{size / _MIB:>8.0f}" for size in sizes)
        print(f"{dtype:>9} {median(seconds):>9.2f} {min(seconds):>8.2f} {shown}", flush=True)
        for name in ("phases", "load_phases"):
            print(f"{name:>18}: " + " ".join(f"{phase} {value}" for phase, value in middle[name].items()))
        rows.append({"model": arguments.model, "dtype": dtype, "seconds": seconds, "median": middle, "above": above})
    print(f"written to {append('startup', rows)}")


if __name__ == "__main__":
    main()
