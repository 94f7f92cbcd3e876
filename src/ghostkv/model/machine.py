"""What the numbers depend on besides the model: the build of torch and Numba, and the processor's instruction sets."""

from __future__ import annotations

import hashlib
import json
import platform
from functools import cache
from pathlib import Path

import llvmlite
import llvmlite.binding
import numba
import torch


def build() -> dict[str, str]:
    """Versions and CPU features under which results are bitwise comparable."""
    return {
        "torch": torch.__version__,
        "blas": torch.__config__.show(),
        "numba": numba.__version__,
        "llvmlite": llvmlite.__version__,
        "machine": platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "features": cpu_features(),
    }


def cpu_features() -> str:
    """Instruction-set flags of the processor, sorted; empty where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    flags = next((line.partition(":")[2] for line in lines if line.startswith(("flags", "Features"))), "")
    return " ".join(sorted(flags.split()))


@cache
def instruction_sets() -> dict[str, bool]:
    """What Numba compiles for, by LLVM's names."""
    found: dict[str, bool] = llvmlite.binding.get_host_cpu_features()
    return found


def digest(*parts: object) -> str:
    """32 hex digits over the JSON of `parts`."""
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()
