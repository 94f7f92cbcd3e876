"""ghostkv's engine beside vLLM's CPU build: the same weights, prompts, output length and KV bytes, in turn in one run.

Both stay loaded; each cell runs them alternately and the ratio is the median of the pairs. KV is ample for both: this
measures engines, not residency. Appends to results/engine_vs_vllm.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from record import append
from vllm_environment import vllm_python

from ghostkv.config import cache_dir
from ghostkv.model.checkpoint import open_checkpoint
from ghostkv.model.export import export_hf
from ghostkv.model.pull import resolve_model

WORKERS = Path(__file__).parent / "workers"
KV_BYTES = 1 << 30


class Peer:
    """A worker and its children in a process group of their own, stopped while it is not its turn (vLLM's poll)."""

    def __init__(self, name: str, python: Path, script: str, model: Path, environment: dict[str, str]) -> None:
        self.name = name
        command = [str(python), str(WORKERS / script), str(model), str(KV_BYTES)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=os.environ | environment,
        )
        self.about: dict[str, Any] = self._read()["ready"]
        self._signal(signal.SIGSTOP)

    def run(self, sequences: int, prompt: int, tokens: int) -> float:
        """Tokens per second."""
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        self._process.stdin.write(json.dumps({"sequences": sequences, "prompt": prompt, "tokens": tokens}) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        self._signal(signal.SIGSTOP)
        if answer["generated"] != sequences * tokens:
            raise SystemExit(f"{self.name} generated {answer['generated']} tokens, not {sequences * tokens}")
        return float(answer["generated"] / answer["seconds"])

    def close(self) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        os.killpg(self._process.pid, number)

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with exit code {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found


def vllm_settings(python: Path) -> dict[str, str]:
    """Every core for vLLM's kernels (by default it keeps one for its front end), and the OpenMP that it recommends."""
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    openmp = next(iter(python.parent.parent.glob("lib/libiomp5.so")), None)
    preload = {"LD_PRELOAD": str(openmp)} if openmp else {}
    return {"VLLM_CPU_OMP_THREADS_BIND": cores} | preload


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8, 32, 64, 128])
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--vllm-environment", type=Path, default=cache_dir() / "peers" / "vllm")
    arguments = parser.parse_args()

    model = resolve_model("smollm2", print)
    exported = cache_dir() / "peers" / "smollm2-bf16"
    if not exported.exists():
        export_hf(open_checkpoint(model), exported)
    ours = Peer("ghostkv", Path(sys.executable), "ghostkv_worker.py", model, {})
    python = vllm_python(arguments.vllm_environment)
    settings = vllm_settings(python)
    theirs = Peer("vllm", python, "vllm_worker.py", exported, settings)
    for peer in (ours, theirs):
        peer.run(2, arguments.prompt, 8)
    rows: list[dict[str, object]] = []
    print(f"{'sequences':>9} {'ghostkv':>9} {'vllm':>9} {'ratio':>6}   (output tokens per second, prefill included)")
    for sequences in arguments.sequences:
        pairs = []
        for _ in range(arguments.repeats):
            cell = (sequences, arguments.prompt, arguments.tokens)
            pairs.append((ours.run(*cell), theirs.run(*cell)))
        row = {
            "sequences": sequences,
            "prompt": arguments.prompt,
            "tokens": arguments.tokens,
            "ghostkv": round(median(a for a, _ in pairs), 1),
            "vllm": round(median(b for _, b in pairs), 1),
            "ratio": round(median(a / b for a, b in pairs), 3),
            "pairs": [[round(a, 1), round(b, 1)] for a, b in pairs],
        }
        print(f"{sequences:>9} {row['ghostkv']:>9} {row['vllm']:>9} {row['ratio']:>6}", flush=True)
        rows.append(
            row | {"ghostkv_config": ours.about, "vllm_config": theirs.about | {"environment": sorted(settings)}}
        )
    ours.close()
    theirs.close()
    print(f"written to {append('engine_vs_vllm', rows)}")


if __name__ == "__main__":
    main()
