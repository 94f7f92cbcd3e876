"""Thousands of requests of every kind, half of them left at random moments: does a server come back to where it was?

64 at a time against a real `ghostkv serve` process, by default over SmolLM2 with a KV budget of 16 MiB (`--model` takes
another). What is checked: every request that its client waited for got exactly one terminal answer; the server counts
as many replies as were asked for; KV blocks, sockets, answers, tasks and descriptors are then those of the idle
server after a warm-up; RSS at most `--rss-mib` more; nothing was logged as an error. Appends to results/soak.jsonl.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from http_client import Reply, ServerProcess, ask
from record import append
from soak_requests import KINDS, Request, outcome

IDLE_S = 60.0  # within which everything must be back
ZERO = (  # at idle
    "ghostkv_live_blocks",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "ghostkv_answers_running",
    "ghostkv_waiting_answers",
    "ghostkv_http_streams_open",
)


@dataclass(frozen=True, slots=True)
class Idle:
    """What an idle server holds."""

    tasks: list[str]
    descriptors: int
    rss_mib: float
    metrics: dict[str, float]
    scrapes: int  # with this one


class Soak:
    """The clients of one server."""

    def __init__(self, server: ServerProcess, seed: int) -> None:
        self.outcomes: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.sent = 0  # requests, those included that make and delete sessions
        self.resets = 0  # of those, left with a reset
        self.rss_mib: list[float] = []  # at every tenth of the run
        self._server = server
        self._chance = random.Random(seed)
        self._usual: dict[str, float] = {}  # seconds that a kind takes

    async def run(self, count: int, width: int) -> None:
        """So many requests, `width` at a time."""
        left = iter(range(count))

        async def client() -> None:
            for number in left:
                await self._one()
                if number % max(1, count // 10) == 0:
                    self.rss_mib.append(round(self._server.resident_bytes() / 2**20, 1))

        await asyncio.gather(*(client() for _ in range(width)))

    async def _one(self) -> None:
        request = self._chance.choice(KINDS)(self._chance, self._server.name)
        self.kinds[request.kind] += 1
        if request.session:
            await self._beside("POST", "/v1/sessions", {"id": request.session}, {200, 201})
        after = self._moment(request)
        began = time.perf_counter()
        self.sent += 1
        reset = self._chance.random() < 0.5
        reply = await ask(self._server.port, "POST", request.path, request.body, leave_after=after, reset=reset)
        self.resets += reset and reply is None
        self._judge(request, reply, time.perf_counter() - began)
        if request.session:
            await self._beside("DELETE", f"/v1/sessions/{request.session}", None, {200})

    def _moment(self, request: Request) -> float | None:
        """When to leave, if at all: any time of what such a request takes, so often that in the end half have left."""
        left, all_of_them = self.outcomes["left"], self.outcomes.total()
        if self._chance.random() > (0.85 if left <= all_of_them / 2 else 0.15):
            return None
        return self._chance.uniform(0, self._usual.get(request.kind, 0.5))

    def _judge(self, request: Request, reply: Reply | None, seconds: float) -> None:
        if reply is None:
            self.outcomes["left"] += 1
            return
        usual = self._usual.setdefault(request.kind, seconds)
        self._usual[request.kind] = 0.9 * usual + 0.1 * seconds
        try:
            self.outcomes[outcome(request, reply)] += 1
        except ValueError as wrong:
            self.outcomes["wrong"] += 1
            self.wrong.append(f"{request.kind}: {wrong}")

    async def _beside(self, method: str, path: str, body: Any, right: set[int]) -> None:
        self.sent += 1
        reply = await ask(self._server.port, method, path, body)
        if reply is None or reply.status not in right:
            self.wrong.append(f"{method} {path}: {reply}")


def idle(server: ServerProcess, like: Idle | None = None) -> Idle:
    """What the server holds once it is idle and as it was before, at most IDLE_S from now."""
    end = time.perf_counter() + IDLE_S
    while True:
        metrics = server.metrics()
        found = Idle(server.tasks(), server.descriptors(), server.resident_bytes() / 2**20, metrics, server.scrapes)
        quiet = not any(metrics[name] for name in ZERO) and metrics["ghostkv_http_requests_open"] == 1  # the scrape
        if (quiet and (like is None or not _more(like, found))) or time.perf_counter() > end:
            return found
        time.sleep(0.5)


def _more(before: Idle, after: Idle) -> list[str]:
    """Tasks and descriptors that are there now; some that a start has left over may have gone."""
    wrong = []
    if more := Counter(after.tasks) - Counter(before.tasks):
        wrong.append(f"tasks: {dict(more)} more")
    if after.descriptors > before.descriptors:
        wrong.append(f"descriptors: {before.descriptors}, then {after.descriptors}")
    return wrong


def compare(before: Idle, after: Idle, soak: Soak, rss_mib: float) -> list[str]:
    """What is not as it was. A request whose socket was reset may not have been read, so that nothing counted it."""
    wrong = [f"{name} is {after.metrics[name]:g}" for name in ZERO if after.metrics[name]]
    if (still := after.metrics["ghostkv_http_requests_open"]) != 1:
        wrong.append(f"{still - 1:g} requests are open")
    wrong += _more(before, after)
    if after.rss_mib > before.rss_mib + rss_mib:
        wrong.append(f"RSS: {before.rss_mib:.0f} MiB, then {after.rss_mib:.0f}")
    counted = after.metrics["ghostkv_http_seconds_count"] - before.metrics["ghostkv_http_seconds_count"]
    counted -= after.scrapes - before.scrapes
    if not soak.sent - soak.resets <= counted <= soak.sent:
        wrong.append(f"{soak.sent} requests were sent and {soak.resets} of them reset, but {counted:g} replies counted")
    return wrong


def main() -> int:
    """0 where everything held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--kv-budget", default="16MiB")
    parser.add_argument("--rss-mib", type=float, default=64, help="most that RSS may grow after the warm-up")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dry", action="store_true", help="record nothing")
    parser.add_argument("serve_options", nargs="*", help="more options for ghostkv serve, after --")
    arguments = parser.parse_args()
    options = ["--kv-budget", arguments.kv_budget, "--max-waiting", "100", "--session-grace", "1"]
    options += ["--log-level", "warning", *arguments.serve_options]
    with ServerProcess(arguments.model, options) as server:
        warm = Soak(server, arguments.seed + 1)
        asyncio.run(warm.run(max(arguments.width, arguments.requests // 10), arguments.width))
        before = idle(server)
        soak = Soak(server, arguments.seed)
        began = time.perf_counter()
        asyncio.run(soak.run(arguments.requests, arguments.width))
        seconds = time.perf_counter() - began
        after = idle(server, before)
        wrong = [*warm.wrong, *soak.wrong, *compare(before, after, soak, arguments.rss_mib)]
        code = server.stop()
        if code or server.log:
            wrong.append(f"the server ended with {code} and said: {server.log[-2000:]}")
    row = report(arguments, soak, (before, after), seconds, wrong)
    if not arguments.dry:
        print(f"written to {append('soak', [row])}")
    return 1 if wrong else 0


def report(
    arguments: argparse.Namespace, soak: Soak, idles: tuple[Idle, Idle], seconds: float, wrong: list[str]
) -> dict[str, object]:
    """Print it; the row to record."""
    before, after = idles
    generated = after.metrics["vllm:generation_tokens_total"] - before.metrics["vllm:generation_tokens_total"]
    waits = after.metrics["ghostkv_waits_for_memory_total"] - before.metrics["ghostkv_waits_for_memory_total"]
    print(f"{arguments.requests} requests, {arguments.width} at a time, in {seconds:.0f} s; {generated:.0f} tokens")
    print("kinds:", dict(sorted(soak.kinds.items())))
    print("outcomes:", dict(sorted(soak.outcomes.items())))
    for name, found in (("idle before", before), ("idle after", after)):
        print(f"{name}: {len(found.tasks)} tasks, {found.descriptors} descriptors, RSS {found.rss_mib:.1f} MiB")
    print("RSS at every tenth:", soak.rss_mib)
    print(f"blocks referenced {after.metrics['ghostkv_live_blocks']:.0f}; waited for memory: {waits:.0f}")
    print("wrong:", wrong or "nothing")
    return {
        "model": arguments.model,
        "kv_budget": arguments.kv_budget,
        "requests": arguments.requests,
        "width": arguments.width,
        "seconds": seconds,
        "generated_tokens": generated,
        "waits_for_memory": waits,
        "kinds": dict(soak.kinds),
        "outcomes": dict(soak.outcomes),
        "tasks": [len(before.tasks), len(after.tasks)],
        "descriptors": [before.descriptors, after.descriptors],
        "rss_mib": [before.rss_mib, after.rss_mib],
        "rss_mib_during": soak.rss_mib,
        "rss_tolerance_mib": arguments.rss_mib,
        "live_blocks": after.metrics["ghostkv_live_blocks"],
        "wrong": wrong,
    }


if __name__ == "__main__":
    raise SystemExit(main())
