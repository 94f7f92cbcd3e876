"""Kills a server again and again, at any moment, while clients read sessions: is one lost, does one token differ?

A real `ghostkv serve --store` process, by default over SmolLM2, and `--sessions` clients. Each asks for an answer in a
session of its own, and when the connection breaks it comes back and reads on from where it was, or asks again where
nothing had been said. Kills are SIGKILL at random moments: while answers run, while the store is written, while the
server starts. Compared with the answers of a server that nobody killed: every token, every log-probability, all text.
Appends to results/durability.jsonl; ends with 1 where a session was lost or a token differed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from http_client import Arrivals, Reply, ServerProcess, ask, read_reply
from record import append

PATIENCE_S = 300.0  # a session that is not complete so long after the last kill is lost
WORLD = (
    "The lighthouse keeper wrote down what he saw each night. ",
    "A history of the port of Lisbon in fourteen ships. ",
    "How to repair a clock, for those who never did. ",
    "The captain of the Halcyon keeps the code AX-12 in a drawer. ",
)


@dataclass(slots=True)
class Answer:
    """What a client has of one answer, over all its connections."""

    tokens: list[tuple[str, float]] = field(default_factory=list)
    text: str = ""
    last: int = -1  # index of its last token in the session's output
    complete: bool = False
    joins: int = 0

    def take(self, reply: Reply) -> None:
        """The frames of one connection, the last of which may be torn."""
        for block in reply.body.decode(errors="replace").split("\n\n")[:-1]:
            lines = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
            data = lines.get("data", "")
            if data == "[DONE]":
                self.complete = True
            elif data:
                self._frame(int(lines.get("id", -1)), json.loads(data))

    def _frame(self, at: int, body: Any) -> None:
        if "error" in body:
            raise Broken(body["error"]["message"])
        for choice in body["choices"]:
            said = choice["logprobs"] or {"tokens": [], "token_logprobs": []}
            if said["tokens"] and at >= 0 and at != self.last + len(said["tokens"]):
                raise Broken(f"token {self.last} is followed by the end of {at}")
            self.tokens += zip(said["tokens"], said["token_logprobs"], strict=True)
            self.text += choice["text"]
            self.last += len(said["tokens"])


class Broken(Exception):
    """A stream that says what it must not."""


@dataclass(slots=True)
class Place:
    """Where the server is, while it is anywhere."""

    port: int = 0
    up: asyncio.Event = field(default_factory=asyncio.Event)
    kills: int = 0


@dataclass(slots=True)
class Client:
    """One session after another, and what came of them."""

    place: Place
    requests: Sequence[dict[str, Any]]
    expected: Sequence[Answer]
    divergent: int = 0  # tokens
    lost: list[str] = field(default_factory=list)
    answers: int = 0
    joins: int = 0
    again: list[int] = field(default_factory=list)  # tokens that it had and the server generates once more

    async def run(self, name: int, chance: random.Random, enough: asyncio.Event) -> None:
        """Until it is told that it is enough."""
        while not enough.is_set():
            number = chance.randrange(len(self.requests))
            session = f"s{name}-{self.answers}"
            answer = Answer()
            whole = asyncio.create_task(self._whole(session, self.requests[number], answer))
            told = asyncio.create_task(enough.wait())
            await asyncio.wait({whole, told}, return_when=asyncio.FIRST_COMPLETED)  # kills take time from no answer
            told.cancel()
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await whole
            except (Broken, TimeoutError) as error:
                self.lost.append(f"{session} ({number}) at {answer.last}: {error!r}")
            self.answers += 1
            self.joins += answer.joins
            self.divergent += differing(answer, self.expected[number])

    async def _whole(self, session: str, request: dict[str, Any], answer: Answer) -> None:
        while not answer.complete:
            await self.place.up.wait()
            try:
                await self._once(session, request, answer)
            except OSError:
                await asyncio.sleep(0.05)

    async def _once(self, session: str, request: dict[str, Any], answer: Answer) -> None:
        """Ask, or where that has been done read on, until the end or until the connection breaks."""
        port, path = self.place.port, f"/v1/sessions/{session}"
        shown = await ask(port, "GET", path)
        if shown is None or not shown.whole:
            return
        if shown.status == 404 and answer.joins == 0:
            await ask(port, "POST", "/v1/sessions", {"id": session})
            return
        if shown.status != 200:
            raise Broken(shown.body.decode())
        known = json.loads(shown.body)["turns"]
        if not known and answer.tokens:
            raise Broken("what was said is forgotten")
        arrivals = Arrivals()
        try:
            if known:
                answer.joins += 1
                if request["ghostkv"]["residency"] == "segment":
                    self.again.append(answer.last + 1 - known[-1]["completion_tokens"])
                await ask(port, "GET", f"{path}/stream?from={answer.last + 1}", arrivals=arrivals)
            else:
                asked = request | {"ghostkv": {"session": session, **request["ghostkv"]}}
                await ask(port, "POST", "/v1/completions", asked, arrivals=arrivals)
        finally:
            if raw := b"".join(arrivals.parts):
                reply = read_reply(raw)
                if reply.status != 200 and reply.whole:
                    raise Broken(reply.body.decode())
                answer.take(reply)


def differing(answer: Answer, expected: Answer) -> int:
    """Tokens that are not as they should be; text that differs counts as one."""
    pairs = zip(answer.tokens, expected.tokens, strict=False)
    wrong = sum(1 for one, other in pairs if one != other)
    if not answer.complete:  # it is counted as lost
        return wrong or int(not expected.text.startswith(answer.text))
    return wrong + abs(len(answer.tokens) - len(expected.tokens)) or int(answer.text != expected.text)


def requests_of(model: str, chance: random.Random, count: int, most: int) -> list[dict[str, Any]]:
    """Under every policy, greedy and seeded, with and without penalties."""
    made = []
    for number in range(count):
        residency = ("segment", "full", "auto", "sink_window")[number % 4]
        made.append(
            {
                "model": model,
                "prompt": "".join(chance.choices(WORLD, k=3)),
                "max_tokens": chance.randrange(most // 2, most),
                "temperature": 0.0 if number % 3 == 0 else 0.9,
                "seed": chance.randrange(2**31),
                "frequency_penalty": 0.4 if number % 5 == 0 else 0.0,
                "ignore_eos": True,
                "logprobs": 1,
                "stream": True,
                "ghostkv": {"residency": residency},
            }
        )
    return made


async def undisturbed(port: int, requests: Sequence[dict[str, Any]]) -> list[Answer]:
    """Their answers without sessions, stores and kills."""

    async def one(request: dict[str, Any]) -> Answer:
        answer, reply = Answer(), await ask(port, "POST", "/v1/completions", request)
        assert reply is not None and reply.status == 200, reply
        answer.take(reply)
        return answer

    return list(await asyncio.gather(*map(one, requests)))


async def campaign(arguments: argparse.Namespace, options: list[str]) -> dict[str, Any]:
    """All of it; gives the row."""
    chance = random.Random(arguments.seed)
    with ServerProcess(arguments.model, options) as calm:
        requests = requests_of(calm.name, chance, 12, arguments.tokens)
        expected = await undisturbed(calm.port, requests)
    with tempfile.TemporaryDirectory() as folder:
        stored = [*options, "--store", str(Path(folder) / "store.db"), "--resume-after", "5"]
        place, enough = Place(), asyncio.Event()
        clients = [Client(place, requests, expected) for _ in range(arguments.sessions)]
        work = [client.run(name, random.Random(name), enough) for name, client in enumerate(clients)]
        running = asyncio.gather(*work)
        starts, log = await kill_again_and_again(arguments, stored, place, chance, enough, running)
    again = [count for client in clients for count in client.again]
    prefilled = [int(count) for count in re.findall(r"prefilled_again=(\d+)", log)]
    return {
        "model": arguments.model if "/" not in arguments.model else "small random model",
        "sessions": arguments.sessions,
        "kills": place.kills,
        "answers": sum(client.answers for client in clients),
        "rejoined": sum(client.joins for client in clients),
        "lost": [lost for client in clients for lost in client.lost],
        "divergent_tokens": sum(client.divergent for client in clients),
        "gone_on": len(prefilled),
        "generated_again_in_segment_max": max(again, default=0),
        "prefilled_again_max": max(prefilled, default=0),
        "start_s_median": sorted(starts)[len(starts) // 2],
        "errors": sorted(set(re.findall(r"(?:ERROR|CRITICAL) .*", log)))[:5],
    }


async def kill_again_and_again(
    arguments: argparse.Namespace,
    options: list[str],
    place: Place,
    chance: random.Random,
    enough: asyncio.Event,
    running: asyncio.Future[Any],
) -> tuple[list[float], str]:
    """Start, wait, kill; the last server stays until every client is done. Gives seconds to start, and the logs."""
    starts, logs = [], []
    while True:
        begun = time.perf_counter()
        server = await asyncio.to_thread(ServerProcess, arguments.model, options)
        starts.append(round(time.perf_counter() - begun, 2))
        with server:
            place.port = server.port
            place.up.set()
            last = place.kills == arguments.kills
            if last:
                enough.set()
                await running
            else:
                await asyncio.wait([running], timeout=chance.uniform(*arguments.between))
                place.up.clear()
                server.kill(signal.SIGKILL)
                place.kills += 1
                print(f"kill {place.kills} of {arguments.kills}", file=sys.stderr, flush=True)
            logs.append(server.log)
        if last:
            return starts, "\n".join(logs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--sessions", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=500, help="of an answer, at most; at least half of it")
    parser.add_argument("--between", type=float, nargs=2, default=(0.0, 12.0), help="seconds from a start to its kill")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dry", action="store_true", help="record nothing")
    parser.add_argument("server", nargs="*", help="options of `ghostkv serve`, after --")
    arguments = parser.parse_args()
    options = ["--no-page", "--log-level", "info", *arguments.server]
    row = asyncio.run(campaign(arguments, options))
    print(row)
    if not arguments.dry:
        append("durability", [row])
    if row["lost"] or row["divergent_tokens"] or row["errors"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
