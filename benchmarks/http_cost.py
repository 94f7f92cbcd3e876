"""What HTTP and server-sent events cost: 64 streams from `ghostkv serve`, beside the same load on the engine alone.

All are processes of their own with the same model, pool, prompt length and output length, and take turns in one run;
the client is this process, on the same machine, and parses every event. The engine runs twice: on its process's main
thread, as `bench engine` has it, and on another, as the server has it. That is not the same: with a second OpenMP pool
in the process idle compute threads spin less, which matters as soon as anything else wants the cores.

Printed are output tokens per second, prefill included, their ratios in each round, and processor seconds: of the engine
process; of the server's event loop and of all else in the server (engine, its compute threads, parsing of requests); of
the client. Appends to results/http_cost.jsonl.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from child import hear, tell
from http_client import ServerProcess
from record import append

from ghostkv.bench.engine import decode
from ghostkv.config import EngineConfig
from ghostkv.model.load import load_model, pool_bytes
from ghostkv.model.pull import resolve_model
from ghostkv.step import BLOCK_TOKENS

LEAST_RATIO = 0.8
_TICK = os.sysconf("SC_CLK_TCK")
_ENGINE = "the engine"
_ORDINARY = (1000, 48000)  # ids that are no control tokens


@dataclass(frozen=True, slots=True)
class Load:
    """What every round runs: `prompt` tokens in, exactly `tokens` out, greedy, all at once."""

    streams: int = 64
    prompt: int = 64
    tokens: int = 128
    seed: int = 0  # of the prompts: those of no two rounds share a block

    @property
    def prompts(self) -> list[list[int]]:
        size = (self.streams, self.prompt)
        rows: list[list[int]] = np.random.default_rng(self.seed).integers(*_ORDINARY, size).tolist()
        return rows


class Engine:
    """The engine alone, in a process of its own; `apart`: on a thread that is not the main one."""

    def __init__(self, model: Path, config: EngineConfig, *, apart: bool) -> None:
        command = [sys.executable, __file__, "--engine", str(model), json.dumps(asdict(config)), str(int(apart))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        hear(self._process, _ENGINE)

    def run(self, load: Load) -> dict[str, float]:
        """Tokens per second, and processor seconds."""
        tell(self._process, asdict(load))
        return hear(self._process, _ENGINE)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()


def engine_process(model: Path, config: EngineConfig, *, apart: bool) -> None:
    """The other end of `Engine`."""
    loaded = load_model(model, config)

    def run(load: Load) -> dict[str, float]:
        wall, cpu = time.perf_counter(), time.process_time()
        generated = sum(len(d.tokens) for d in decode(loaded, config, loaded.runner, load.prompts, load.tokens))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        assert generated == load.streams * load.tokens
        return {"tokens_per_second": generated / wall, "engine_cpu_s": cpu}

    print("{}", flush=True)
    with ThreadPoolExecutor(1) as thread:
        for line in sys.stdin:
            load = Load(**json.loads(line))
            print(json.dumps(thread.submit(run, load).result() if apart else run(load)), flush=True)


class Server(ServerProcess):
    """`ghostkv serve`."""

    def __init__(self, model: Path, config: EngineConfig, options: Sequence[str]) -> None:
        super().__init__(str(model), ("--kv-budget", str(config.kv_budget), "--dtype", config.dtype, *options))

    def run(self, load: Load) -> dict[str, float]:
        """Tokens per second as the client sees them, and processor seconds."""
        loop, others, client = self._loop_s(), self._all_s() - self._loop_s(), time.process_time()
        wall = time.perf_counter()
        generated = asyncio.run(self._streams(load))
        wall = time.perf_counter() - wall
        assert generated == load.streams * load.tokens, generated
        return {
            "tokens_per_second": generated / wall,
            "loop_cpu_s": self._loop_s() - loop,
            "engine_cpu_s": self._all_s() - self._loop_s() - others,
            "client_cpu_s": time.process_time() - client,
        }

    async def _streams(self, load: Load) -> int:
        return sum(await asyncio.gather(*(self._stream(prompt, load.tokens) for prompt in load.prompts)))

    async def _stream(self, prompt: list[int], tokens: int) -> int:
        """Output tokens of one stream: as many as its usage says, each in an event of its own or joined to others."""
        asked = {
            "model": self.name,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ghostkv": {"residency": "full"},
        }
        body = json.dumps(asked).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"{head}content-type: application/json\r\nconnection: close\r\n\r\n".encode() + body)
        generated = 0
        async for line in reader:
            if line.startswith(b"data: {"):
                event: dict[str, Any] = json.loads(line[6:])
                if "error" in event:
                    raise SystemExit(f"the server answered {event}")
                generated = (event["usage"] or {}).get("completion_tokens", generated)
        writer.close()
        return generated

    def _all_s(self) -> float:
        return _seconds(Path(f"/proc/{self.pid}/stat"))

    def _loop_s(self) -> float:
        """Of the main thread, on which the event loop runs."""
        return _seconds(Path(f"/proc/{self._process.pid}/task/{self.pid}/stat"))


def _seconds(stat: Path) -> float:
    """Processor seconds, user and system."""
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dry", action="store_true", help="record nothing")
    parser.add_argument("serve_options", nargs="*", help="more options for ghostkv serve, after --")
    arguments = parser.parse_args()

    model = resolve_model("smollm2", print)
    load = Load(arguments.streams, tokens=arguments.tokens)
    config = EngineConfig()
    # Twice what one round holds, so that no round has to evict what an earlier one left behind.
    blocks = 2 * load.streams * -(-(load.prompt + load.tokens) // BLOCK_TOKENS)
    config = EngineConfig(kv_budget=pool_bytes(model, config, blocks))
    rounds: list[dict[str, dict[str, float]]] = []
    with ExitStack() as stack:
        runs = {
            "bench": stack.enter_context(Engine(model, config, apart=False)).run,
            "engine": stack.enter_context(Engine(model, config, apart=True)).run,
            "http": stack.enter_context(Server(model, config, arguments.serve_options)).run,
        }
        for run in runs.values():
            run(Load(streams=2, tokens=8, seed=1))  # compiles, and faults pages in
        for number in range(arguments.rounds):
            seeded = Load(load.streams, load.prompt, load.tokens, seed=2 + number)
            rounds.append({name: run(seeded) for name, run in runs.items()})
            _print(rounds[-1])
    ratios = {name: median(_ratio(each, name) for each in rounds) for name in ("bench", "engine")}
    held = "held" if ratios["bench"] >= LEAST_RATIO else "missed"
    print(f"median ratios {ratios['bench']:.3f} to bench engine, {ratios['engine']:.3f} to the engine on a thread")
    print(f"target, at least {LEAST_RATIO} of bench engine: {held}")
    row: dict[str, object] = {"load": asdict(load), "ratios": ratios, "rounds": rounds, "config": asdict(config)}
    if not arguments.dry:
        print(f"written to {append('http_cost', [row])}")


def _ratio(cell: dict[str, dict[str, float]], name: str) -> float:
    return cell["http"]["tokens_per_second"] / cell[name]["tokens_per_second"]


def _print(cell: dict[str, dict[str, float]]) -> None:
    for name, found in cell.items():
        print(
            f"{name:>6} {found['tokens_per_second']:7.1f} tokens/s, engine {found['engine_cpu_s']:6.2f} CPU s", end="  "
        )
    print(f"event loop {cell['http']['loop_cpu_s']:5.2f}, client {cell['http']['client_cpu_s']:5.2f} CPU s", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--engine"]:
        engine_process(Path(sys.argv[2]), EngineConfig(**json.loads(sys.argv[3])), apart=sys.argv[4] == "1")
    else:
        main()
