"""Where a result comes from: commit, machine, command. Every line in results/ carries it."""

from __future__ import annotations

import datetime
import json
import platform
import subprocess
import sys
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def provenance() -> dict[str, object]:
    """Commit (with a plus sign if the tree has changes), processor, cores, versions, command and date."""
    commit = _git("rev-parse", "--short", "HEAD") + ("+" if _git("status", "--porcelain", "--", "../src") else "")
    cpu = next(
        (line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")), platform.processor()
    )
    return {
        "commit": commit,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "cpu": cpu,
        "cores": len([line for line in _cpuinfo() if line.startswith("processor")]),
        "python": platform.python_version(),
        "command": " ".join(["python", *sys.argv]),
    }


def append(name: str, rows: list[dict[str, object]]) -> Path:
    """Append rows, each with its provenance, to results/NAME.jsonl."""
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{name}.jsonl"
    origin = provenance()
    with file.open("a", encoding="utf-8") as out:
        for row in rows:
            out.write(json.dumps(row | {"run": origin}) + "\n")
    return file


def _git(*arguments: str) -> str:
    found = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    return found.stdout.strip()


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
