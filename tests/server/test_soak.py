"""The soak in short, over a small random model: `benchmarks/soak.py` has 10,000 requests over the real one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from checkpoints import write_hf_checkpoint

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak.py"


def test_three_hundred_requests_leave_nothing_behind(tmp_path: Path) -> None:
    """Every kind, 64 at a time, about half of them left at random moments. The script says what is not as it was."""
    model = write_hf_checkpoint(tmp_path / "small", context=2048)
    options = ["--requests", "300", "--model", str(model), "--kv-budget", "3MiB", "--dry", "--", "--dtype", "float32"]
    soak = subprocess.run(
        [sys.executable, str(SOAK), *options], capture_output=True, text=True, timeout=300, check=False
    )
    assert soak.returncode == 0, soak.stdout + soak.stderr
    left = re.search(r"'left': (\d+)", soak.stdout)
    assert left is not None and int(left[1]) > 60
