"""An environment with vLLM and ghostkv, for `ghostkv serve --backend vllm`: what one pip installs for both."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from vllm_environment import vllm_python

ROOT = Path(__file__).parents[1]
_CHOSEN = ("torchaudio", "torchvision", "torchcodec", "torch 2.13.0+cpu", "torch==2.13.0+cpu")
"""What `vllm_environment` leaves out or chooses itself."""


def ghostkv_with_vllm(directory: Path) -> Path:
    """The interpreter of that environment; makes it on first use (some minutes).

    Raises RuntimeError with the versions that do not agree, CalledProcessError where pip cannot make it.
    """
    python = vllm_python(directory, f"--editable {ROOT}[server,postgres]", "pytest>=9", "hypothesis>=6.140")
    if clashes := disagreements(python):
        raise RuntimeError(f"{directory}: versions do not agree: " + "; ".join(clashes))
    return python


def disagreements(python: Path) -> list[str]:
    """What `pip check` finds there, without what was left out on purpose."""
    done = subprocess.run([str(python), "-m", "pip", "check"], capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if "requires" in line or "has requirement" in line]
    return [line for line in lines if not re.search("|".join(map(re.escape, _CHOSEN)), line)]
