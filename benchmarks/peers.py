"""Engines that take turns on one workload: so many sequences, prompt tokens and generated tokens of each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any, Protocol

from child import hear, tell
from llama_environment import SDIST, LlamaCpp

WORKERS = Path(__file__).parent / "workers"


class Peer(Protocol):
    """One engine with one set of weights."""

    name: str
    about: dict[str, Any]
    """What it is, for the record."""

    def run(self, sequences: int, prompt: int, tokens: int) -> float:
        """Generated tokens per second over the whole run, prefill included."""
        ...

    def close(self) -> None:
        """End its processes."""
        ...


class Worker:
    """A worker and its children in a process group of their own, stopped while it is not its turn (vLLM's poll)."""

    def __init__(
        self, name: str, python: Path, script: str, *arguments: str, environment: dict[str, str] | None = None
    ) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [str(python), str(WORKERS / script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=os.environ | (environment or {}),
        )
        self.about: dict[str, Any] = hear(self._process, name)["ready"]
        self._signal(signal.SIGSTOP)

    def run(self, sequences: int, prompt: int, tokens: int) -> float:
        """See Peer."""
        self._signal(signal.SIGCONT)
        tell(self._process, {"sequences": sequences, "prompt": prompt, "tokens": tokens})
        answer = hear(self._process, self.name)
        self._signal(signal.SIGSTOP)
        if answer["generated"] != sequences * tokens:
            raise SystemExit(f"{self.name} generated {answer['generated']} tokens, not {sequences * tokens}")
        return float(answer["generated"] / answer["seconds"])

    def close(self) -> None:
        """See Peer."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        os.killpg(self._process.pid, number)


class LlamaBench:
    """llama.cpp through its own batched-bench, a process for each run, whose first, small workload warms it up.

    That tool draws every id at random and samples none, so it is spared what sampling costs. The KV pool is divided
    among the sequences beforehand.
    """

    def __init__(self, weights: str, programs: LlamaCpp, gguf: Path, kv_tokens: int, origin: str) -> None:
        self.name = f"llama.cpp {weights}"
        threads = str(len(os.sched_getaffinity(0)))
        settings = [
            "-c",
            str(kv_tokens),
            "--no-kv-unified",
            "-ctk",
            "f16",
            "-ctv",
            "f16",
            "-t",
            threads,
            "--fit",
            "off",
        ]
        self._command = [str(programs.batched_bench), "-m", str(gguf), *settings, "--output-format", "jsonl"]
        about = {"engine": "llama.cpp", "source": SDIST, "program": "llama-batched-bench", "weights": weights}
        self.about: dict[str, Any] = {**about, "weights_from": origin, "settings": " ".join(settings)}

    def run(self, sequences: int, prompt: int, tokens: int) -> float:
        """See Peer."""
        sizes = ["-npp", str(prompt), "-ntg", str(tokens), "-npl", f"2,{sequences}"]
        done = subprocess.run([*self._command, *sizes], capture_output=True, text=True, check=False)
        rows = [json.loads(line) for line in (done.stdout + done.stderr).splitlines() if line.startswith('{"n_kv_max"')]
        if len(rows) != 2 or rows[1]["pl"] != sequences:
            raise SystemExit(f"{self.name} did not run {sequences} sequences: {done.stderr[-2000:]}")
        return float(sequences * tokens / (rows[1]["t_pp"] + rows[1]["t_tg"]))

    def close(self) -> None:
        """Nothing runs between two runs."""
