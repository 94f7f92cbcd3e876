"""Does the time to the first token tell one tenant what another has sent? Appends to results/timing_audit.jsonl.

A `ghostkv serve` with API keys, asked over its socket as a client would. In each round every arm takes a fresh
prompt: somebody sends it, or an unrelated one of equal length; then the prober asks for one token of it and reads the
clock.

    cold     another tenant sent something else: nothing is cached
    foreign  another tenant sent the prompt: what must not show
    own      the prober sent it itself: the first control, which must show
    group    a tenant of the prober's share group sent it: the second control

Arms stand in random order within a round. The test of each against `cold` is a permutation test: under the hypothesis
that the arm makes no difference, the sign of each round's difference is a coin. The statistic is the mean difference of
the logarithms of the times, the test two-sided, its p at least 1 / (permutations + 1). "auc" is how often a guess would
be right that calls the faster of a round's two times the cached one: 0.5 is blind. It passes if both controls have
p < 0.001 and `foreign` has p > 0.01, and if the prompt tokens found in the cache for it are those of `cold`.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from http_client import ServerProcess
from record import append

from ghostkv.server.key_file import made_key

SENDER = {"cold": "other", "foreign": "other", "own": "prober", "group": "friend"}
PERMUTATIONS = 20_000
MOST_P, LEAST_P = 1e-3, 0.01  # of a control; of the foreign arm
WORDS = (
    *("harbour", "lamp", "ridge", "copper", "tower", "signal", "meadow", "engine", "glacier", "ledger", "violet"),
    *(
        "anchor",
        "timber",
        "beacon",
        "quarry",
        "saddle",
        "lantern",
        "orchard",
        "granite",
        "needle",
        "compass",
        "furnace",
    ),
    *("furnace", "island", "ribbon", "thunder", "pepper", "canvas", "mirror", "falcon", "cellar", "bridge", "marble"),
    *("garden", "hammer", "winter", "pocket", "silver", "bottle", "market", "candle"),
)

Times = npt.NDArray[np.float64]


@dataclass(slots=True)
class Arm:
    """What was measured: seconds to the first token, and prompt tokens found in the cache, round by round."""

    seconds: list[float] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)


class Client:
    """One tenant, as its clients ask."""

    def __init__(self, port: int, key: str, model: str) -> None:
        self._port = port
        self._headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        self._fixed = {"model": model, "max_tokens": 1, "temperature": 0, "stream": True}

    def ask(self, prompt: str) -> tuple[float, int]:
        """(seconds to the first token, cached tokens of the prompt), over a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
        connection.connect()
        with closing(connection):
            return self._asked(connection, prompt)

    def _asked(self, connection: http.client.HTTPConnection, prompt: str) -> tuple[float, int]:
        asked = self._fixed | {
            "messages": [{"role": "user", "content": prompt}],
            "stream_options": {"include_usage": True},
            "ghostkv": {"residency": "full"},
        }
        began, first, cached = time.perf_counter(), 0.0, -1
        connection.request("POST", "/v1/chat/completions", json.dumps(asked), self._headers)
        reply = connection.getresponse()
        if reply.status != 200:
            raise SystemExit(f"{reply.status}: {reply.read().decode()}")
        while line := reply.readline():
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line.removeprefix(b"data: "))
            if not first and event["choices"] and event["choices"][0]["delta"].get("content"):
                first = time.perf_counter() - began
            if event["usage"]:
                cached = event["usage"]["prompt_tokens_details"]["cached_tokens"]
        return first or time.perf_counter() - began, cached  # a token without text: the end says that it was there


@contextmanager
def server(model: str, kv_budget: str) -> Iterator[Callable[[str], Client]]:
    """A server of its own process, and how to connect to it as a tenant."""
    keys = {tenant: made_key(tenant) for tenant in ("prober", "other", "friend")}
    shared = {"prober": 'share = "circle"', "friend": 'share = "circle"'}
    entries = [f"{entry}\n{shared.get(tenant, '')}\n" for tenant, (_, entry) in keys.items()]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "keys.toml"
        file.write_text("\n".join(entries), encoding="utf-8")
        options = ("--kv-budget", kv_budget, "--api-keys", str(file), "--log-level", "warning")
        with ServerProcess(model, options) as process:
            yield lambda tenant: Client(process.port, keys[tenant][0], process.name)


def measure(connect: Callable[[str], Client], rounds: int, words: int, seed: int) -> dict[str, Arm]:
    """All arms, interleaved."""
    rng = random.Random(seed)
    clients = {tenant: connect(tenant) for tenant in ("prober", "other", "friend")}

    def text() -> str:
        return " ".join(rng.choices(WORDS, k=words))

    for client in clients.values():  # compiled, connected, and the template's own beginning cached
        for _ in range(2):
            client.ask(text())
    arms = {name: Arm() for name in SENDER}
    for number in range(rounds):
        for name in rng.sample(sorted(arms), k=len(arms)):
            prompt, unrelated = text(), text()
            clients[SENDER[name]].ask(unrelated if name == "cold" else prompt)
            seconds, cached = clients["prober"].ask(prompt)
            arms[name].seconds.append(seconds)
            arms[name].cached.append(cached)
        if sys.stderr.isatty():
            print(f"\rround {number + 1} of {rounds}", end="", file=sys.stderr, flush=True)
    return arms


def permutation_p(differences: Times, rng: np.random.Generator) -> float:
    """Two-sided p of the mean of paired differences, by the signs that they might as well have had (Fisher)."""
    observed = abs(float(differences.mean()))
    signs = rng.choice(np.array([-1.0, 1.0]), size=(PERMUTATIONS, len(differences)))
    as_far = int(np.count_nonzero(np.abs(signs @ differences) / len(differences) >= observed * (1 - 1e-12)))
    return (as_far + 1) / (PERMUTATIONS + 1)


def compared(arm: Arm, cold: Arm, rng: np.random.Generator) -> dict[str, object]:
    """An arm against `cold`. Differences are `cold` minus the arm, so that a hit that shows is above 0."""
    slow, fast = np.array(cold.seconds), np.array(arm.seconds)
    drawn = rng.integers(len(slow), size=(2000, len(slow)))
    low, high = np.percentile((slow - fast)[drawn].mean(axis=1) * 1e3, [2.5, 97.5])
    return {
        "median_ms": round(float(np.median(fast)) * 1e3, 2),
        "difference_ms": round(float((slow - fast).mean()) * 1e3, 3),
        "difference_95": [round(float(low), 3), round(float(high), 3)],
        "auc": round(float(((fast < slow) + 0.5 * (fast == slow)).mean()), 3),
        "p": permutation_p(np.log(slow) - np.log(fast), rng),
        "cached_tokens": [min(arm.cached), max(arm.cached)],
    }


def main() -> None:
    """Measure, print, record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--kv-budget", default="512MiB")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--words", type=int, default=150, help="of a prompt, most of them one token")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with server(asked.model, asked.kv_budget) as connect:
        arms = measure(connect, asked.rounds, asked.words, asked.seed)
    rng = np.random.default_rng(asked.seed)
    found = {name: compared(arms[name], arms["cold"], rng) for name in ("foreign", "own", "group")}
    cold = {
        "median_ms": round(float(np.median(arms["cold"].seconds)) * 1e3, 2),
        "cached_tokens": [min(arms["cold"].cached), max(arms["cold"].cached)],
    }
    seen = all(float(str(found[name]["p"])) < MOST_P for name in ("own", "group"))
    blind = float(str(found["foreign"]["p"])) > LEAST_P and arms["foreign"].cached == arms["cold"].cached
    for name, row in {"cold": cold, **found}.items():
        print(f"{name:8} {row}")
    verdict = (
        "passes" if seen and blind else "FAILS" if seen else "says nothing: a control does not show, take more rounds"
    )
    print(f"the audit {verdict}")
    file = append(
        "timing_audit",
        [{**vars(asked), "permutations": PERMUTATIONS, "cold": cold, **found, "controls_show": seen, "blind": blind}],
    )
    print(f"appended to {file}")
    raise SystemExit(not (seen and blind))


if __name__ == "__main__":
    main()
