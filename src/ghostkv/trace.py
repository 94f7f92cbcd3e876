"""What happened in a run, as JSON lines: a header, every engine step, every segment. It records and decides nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ghostkv.backends.base import Capabilities
from ghostkv.engine.stats import StepTrace
from ghostkv.errors import ConfigError, InvariantViolation
from ghostkv.session.turn import PlanRecord, SegmentRecord


@dataclass(frozen=True, slots=True)
class Footing:
    """What the trace's numbers stand on: a header line."""

    model: str
    manifest: str
    kv_budget: int  # bytes of the pool, whole blocks
    kv_bytes_per_token: int
    block_tokens: int

    @classmethod
    def of(cls, model: str, manifest: str, capabilities: Capabilities) -> Footing:
        """The header for a worker's model and backend."""
        return cls(
            model=model,
            manifest=manifest,
            kv_budget=capabilities.kv_budget,
            kv_bytes_per_token=capabilities.kv_bytes_per_token,
            block_tokens=capabilities.block_tokens,
        )

    def block_bytes(self, blocks: int) -> int:
        """Bytes of that many blocks."""
        return blocks * self.block_tokens * self.kv_bytes_per_token


@dataclass(slots=True)
class Trace:
    """The record of one session that had the engine to itself. Steps arrive on the engine's thread."""

    steps: list[StepTrace] = field(default_factory=list)
    segments: list[SegmentRecord] = field(default_factory=list)
    plan: PlanRecord | None = None

    def peak_live_bytes(self, footing: Footing) -> int:
        """The most KV that was referenced in any step, in bytes."""
        return footing.block_bytes(max((step.live_blocks for step in self.steps), default=0))

    def check_budget(self, footing: Footing) -> None:
        """Raises InvariantViolation if live KV exceeded the budget in some step."""
        for step in self.steps:
            if (live := footing.block_bytes(step.live_blocks)) > footing.kv_budget:
                raise InvariantViolation(
                    f"step {step.step}: {live} bytes of live KV exceed the budget of {footing.kv_budget}"
                )

    def filled_tokens(self) -> list[int]:
        """Tokens whose KV is in the pool, and can still be seen, after each step.

        Raises InvariantViolation where steps and segments contradict each other: some step belongs to another session.
        """
        filled: list[int] = []
        steps = iter(self.steps)
        for segment in self.segments:
            usage = segment.usage
            held, last = usage.cached_tokens, usage.prompt_tokens + usage.generated_tokens - 1
            while held < last:
                step = next(steps, None)
                if step is None:
                    raise InvariantViolation(f"segment {segment.index} has no steps for its last tokens")
                held += step.prefill_tokens + step.decode_rows + step.accepted
                filled.append(min(held, usage.resident_tokens))  # a window lets go of the others
            if held != last:
                raise InvariantViolation(f"segment {segment.index} ended with {last} computed tokens, not {held}")
        return filled

    def write(self, path: Path, footing: Footing) -> None:
        """One JSON object a line, told apart by "kind": header, plan, step or segment."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("w", encoding="utf-8") as file:
                for line in self._lines(footing):
                    file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error

    def _lines(self, footing: Footing) -> Iterator[dict[str, Any]]:
        yield {"kind": "header", **asdict(footing)}
        if self.plan is not None:
            yield {"kind": "plan", **asdict(self.plan)}
        yield from ({"kind": "step", **asdict(step)} for step in self.steps)
        yield from ({"kind": "segment", **_fields(segment)} for segment in self.segments)


def _fields(segment: SegmentRecord) -> dict[str, Any]:
    """A segment's fields; where there is one worker, nothing is said of it."""
    fields = asdict(segment)
    return fields if segment.worker else {name: fields[name] for name in fields if name not in ("worker", "reason")}
