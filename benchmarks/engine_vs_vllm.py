"""ghostkv's engine beside vLLM's CPU build: the same model, prompts, output length and KV bytes, in turn in one run.

ghostkv runs with bfloat16 and with int8 weights, vLLM with bfloat16. All stay loaded; each cell runs them alternately
and a ratio is the median over the rounds. KV is ample for both: this
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
OURS = ("ghostkv bfloat16", "ghostkv int8")


class Peer:
    """A worker and its children in a process group of their own, stopped while it is not its turn (vLLM's poll)."""

    def __init__(
        self, name: str, python: Path, script: str, model: Path, environment: dict[str, str], *arguments: str
    ) -> None:
        self.name = name
        command = [str(python), str(WORKERS / script), str(model), str(KV_BYTES), *arguments]
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
    python = vllm_python(arguments.vllm_environment)
    settings = vllm_settings(python)
    peers = [
        Peer(OURS[0], Path(sys.executable), "ghostkv_worker.py", model, {}, "bfloat16"),
        Peer(OURS[1], Path(sys.executable), "ghostkv_worker.py", model, {}, "int8"),
        Peer("vllm", python, "vllm_worker.py", exported, settings),
    ]
    for peer in peers:
        peer.run(2, arguments.prompt, 8)
    rows: list[dict[str, object]] = []
    print("output tokens per second, prefill included; ratios to vllm")
    print("sequences " + " ".join(f"{peer.name:>17}" for peer in peers) + " ".join(f"{name:>17}" for name in OURS))
    for sequences in arguments.sequences:
        rounds = []
        for _ in range(arguments.repeats):
            cell = (sequences, arguments.prompt, arguments.tokens)
            rounds.append({peer.name: peer.run(*cell) for peer in peers})
        rates = {peer.name: round(median(each[peer.name] for each in rounds), 1) for peer in peers}
        ratios = {name: round(median(each[name] / each["vllm"] for each in rounds), 3) for name in OURS}
        shown = (*rates.values(), *ratios.values())
        print(f"{sequences:>9} " + " ".join(f"{value:>17}" for value in shown), flush=True)
        rows.append(
            {
                "sequences": sequences,
                "prompt": arguments.prompt,
                "tokens": arguments.tokens,
                "tokens_per_second": rates,
                "ratios": ratios,
                "rounds": [{name: round(rate, 1) for name, rate in each.items()} for each in rounds],
                "configurations": {peer.name: peer.about for peer in peers} | {"vllm_environment": sorted(settings)},
            }
        )
    for peer in peers:
        peer.close()
    print(f"written to {append('engine_vs_vllm', rows)}")


if __name__ == "__main__":
    main()
