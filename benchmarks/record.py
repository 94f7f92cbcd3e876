"""Where a result comes from: commit, machine, command. Every line in results/ carries it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ghostkv.origin import origin

RESULTS = Path(__file__).parent / "results"


def provenance() -> dict[str, object]:
    """Commit (with a plus sign if the source was changed), machine, versions, date and command."""
    return {**origin(), "command": " ".join(["python", *sys.argv])}


def append(name: str, rows: list[dict[str, object]]) -> Path:
    """Append rows, each with its provenance, to results/NAME.jsonl."""
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{name}.jsonl"
    made = provenance()
    with file.open("a", encoding="utf-8") as out:
        for row in rows:
            out.write(json.dumps(row | {"run": made}) + "\n")
    return file
