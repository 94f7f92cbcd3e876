"""An environment of its own for each client, so that its pins and ours do not meet. Kept in the user's cache."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path

from ghostkv.config import cache_dir


def client_bin(name: str, *requirements: str) -> Path:
    """The `bin` of an environment with these requirements; makes it on first use (some minutes).

    Raises CalledProcessError if pip cannot install them.
    """
    directory = cache_dir() / "peers" / name
    if not (directory / "ready").exists():
        print(f"installing {' '.join(requirements)} into {directory}", file=sys.stderr, flush=True)
        venv.create(directory, with_pip=True)
        pip = [str(directory / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", *requirements], check=True)
        (directory / "ready").touch()
    return directory / "bin"


def version(bin_directory: Path, package: str) -> str:
    """Of a package that is installed there."""
    code = f"import importlib.metadata, json; print(json.dumps(importlib.metadata.version({package!r})))"
    found = subprocess.run([bin_directory / "python", "-c", code], capture_output=True, text=True, check=True)
    return str(json.loads(found.stdout))
