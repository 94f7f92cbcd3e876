"""`benchmarks/upstreams.py` in short, our own server over a small random model as upstream: real processes, SIGKILL."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from checkpoints import write_hf_checkpoint

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "upstreams.py"
CONTEXT = 512


def test_a_story_outlives_context_kills_and_upstreams(tmp_path: Path) -> None:
    """The script asserts what each scenario shows. Over our own engine the text is also that of an undisturbed run."""
    model = write_hf_checkpoint(tmp_path / "small", context=CONTEXT)
    options = ["--engine", "ghostkv", "--model", str(model), "--context", str(CONTEXT), "--mute", "--dry"]
    command = [sys.executable, str(SCRIPT), *options, "--", "--dtype", "float32", "--kv-budget", "8MiB"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    rows = {row["scenario"]: row for row in map(ast.literal_eval, run.stdout.strip().split("\n"))}
    assert list(rows) == ["story", "recall", "cancel", "restart", "failover"]
    assert rows["restart"]["same_text_as_undisturbed"] and rows["failover"]["same_text_as_undisturbed"]
