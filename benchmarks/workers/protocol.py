"""A peer as a process: one JSON line in (a workload), one JSON line out (seconds and tokens). Standard library only."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

_out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # from here on, whatever a library prints goes to stderr


def prompts(count: int, length: int, vocab: int) -> list[list[int]]:
    """Distinct prompts of ordinary ids, equal in every process: a multiplicative generator, no library."""
    state, rows = count, []
    for _ in range(count):
        row = []
        for _ in range(length):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            row.append(1000 + (state >> 33) % (vocab - 2000))
        rows.append(row)
    return rows


def serve(run: Callable[[list[list[int]], int], int], vocab: int, about: dict[str, object]) -> None:
    """Answer workloads until standard input ends. `run(prompts, tokens)` returns how many tokens it generated."""
    print(json.dumps({"ready": about}), file=_out, flush=True)
    for line in sys.stdin:
        work = json.loads(line)
        rows = prompts(work["sequences"], work["prompt"], vocab)
        start = time.perf_counter()
        generated = run(rows, work["tokens"])
        print(json.dumps({"seconds": time.perf_counter() - start, "generated": generated}), file=_out, flush=True)
