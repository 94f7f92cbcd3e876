"""What steps cost on some machine: fitted from recorded results, and the runner and the clock that go by it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ghostkv.engine.step_cost import StepTimes
from ghostkv.errors import ConfigError
from ghostkv.request import Token
from ghostkv.step import Row, StepPlan, StepResult

SMALL_CPU = StepTimes(base=0.01454, row=0.000677, prefill=0.000626, read=1.83e-06)
"""SmolLM2-135M in bfloat16 on two cores: `fitted` of benchmarks/results/engine.jsonl (834ab4a)."""

_STEP_TOKENS = 512  # of the recorded runs
_FIELDS = ("base", "row", "prefill", "read")


def read_hardware(path: Path) -> StepTimes:
    """The costs in a file: an object of base, row, prefill and read in seconds, or results of `benchmarks/engine.py`.

    Raises ConfigError for another.
    """
    try:
        text = path.read_text(encoding="utf-8")
        if set(_FIELDS) <= (costs := _one_object(text)).keys():
            return StepTimes(*(float(costs[name]) for name in _FIELDS))
        return fitted([json.loads(line) for line in text.splitlines() if line.strip()])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} holds no step costs: {error!r}") from error


def _one_object(text: str) -> dict[str, Any]:
    """The object that a text is; an empty one for a text that is something else."""
    try:
        told = json.loads(text)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def fitted(rows: Sequence[Mapping[str, Any]], *, reading: bool = True) -> StepTimes:
    """Costs from cells of the engine bench: least squares of relative errors.

    Each cell gives three equations: the whole run, the time until every sequence has its first token, and the share
    of attention, which is reading the pool. Without `reading`, that is part of a row, however long its text.
    """
    equations, measured = [], []
    for row in rows:
        count, prompt, tokens = row["sequences"], row["workload"]["prompt"], row["workload"]["tokens"]
        whole, first = count * tokens / row["tokens_per_second"], row["first_token_s"]
        prefills, steps = -(-count * prompt // _STEP_TOKENS), tokens - 1
        read = count * sum(prompt + i for i in range(steps))
        equations += [
            [prefills + steps, count * steps, count * prompt, read],
            [prefills, 0, count * prompt, 0],
            [0, 0, 0, read],
        ]
        measured += [whole, first, row["shares"]["attention"] * whole]
    if not reading:
        del equations[2::3], measured[2::3]
        equations = [[*equation[:3], 0.0] for equation in equations]
    scale = 1 / np.array(measured)
    found = np.linalg.lstsq(np.array(equations, dtype=float) * scale[:, None], np.ones(len(measured)), rcond=None)[0]
    return StepTimes(*(max(0.0, float(value)) for value in found))


class VirtualClock:
    """Time that moves when told to."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        """Seconds since the simulation began."""
        return self.time


class CostRunner:
    """A runner that computes nothing: a step takes what the table says, and tokens are `choose`'s."""

    def __init__(self, times: StepTimes, clock: VirtualClock, choose: Callable[[Row], Sequence[Token]]) -> None:
        """`choose` gives the tokens that a row draws."""
        self._times = times
        self._clock = clock
        self._choose = choose

    def run(self, plan: StepPlan) -> StepResult:
        """Let the time pass."""
        rows = read = prefill = 0
        tokens: list[Token] = []
        for row in plan.rows:
            if row.draws and len(row.tokens) == len(row.draws):
                rows += len(row.tokens)
                read += row.start
            else:
                prefill += len(row.tokens)
            if row.draws:
                tokens += self._choose(row)
        seconds = self._times.step(rows, read, prefill)
        self._clock.time += seconds
        return StepResult(tuple(tokens), seconds)
