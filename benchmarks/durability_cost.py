"""What two promises cost: a store, and the deterministic mode.

`store`: the same streams in sessions of a server with a store and of a server without, by turns. `deterministic`:
the same streams on one server, asked with `deterministic` and with the `auto` that they would get otherwise, by turns.
Each round asks for `--streams` answers at once. Compared are CPU seconds of the server process per token (what other
programs take does not show in them) and tokens per second. Appends to results/durability_cost.jsonl.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from http_client import ServerProcess, ask
from record import append


def cpu_seconds(server: ServerProcess) -> float:
    """User and system time of the process, all threads."""
    fields = Path(f"/proc/{server.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def one_round(
    server: ServerProcess, number: int, streams: int, tokens: int, promise: dict[str, Any]
) -> dict[str, float]:
    """Milliseconds of CPU per token, and tokens per second; `promise`: what each request asks of ghostkv."""
    names = [f"r{number}-{stream}" for stream in range(streams)]
    for name in names:
        await ask(server.port, "POST", "/v1/sessions", {"id": name})

    async def stream(name: str) -> None:
        body: dict[str, Any] = {
            "model": server.name,
            "prompt": f"Chapter {len(name)}. The keeper of the lighthouse wrote:",
            "max_tokens": tokens,
            "ignore_eos": True,
            "temperature": 0.8,
            "seed": number,
            "stream": True,
            "ghostkv": {"session": name, **promise},
        }
        reply = await ask(server.port, "POST", "/v1/completions", body)
        assert reply is not None and reply.status == 200 and reply.whole and '"error"' not in reply.events[-2], reply

    begun, spent = time.perf_counter(), cpu_seconds(server)
    await asyncio.gather(*map(stream, names))
    seconds, spent = time.perf_counter() - begun, cpu_seconds(server) - spent
    for name in names:
        await ask(server.port, "DELETE", f"/v1/sessions/{name}")
    return {"cpu_ms_per_token": 1000 * spent / (streams * tokens), "tokens_per_s": streams * tokens / seconds}


async def by_turns(
    arguments: argparse.Namespace, sides: dict[str, tuple[ServerProcess, dict[str, Any]]]
) -> dict[str, Any]:
    """The row of two sides, each a server and what its requests ask for; ratios are the second's over the first's."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for number in range(-1, arguments.rounds):  # the first warms up
        for name in list(sides) if number % 2 else list(sides)[::-1]:
            server, promise = sides[name]
            measured = await one_round(server, number, arguments.streams, arguments.tokens, promise)
            print(f"round {number}, {name}: {measured}", file=sys.stderr, flush=True)
            if number >= 0:
                found[name].append(measured)
    pairs = list(zip(*found.values(), strict=True))
    row: dict[str, Any] = dict(vars(arguments))
    for measure in ("cpu_ms_per_token", "tokens_per_s"):
        for name, rounds in found.items():
            row[f"{name}_{measure}"] = round(statistics.median(each[measure] for each in rounds), 4)
        row[f"{measure}_ratio"] = round(statistics.median(two[measure] / one[measure] for one, two in pairs), 4)
    return row


async def compare(arguments: argparse.Namespace, options: list[str]) -> dict[str, Any]:
    """The row of what was asked for."""
    with tempfile.TemporaryDirectory() as folder, ServerProcess(arguments.model, options) as plain:
        if arguments.of == "deterministic":
            sides = {"auto": (plain, {"residency": "auto"}), "deterministic": (plain, {"deterministic": True})}
            return await by_turns(arguments, sides)
        kept = [*options, "--store", str(Path(folder) / "store.db")]
        with ServerProcess(arguments.model, kept) as stored:
            promise = {"residency": arguments.residency}
            return await by_turns(arguments, {"plain": (plain, promise), "stored": (stored, promise)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("of", choices=("store", "deterministic"))
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--residency", default="segment", help="of the answers beside and in a store")
    parser.add_argument("--dry", action="store_true", help="record nothing")
    parser.add_argument("server", nargs="*", help="options of `ghostkv serve`, after --")
    arguments = parser.parse_args()
    row = asyncio.run(compare(arguments, ["--no-page", "--log-level", "warning", *arguments.server]))
    print(row)
    if not arguments.dry:
        append("durability_cost", [row])


if __name__ == "__main__":
    main()
