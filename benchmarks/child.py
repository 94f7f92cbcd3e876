"""Lines of JSON to and from a program in a process of its own, over its standard input and output."""

from __future__ import annotations

import json
import subprocess
from typing import Any


def tell(process: subprocess.Popen[str], question: Any) -> None:
    """Write one line."""
    assert process.stdin is not None
    process.stdin.write(json.dumps(question) + "\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str], name: str) -> dict[str, Any]:
    """Read one line; ends this program where `name` has ended."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"{name} ended with exit code {process.wait()}")
    found: dict[str, Any] = json.loads(line)
    return found
