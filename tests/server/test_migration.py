"""Two real server processes under load, in short: `benchmarks/migration.py` has the real model and longer histories."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from checkpoints import write_hf_checkpoint

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "migration.py"


def test_nothing_differs_between_two_running_servers(tmp_path: Path) -> None:
    """The script compares every token, log-probability and text, and fails by itself."""
    model = write_hf_checkpoint(tmp_path / "small", context=2048)
    options = ["--sessions", "8", "--tokens", "900", "--lengths", "256", "--dry"]
    command = [sys.executable, str(SCRIPT), "--model", str(model), *options]
    run = subprocess.run(
        [*command, "--", "--dtype", "float32", "--kv-budget", "24MiB"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    load, kept, kept_own, segment, segment_own = map(ast.literal_eval, run.stdout.strip().split("\n"))
    assert (load["moved"], load["lost"], load["divergent_tokens"], load["stayed"]) == (8, [], 0, {})
    assert load["moved_while_answering"] >= 4
    for row, prompt, generated in ((kept, 256, 40), (kept_own, 64, 256)):
        assert row["complete"] and row["at_token"] > generated
        assert row["prefilled_again"] == prompt + row["at_token"]
    for row in (segment, segment_own):
        assert row["complete"] and row["prefilled_again"] == 0 and row["capsule_bytes"] > 1000
    assert segment_own["kv_bytes"] < kept_own["kv_bytes"]
