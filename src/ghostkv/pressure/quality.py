"""What the output of a configuration is worth: results of `ghostkv eval` and of benchmarks/weights.py, by name.

A speed is never printed without it. What was not evaluated says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ghostkv.pressure.engines import Engine

_WINDOW = "sink window, equal peak"  # 4 + 256 tokens, nearest to the policy's own
_ARMS = {"full": "full", "segment": "segment", "sink_window": _WINDOW}
_RECALL_ARMS = {"full": "full", "segment": "segment", "sink_window": "sink window"}
_TEXT = "prose"
_TARGET = "--targets 150"  # the length that the policy has
_BOOK = "beagle.txt"
_INVENTED = "invented"
_BFLOAT16 = ("bfloat16", "auto")
_DISTANCE = 5  # segments since a fact was stated


@dataclass(frozen=True, slots=True)
class Results:
    """Rows of the two files."""

    continuity: tuple[Mapping[str, Any], ...] = ()
    weights: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def read(cls, folder: Path) -> Results:
        """Of a folder of results; without the files nothing is known."""
        return cls(_rows(folder / "continuity.jsonl"), _rows(folder / "weights.jsonl"))

    def of(self, engine: Engine, counts: Mapping[str, float]) -> dict[str, Any]:
        """For a row: extra nats per token on prose over the exact bfloat16 model, and recall five segments later.

        `auto` is worth what `full` is while it flushed nothing, else at least what `segment` is.
        """
        residency = engine.residency
        if residency == "auto":
            residency = "segment" if counts.get("flushes", 0) else "full"
        parts = {"residency": self._residency(residency), "weights": self._precision(engine)}
        estimates = [part["extra_nats"] for part in parts.values()]
        known = all(estimate is not None for estimate in estimates)
        return {
            "configuration": f"{residency}, weights {engine.weights}, kv {engine.kv}",
            "extra_nats": round(sum(estimates), 4) if known else None,
            "recall": self._recall(residency, engine),
            "parts": parts,
        }

    def _residency(self, residency: str) -> dict[str, Any]:
        if residency == "full":
            return {"extra_nats": 0.0, "source": "exact by definition"}
        found = [
            (part["extra"], row)
            for row in self.continuity
            for part in row.get("perplexity", {}).get("texts", {}).get(_TEXT, {}).get("parts", ())
            if part["arm"] == _ARMS.get(residency) and ("--targets" not in row["command"] or _TARGET in row["command"])
        ]
        if not found:
            return {"extra_nats": None, "source": "not evaluated"}
        extra, row = min(found, key=lambda each: _width(each[0]))
        return {"extra_nats": extra["estimate"], "source": f"continuity.jsonl, {row['commit']}"}

    def _precision(self, engine: Engine) -> dict[str, Any]:
        if engine.weights == "bfloat16" and engine.kv in ("auto", "f16"):
            return {"extra_nats": 0.0, "source": "the model itself"}
        kv = "int8" if engine.kv == "int8" else "auto"
        total, sources = 0.0, []
        wanted = [(engine.weights, "auto")] if engine.weights != "bfloat16" else []
        wanted += [("bfloat16", kv)] if kv == "int8" else []
        for dtype, kv_dtype in wanted:
            found = self._weights(dtype, kv_dtype)
            if found is None:
                return {"extra_nats": None, "source": "not evaluated"}
            total += found["extra_nats"]["estimate"]
            sources.append(f"weights.jsonl, {found['run']['commit']}")
        return {"extra_nats": total, "source": "; ".join(sources)}

    def _weights(self, dtype: str, kv_dtype: str) -> Mapping[str, Any] | None:
        rows = [
            row
            for row in self.weights
            if (row["text"], row["dtype"], row.get("kv_dtype", "auto")) == (_BOOK, dtype, kv_dtype)
        ]
        return rows[-1] if rows else None

    def _recall(self, residency: str, engine: Engine) -> dict[str, Any] | None:
        """Of the very precision where that was evaluated, else of bfloat16, and it says so."""
        precision = (engine.weights, "int8" if engine.kv == "int8" else "auto")
        found = self._recalls(residency, precision) or self._recalls(residency, _BFLOAT16)
        if not found:
            return None
        exact, row = min(found, key=lambda each: _width(each[0]))
        return {
            "exact": exact["estimate"],
            "distance": _DISTANCE,
            "precision": f"weights {row['dtype']}, kv {row.get('kv_dtype', 'auto')}",
            "same_precision": precision == (row["dtype"], row.get("kv_dtype", "auto")),
            "source": f"continuity.jsonl, {row['commit']}",
        }

    def _recalls(
        self, residency: str, precision: tuple[str, str]
    ) -> list[tuple[Mapping[str, float], Mapping[str, Any]]]:
        return [
            (cell["arms"][arm]["exact"], row)
            for row in self.continuity
            if row.get("recall", {}).get("source") == _INVENTED
            and (row["dtype"], row.get("kv_dtype", "auto")) == precision
            for cell in row["recall"]["cells"]
            if cell["distance"] == _DISTANCE and (arm := _RECALL_ARMS.get(residency, "")) in cell["arms"]
        ]


def _width(interval: Mapping[str, float]) -> float:
    """Of several runs the one that knows most counts."""
    return interval["high"] - interval["low"]


def _rows(file: Path) -> tuple[Mapping[str, Any], ...]:
    if not file.exists():
        return ()
    return tuple(json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip())
