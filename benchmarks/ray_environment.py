"""An environment of its own for Ray, so that its pins and ours do not meet; ghostkv in it is that of this checkout."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

VERSION = "2.60.0"
_CHECKOUT = Path(__file__).parent.parent


def ray_python(directory: Path) -> Path:
    """The interpreter of an environment with Ray; makes it on first use (some minutes)."""
    python = directory / "bin" / "python"
    if not (directory / "ready").exists():
        print(f"installing ray {VERSION} into {directory}", file=sys.stderr, flush=True)
        venv.create(directory, with_pip=True)
        constraints = ["-c", str(_CHECKOUT / "constraints.txt")]
        _pip(python, "install", *constraints, "torch")
        _pip(python, "install", *constraints, f"ray[serve]=={VERSION}", "-e", f"{_CHECKOUT}[ray]")
        (directory / "ready").touch()
    _pip(python, "install", "--no-deps", "-e", str(_CHECKOUT))  # it may have been made from another one
    return python


def _pip(python: Path, *arguments: str) -> None:
    subprocess.run([str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments], check=True)
