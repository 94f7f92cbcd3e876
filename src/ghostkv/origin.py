"""Where a result comes from: the commit of the source that runs."""

from __future__ import annotations

import subprocess
from pathlib import Path


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
