"""Where a result comes from: the commit of the source that runs, the day and the machine."""

from __future__ import annotations

import datetime
import platform
import subprocess
from pathlib import Path

_VECTORS = ("amx_int8", "avx512_bf16", "avx512_vnni", "avx512f", "avx2")  # the widest first


def origin() -> dict[str, str | int]:
    """Commit, date, processor with the widest vectors it multiplies by, cores and version of Python."""
    lines = _lines(Path("/proc/cpuinfo"))
    cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    return {
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "cpu": cpu or platform.processor(),
        "vectors": next((name for name in _VECTORS if name in flags), ""),
        "cores": len([line for line in lines if line.startswith("processor")]),
        "python": platform.python_version(),
    }


def commit() -> str:
    """The commit, with a plus sign if the source was changed; "" where it is no repository."""
    found = _git("rev-parse", "--short", "HEAD")
    return found + "+" if found and _git("status", "--porcelain", ".") else found


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
