"""Everything together: which experiments run with which arms, and the one record that they end in."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ghostkv.errors import ConfigError
from ghostkv.evaluate.arms import FactsAlone, History, LastTokens, RecallArm, Segmented, parts
from ghostkv.evaluate.compare import summary
from ghostkv.evaluate.curves import Curves, curves
from ghostkv.evaluate.drift import drift
from ghostkv.evaluate.instructions import instructions
from ghostkv.evaluate.lab import Lab
from ghostkv.evaluate.recall import Outcome, Plan, ask
from ghostkv.residency import Policy, SegmentBudget, policy
from ghostkv.residency.segment import Segment
from ghostkv.residency.sink_window import SinkWindow

PARTS = ("perplexity", "recall", "instructions", "drift")
CEILINGS = ("full", "facts alone")
_SINKS = 4


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What is run, and how large."""

    text: str
    parts: tuple[str, ...] = PARTS
    recall: Plan = field(default_factory=Plan)
    curves: Curves = field(default_factory=Curves)
    instruction_segments: int = 20
    drift_segments: int = 50
    arms: tuple[str, ...] = ()
    """Names of the recall arms; empty: all."""

    def __post_init__(self) -> None:
        if unknown := set(self.parts) - set(PARTS):
            raise ConfigError(f"there is no part {', '.join(sorted(unknown))}: choose among {', '.join(PARTS)}")


def segment_budget() -> SegmentBudget:
    """The constants of `segment`. Raises ConfigError if that policy has none."""
    budget = policy("segment").budget
    if budget is None:
        raise ConfigError("residency 'segment' has no budget")
    return budget


def recall_arms(budget: SegmentBudget) -> list[RecallArm]:
    """Ceilings, the protocol with its parts, baselines of the same size, and controls."""
    size = budget.carried
    arms: list[RecallArm] = [
        History("full", policy("full")),
        FactsAlone(),
        *(Segmented(name, each) for name, each in parts(budget).items() if name != "tail"),
        LastTokens(size),
        History("sink window", SinkWindow(sinks=_SINKS, window=size + budget.target // 2)),
        Segmented("another session", budget, shows="other"),
        Segmented("wrong values", budget, shows="wrong"),
    ]
    return arms


def chosen_arms(names: Sequence[str], budget: SegmentBudget) -> list[RecallArm]:
    """The recall arms of these names, or all. Raises ConfigError for a name that there is not."""
    arms = {arm.name: arm for arm in recall_arms(budget)}
    if unknown := [name for name in names if name not in arms]:
        raise ConfigError(f"there is no arm {', '.join(unknown)}: choose among {', '.join(arms)}")
    return [arm for name, arm in arms.items() if not names or name in names]


async def evaluate(
    lab: Lab, plan: Evaluation, tell: Callable[[str], None], keep: Callable[[Iterable[Outcome]], None]
) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """Run the parts; yields (name, its record) as each is done. `keep` gets the answers of the recall test."""
    budget = segment_budget()
    asked = chosen_arms(plan.arms, budget)  # before anything runs, so that a wrong name is refused at once
    long: Mapping[str, Policy] = {"full": policy("full"), "segment": Segment(budget=budget)}
    for part in plan.parts:
        if part == "perplexity":
            yield part, await curves(lab, plan.text, plan.curves, budget=budget, window=_window, tell=tell)
        elif part == "recall":
            yield part, await _recall(lab, plan, asked, tell, keep)
        elif part == "instructions":
            yield part, await instructions(lab, long, budget, plan.instruction_segments, tell)
        else:
            yield part, await drift(lab, long, budget, plan.drift_segments, tell)


async def _recall(
    lab: Lab,
    plan: Evaluation,
    arms: Sequence[RecallArm],
    tell: Callable[[str], None],
    keep: Callable[[Iterable[Outcome]], None],
) -> dict[str, Any]:
    outcomes: list[Outcome] = []
    async for found in ask(lab, arms, plan.recall, tell):
        outcomes += found
        keep(found)
    configuration = {arm.name: dict(arm.configuration()) for arm in arms}
    shape = plan.recall.shape
    return {
        "source": plan.recall.source.name,
        "documents": plan.recall.documents,
        "answer_tokens": plan.recall.source.answer_tokens,
        "shape": asdict(shape),
        "forms": list(plan.recall.forms),
    } | summary(outcomes, CEILINGS, configuration)


def header(lab: Lab, commit: str, command: str) -> dict[str, Any]:
    """What all figures stand on. "segment" holds the constants that the policy of that name has by default."""
    worker = lab.worker
    return {
        "model": worker.name,
        "manifest": worker.manifest,
        "dtype": worker.config.dtype,
        "kv_dtype": worker.config.kv_dtype,
        "commit": commit,
        "command": command,
        "segment": asdict(segment_budget()),
    }


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write the record. Raises ConfigError where that cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error


def _window(sinks: int, recent: int) -> Policy:
    return SinkWindow(sinks=sinks, window=recent)
