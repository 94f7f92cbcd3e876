"""Moves sessions between two running servers: does one token differ, how long is the gap, how many bytes go over?

Two real `ghostkv serve` processes. Under load: `--sessions` clients read answers from the first under every policy,
greedy and seeded, and while they read all is handed over to the second; compared with the answers of a server that
nobody moved. Alone: one answer at history lengths 256, 1,024 and 4,096, of a prompt and of what it generated itself,
that is kept (`full`), and in `segment`; the gap is the longest pause between two pieces of it after the order to move,
beside the mean time of a token before it. Appends to results/migration.jsonl; ends with 1 where a token differed or a
session was lost.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import re
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from durability import WORLD, Answer, differing, requests_of, undisturbed
from http_client import Arrivals, ServerProcess, ask, read_reply
from record import append

LENGTHS = (256, 1024, 4096)
_AFTER = 40  # tokens, until the order to move after a long prompt
_SHORT = 64  # tokens, of the prompt before a long answer


@contextmanager
def pair(model: str, options: Sequence[str]) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """The server that is left, and the one that takes over."""
    with tempfile.TemporaryDirectory() as folder:
        secret = Path(folder) / "secret"
        secret.write_bytes(random.randbytes(16).hex().encode())
        common = [*options, "--capsule-secret-file", str(secret), "--drain-timeout", "600"]
        with (
            ServerProcess(model, [*common, "--store", str(Path(folder) / "there.db")]) as there,
            ServerProcess(
                model,
                [*common, "--store", str(Path(folder) / "here.db"), "--peer", f"http://127.0.0.1:{there.port}"],
            ) as here,
        ):
            yield here, there


async def move(here: ServerProcess, there: ServerProcess) -> dict[str, Any]:
    """Give the order, and wait until every session has gone or was refused."""
    body = {"to": f"http://127.0.0.1:{there.port}"}
    reply = await ask(here.port, "POST", "/v1/admin/drain", body)
    assert reply is not None and reply.status == 202, reply
    while True:
        shown = await ask(here.port, "GET", "/v1/admin/drain")
        assert shown is not None
        told: dict[str, Any] = json.loads(shown.body)
        if not told["left"]:
            return told
        await asyncio.sleep(0.1)


async def stream(server: ServerProcess, session: str, request: dict[str, Any], arrivals: Arrivals) -> Answer:
    """One answer, read to its end."""
    await ask(server.port, "POST", "/v1/sessions", {"id": session})
    asked = request | {"ghostkv": {"session": session, **request["ghostkv"]}}
    await ask(server.port, "POST", "/v1/completions", asked, arrivals=arrivals)
    answer = Answer()
    answer.take(read_reply(b"".join(arrivals.parts)))
    return answer


async def under_load(arguments: argparse.Namespace, options: list[str]) -> dict[str, Any]:
    """The row."""
    chance = random.Random(arguments.seed)
    with ServerProcess(arguments.model, options) as calm:
        requests = requests_of(calm.name, chance, 12, arguments.tokens)
        expected = await undisturbed(calm.port, requests)
    divergent, lost = 0, list[str]()
    with pair(arguments.model, options) as (here, there):
        numbers = [chance.randrange(len(requests)) for _ in range(arguments.sessions)]
        arrivals = [Arrivals() for _ in numbers]
        streams = [
            asyncio.create_task(stream(here, f"s{i}", requests[number], arrivals[i]))
            for i, number in enumerate(numbers)
        ]
        await until(lambda: min(len(each.said) for each in arrivals) > 3)
        print("moving", file=sys.stderr, flush=True)
        told = await move(here, there)
        for number, answer in zip(numbers, await asyncio.gather(*streams, return_exceptions=True), strict=True):
            if isinstance(answer, BaseException) or not answer.complete:
                lost.append(repr(answer)[:200])
            else:
                divergent += differing(answer, expected[number])
    return {
        "kind": "load",
        "sessions": arguments.sessions,
        "moved": len(told["moved"]),
        "moved_while_answering": sum(each["running"] for each in told["moved"]),
        "stayed": told["failed"],
        "lost": lost,
        "divergent_tokens": divergent,
        "capsule_bytes_median": statistics.median(each["bytes"] for each in told["moved"]),
    }


async def alone(
    arguments: argparse.Namespace, options: list[str], residency: str, prompt: int, generated: int
) -> dict[str, Any]:
    """The row: one answer, moved when at least so many tokens are generated after a prompt of so many."""
    with pair(arguments.model, options) as (here, there):
        counted = await ask(here.port, "POST", "/tokenize", {"model": here.name, "prompt": "".join(WORLD) * 200})
        assert counted is not None
        ids = json.loads(counted.body)["tokens"][:prompt]
        request = {
            "model": here.name,
            "prompt": ids,
            "max_tokens": generated + arguments.tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "logprobs": 1,
            "stream": True,
            "ghostkv": {"residency": residency},
        }
        arrivals = Arrivals()
        answer = asyncio.create_task(stream(here, "s", request, arrivals))
        await until(lambda: arrivals.events > generated)
        ordered, events = len(arrivals.said), arrivals.events
        told = await move(here, there)
        complete = (await answer).complete
        shown = await ask(there.port, "GET", "/v1/sessions/s")
        log = there.log
    pauses = [after - before for before, after in itertools.pairwise(arrivals.said)]
    segments = json.loads(shown.body)["segments"] if shown is not None else []
    prefilled = re.findall(r"prefilled_again=(\d+)", log)
    return {
        "kind": "alone",
        "residency": residency,
        "prompt": prompt,
        "generated": generated,
        "complete": complete,
        "gap_ms": round(1000 * max(pauses[ordered - 1 :]), 1),
        "token_ms_before": round(1000 * (arrivals.said[ordered - 1] - arrivals.said[0]) / events, 1),
        "at_token": told["moved"][0]["tokens"],
        "capsule_bytes": told["moved"][0]["bytes"],
        "kv_bytes": max((segment["live_kv_bytes"] for segment in segments), default=0),
        "prefilled_again": int(prefilled[-1]) if prefilled else None,
    }


async def until(condition: Any) -> None:
    """Look again and again."""
    while not condition():
        await asyncio.sleep(0.02)


async def measure(arguments: argparse.Namespace, options: list[str]) -> list[dict[str, Any]]:
    """All rows; each is printed as it comes."""
    rows: list[dict[str, Any]] = []

    def came(row: dict[str, Any]) -> None:
        name = arguments.model if "/" not in arguments.model else "small random model"
        rows.append({"model": name, **row})
        print(rows[-1], flush=True)

    came(await under_load(arguments, options))
    for residency, length in itertools.product(("full", "segment"), arguments.lengths):
        came(await alone(arguments, options, residency, length, _AFTER))
        came(await alone(arguments, options, residency, _SHORT, length))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--sessions", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=400, help="of an answer, at most; at least half of it")
    parser.add_argument("--lengths", type=int, nargs="*", default=LENGTHS, help="of the histories")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dry", action="store_true", help="record nothing")
    parser.add_argument("server", nargs="*", help="options of `ghostkv serve`, after --")
    arguments = parser.parse_args()
    options = ["--no-page", "--log-level", "info", *arguments.server]
    rows = asyncio.run(measure(arguments, options))
    if not arguments.dry:
        append("migration", rows)
    if any(row.get("lost") or row.get("divergent_tokens") or row.get("stayed") for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
