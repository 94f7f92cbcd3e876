"""Replicas on Ray, on this machine: one is killed under load, all are replaced, and their number follows the load.

Each client asks for one answer in a session of its own by one request, and never comes back: whatever happens to the
replicas, its stream must end whole. Compared with the answers of a plain server that nobody disturbed: every token,
every log-probability, all text. The store is a PostgreSQL server of the run's own. Appends to results/ray.jsonl; ends
with 1 where a stream broke, a session was lost or a token differed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from durability import Answer, Broken, differing, requests_of, undisturbed
from http_client import Arrivals, ServerProcess, ask
from ray_environment import VERSION, ray_python
from record import append

from ghostkv.config import cache_dir

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))


from databases import cluster

_REPLICA = "ray::ServeReplica:ghostkv-replicas:replica"
_PATIENCE_S = 1800.0  # for one stream


class RayService:
    """`ghostkv serve --ray`, with a Ray of its own."""

    def __init__(self, python: Path, store: str, options: Sequence[str]) -> None:
        self._command = [str(python), "-m", "ghostkv", "serve", "--ray", "--log-level", "warning", *options]
        # Ray gives its first process 30 s, which a busy machine may need more of.
        self._environment = {**os.environ, "GHOSTKV_STORE": store, "RAY_raylet_start_wait_time_s": "300"}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the service

    def __enter__(self) -> RayService:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(120)
        self._log.close()

    @property
    def log(self) -> str:
        """What it wrote to standard error."""
        self._log.seek(0)
        return self._log.read()

    def start(self, replicas: str) -> float:
        """Returns when they serve, with the seconds that took."""
        begun = time.perf_counter()
        command = [*self._command, "--replicas", replicas, "--port", str(self.port)]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._log, text=True, env=self._environment
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("serving at "):
                return time.perf_counter() - begun
        raise SystemExit(f"Ray did not start the replicas: {self.log}")

    async def deploy(self, replicas: str, *more: str) -> None:
        """Have others in place of those that run; returns when they serve."""
        command = [*self._command, "--replicas", replicas, "--port", str(self.port), *more]
        done = await asyncio.create_subprocess_exec(
            *command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=self._environment
        )
        _, said = await done.communicate()
        if done.returncode:
            raise SystemExit(f"the replicas were not replaced: {said.decode()[-4000:]}")

    def replicas(self) -> list[int]:
        """The processes of those that run."""
        listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
        rows = [line.split(None, 2) for line in listed.splitlines()]
        raylets = {row[0] for row in rows if int(row[1]) == self._process.pid and "/raylet/raylet " in row[2]}
        return [int(row[0]) for row in rows if row[1] in raylets and row[2].startswith(_REPLICA)]


@dataclass(slots=True)
class Stream:
    """One client."""

    answer: Answer = field(default_factory=Answer)
    arrivals: Arrivals = field(default_factory=Arrivals)
    error: str = ""

    @property
    def pause_s(self) -> float:
        """The longest between two pieces that say something."""
        return max((after - before for before, after in itertools.pairwise(self.arrivals.said)), default=0.0)

    async def run(self, port: int, session: str, request: dict[str, Any]) -> None:
        """Its session, its one request."""
        try:
            made = await ask(port, "POST", "/v1/sessions", {"id": session})
            if made is None or made.status != 201:
                raise Broken(f"no session: {made}")
            asked = request | {"ghostkv": {"session": session, **request["ghostkv"]}}
            async with asyncio.timeout(_PATIENCE_S):
                reply = await ask(port, "POST", "/v1/completions", asked, arrivals=self.arrivals)
            assert reply is not None
            if reply.status != 200 or not reply.whole:
                raise Broken(f"{reply.status}, whole: {reply.whole}: {reply.body[-300:]!r}")
            self.answer.take(reply)
        except (Broken, OSError, TimeoutError) as error:
            self.error = f"{session}: {error!r}"


async def lost(service: RayService, name: str, count: int) -> int:
    """Sessions that cannot be read whole afterwards, by whichever replica is asked."""
    found = 0
    for index in range(count):
        reply = await ask(service.port, "GET", f"/v1/sessions/{name}-{index}/stream?from=0")
        found += int(reply is None or reply.status != 200 or not reply.whole or b"[DONE]" not in reply.body)
    return found


async def during(
    service: RayService,
    name: str,
    requests: Sequence[dict[str, Any]],
    expected: Sequence[Answer],
    count: int,
    meanwhile: Callable[[list[Stream]], Awaitable[None]],
    *,
    again: bool = False,
) -> dict[str, Any]:
    """A row: what clients saw while something was done; `again`: new ones come until it is done."""
    streams: list[Stream] = []
    doing = asyncio.ensure_future(meanwhile(streams))
    waves = forgotten = wrong = 0
    while not waves or (again and not doing.done()):
        prefix = f"{re.sub('[^a-z0-9]', '-', name)}-{waves}"
        picked = [index % len(requests) for index in range(count)]
        streams += (new := [Stream() for _ in picked])
        await asyncio.gather(
            *(each.run(service.port, f"{prefix}-{i}", requests[picked[i]]) for i, each in enumerate(new))
        )
        wrong += sum(differing(each.answer, expected[at]) for each, at in zip(new, picked, strict=True))
        forgotten += await lost(service, prefix, count)
        waves += 1
    await doing
    pauses = sorted(each.pause_s for each in streams)
    return {
        "what": name,
        "streams": len(streams),
        "tokens": sum(len(each.answer.tokens) for each in streams),
        "broken_streams": sum(bool(each.error) for each in streams),
        "errors": [each.error for each in streams if each.error][:3],
        "lost_sessions": forgotten,
        "divergent_tokens": wrong,
        "pause_s_median": round(pauses[len(pauses) // 2], 2),
        "pause_s_max": round(pauses[-1], 2),
    }


@dataclass(frozen=True, slots=True)
class Part:
    """Something that is done to the replicas under load."""

    name: str
    meanwhile: Callable[[list[Stream]], Awaitable[None]]
    again: bool = False  # see `during`
    load: int = 1  # times the usual number of streams


def parts(service: RayService, chance: random.Random, enough: int) -> list[Part]:
    """All of them; the replica is killed when the streams have `enough` events."""

    async def nothing(_: list[Stream]) -> None:
        return

    async def kill(streams: list[Stream]) -> None:
        while sum(each.arrivals.events for each in streams) < enough:
            await asyncio.sleep(0.05)
        victim = chance.choice(service.replicas())
        print(f"kill -9 {victim}, a replica", file=sys.stderr, flush=True)
        os.kill(victim, signal.SIGKILL)

    async def replaced(_: list[Stream]) -> None:
        before = set(service.replicas())
        await service.deploy("2", "--max-wait", "11")
        assert not before & set(service.replicas()), "a replica was not replaced"

    async def fewer_and_more(_: list[Stream]) -> None:
        for number in ("1", "2", "1"):
            await service.deploy(number)
            assert len(service.replicas()) == int(number), service.replicas()

    async def by_load(_: list[Stream]) -> None:
        await service.deploy("1")
        await service.deploy("1:2")
        for number in (2, 1):  # more while there is much to do, fewer when nothing is
            while len(service.replicas()) != number:
                await asyncio.sleep(0.5)
            print(f"{number} by load", file=sys.stderr, flush=True)

    return [
        Part("undisturbed", nothing),
        Part("one of 2 replicas killed", kill),
        Part("rolling restart", replaced, again=True),
        Part("2 to 1 to 2 to 1 replicas", fewer_and_more, again=True),
        Part("1 to 2 to 1 replicas by load", by_load, load=2),
    ]


async def campaign(arguments: argparse.Namespace, python: Path, store: str) -> list[dict[str, Any]]:
    """All of it; gives the rows."""
    chance = random.Random(arguments.seed)
    engine = ["--model", arguments.model, "--threads", "1", *arguments.server]
    with ServerProcess(arguments.model, ["--no-page", "--threads", "1", *arguments.server]) as calm:
        requests = requests_of(calm.name, chance, 12, arguments.tokens)
        expected = await undisturbed(calm.port, requests)
    rows = []
    with RayService(python, store, engine) as service:
        started = service.start("2")
        for part in parts(service, chance, arguments.streams * arguments.tokens // 5):
            if arguments.only and arguments.only not in part.name:
                continue
            count = part.load * arguments.streams
            row = await during(service, part.name, requests, expected, count, part.meanwhile, again=part.again)
            print(row, flush=True)
            rows.append(row)
        trouble = sorted(set(re.findall(r"(?:ERROR|CRITICAL) .*", service.log)))
        print(*trouble[:20], sep="\n", file=sys.stderr)
    common = {
        "model": arguments.model if "/" not in arguments.model else "small random model",
        "ray": VERSION,
        "start_s": round(started, 1),
    }
    return [row | common for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=500, help="of an answer, at most; at least half of it")
    parser.add_argument("--only", default="", help="the parts with this in their name")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dry", action="store_true", help="record nothing")
    parser.add_argument("server", nargs="*", help="options of `ghostkv serve`, after --")
    arguments = parser.parse_args()
    python = ray_python(cache_dir() / "peers" / "ray")
    with cluster() as database:
        rows = asyncio.run(campaign(arguments, python, database.database()))
    if not arguments.dry:
        append("ray", rows)
    if any(row["errors"] or row["lost_sessions"] or row["divergent_tokens"] for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
