"""The fault campaign in short, over a small random model: `benchmarks/durability.py` has 200 kills of the real one."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from checkpoints import write_hf_checkpoint

CAMPAIGN = Path(__file__).parents[2] / "benchmarks" / "durability.py"


def test_three_kills_lose_no_session_and_no_token(tmp_path: Path) -> None:
    """Real processes, real SIGKILL. The script compares every token, log-probability and text, and fails by itself."""
    model = write_hf_checkpoint(tmp_path / "small", context=2048)
    options = ["--kills", "3", "--sessions", "6", "--tokens", "400", "--between", "0.1", "1.5", "--seed", "3", "--dry"]
    command = [sys.executable, str(CAMPAIGN), "--model", str(model), *options]
    run = subprocess.run(
        [*command, "--", "--dtype", "float32", "--kv-budget", "24MiB"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    row = ast.literal_eval(run.stdout.strip().split("\n")[-1])
    assert (row["lost"], row["divergent_tokens"], row["errors"], row["kills"]) == ([], 0, [], 3)
    assert row["rejoined"] >= 4 and row["gone_on"] >= 4
    assert row["generated_again_in_segment_max"] <= 192
