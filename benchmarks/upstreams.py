"""Our loop in front of real servers: a story past their context, recall, a client that leaves, kills in mid-story.

Each engine is started as its users start it, with a context of `--context` tokens, and a `ghostkv serve --upstream` in
front of it. Every scenario asserts what it shows and prints a row:

- story: the prompt of the TGP article's first experiment, for more tokens than the upstream's context has.
- recall: four facts, a story longer than the context, and a question for each fact.
- cancel: a client leaves in mid-answer; the upstream stops computing.
- restart: the only upstream gets SIGKILL in mid-story and is started again at once; the stream goes on.
- failover: two upstreams, and the one that writes the story gets SIGKILL; the other one goes on.

Appends to results/upstreams.jsonl.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from llama_environment import llama_cpp
from record import append
from vllm_environment import VERSION, vllm_python

from ghostkv.config import cache_dir
from ghostkv.demo import PROMPT
from ghostkv.model.pull import resolve_model
from ghostkv.pressure.process import Launch, ServerProcess, free_port

ENGINES = ("vllm", "llama.cpp", "ghostkv")
FACTS = (
    ("The hatch code of the Eos module is 7431.", "What is the hatch code of the Eos module?", "7431"),
    ("The name of the captain is Mirela Oduya.", "What is the name of the captain?", "Mirela Oduya"),
    ("The reserve tank holds 862 litres of water.", "How many litres of water does the reserve tank hold?", "862"),
    ("The rover Pelican waits at crater Tarsis-9.", "At which crater does the rover Pelican wait?", "Tarsis-9"),
)
_PATIENCE_S = 900.0  # of an upstream that is restarted, and of a silent client
_SAMPLE = re.compile(r"^([\w:]+?)(?:_total)?(?:\{(.*)\})? (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Engine:
    """One kind of upstream."""

    name: str
    command: Callable[[int], list[str]]
    """With which it is started at a port."""
    about: dict[str, Any]
    running: str
    """Its own metric of requests that it computes."""
    generated: str
    """Its own metric of output tokens."""
    environment: Mapping[str, str] = field(default_factory=dict)


def engines(names: list[str], model: str, context: int, options: list[str]) -> Iterator[Engine]:
    """Those engines over `model`; environments are made on first use."""
    peers = cache_dir() / "peers"
    if "vllm" in names:
        directory, exported = peers / "vllm", peers / "smollm2-bf16"
        python = str(vllm_python(directory))
        if not exported.exists():
            from ghostkv.model.checkpoint import open_checkpoint  # bring torch, which takes seconds
            from ghostkv.model.export import export_hf

            export_hf(open_checkpoint(resolve_model(model, print)), exported)
        settings = ["--max-model-len", str(context), "--dtype", "bfloat16", "--kv-cache-memory-bytes", str(48 * 2**20)]
        settings.append("--enforce-eager")  # nothing is timed here, and it starts in less than half the time
        program = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(exported)]
        fixed = [*program, "--host", "127.0.0.1", "--served-model-name", "smollm2", *settings]
        yield Engine(
            "vllm",
            lambda port: [*fixed, "--port", str(port)],
            {"version": VERSION, "settings": " ".join(settings)},
            "vllm:num_requests_running",
            "vllm:generation_tokens",
            _openmp(directory),
        )
    if "llama.cpp" in names:
        server, gguf = str(llama_cpp(peers / "llama.cpp").server), str(resolve_model(model, print))
        settings = ["-c", str(2 * context), "-np", "2", "--no-kv-unified", "--no-context-shift", "--metrics"]
        llama = [server, "-m", gguf, "--host", "127.0.0.1", "--alias", "smollm2", *settings]
        yield Engine(
            "llama.cpp",
            lambda port: [*llama, "--port", str(port)],
            {"weights": Path(gguf).stem, "settings": " ".join(settings)},
            "llamacpp:requests_processing",
            "llamacpp:tokens_predicted",
        )
    if "ghostkv" in names:
        own = [sys.executable, "-m", "ghostkv", "serve", "--no-page", "--log-level", "warning", "--model", model]
        yield Engine(
            "ghostkv",
            lambda port: [*own, *options, "--port", str(port)],
            {"settings": " ".join(options)},
            "vllm:num_requests_running",
            "vllm:generation_tokens",
        )


def _openmp(environment: Path) -> dict[str, str]:
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    found = {"VLLM_CPU_OMP_THREADS_BIND": cores, "VLLM_ENGINE_READY_TIMEOUT_S": "1200"}
    library = next(iter(environment.glob("lib/libiomp5.so")), None)
    return found | ({} if library is None else {"LD_PRELOAD": str(library)})


class Server:
    """A server that can be killed and started again at its port."""

    def __init__(self, command: list[str], port: int, environment: Mapping[str, str] | None = None) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._launch = Launch(tuple(command), port, environment=environment or {}, patience_s=2 * _PATIENCE_S)
        self._process = ServerProcess(self._launch)

    def ready(self) -> float:
        """Wait until it answers; the seconds that took."""
        return asyncio.run(self._process.ready())

    def kill(self) -> None:
        """SIGKILL, to it and all that it has started."""
        os.killpg(self._process.tree()[0], signal.SIGKILL)

    def start(self) -> None:
        """Again, after `kill`."""
        self.close()
        self._process = ServerProcess(self._launch)

    def close(self) -> None:
        """End it."""
        self._process.__exit__(None, None, None)

    def metric(self, name: str) -> float:
        """Its own, labels added up."""
        return sum(value for _, value in self.samples(name))

    def samples(self, name: str) -> list[tuple[str, float]]:
        """(labels, value) of each sample of that name, without `_total`."""
        text = httpx2.get(f"{self.url}/metrics", timeout=60).text
        return [(labels, float(value)) for found, labels, value in _SAMPLE.findall(text) if found == name]


@contextmanager
def upstream(engine: Engine) -> Iterator[Server]:
    """A running upstream."""
    port = free_port()
    server = Server(engine.command(port), port, engine.environment)
    try:
        server.ready()
        yield server
    finally:
        server.close()


@contextmanager
def front(model: str, *upstreams: Server) -> Iterator[Server]:
    """Our server in front of those."""
    port = free_port()
    command = [sys.executable, "-m", "ghostkv", "serve", "--no-page", "--log-level", "warning", "--port", str(port)]
    command += ["--model", model, "--upstream-wait", str(_PATIENCE_S)]
    for each in upstreams:
        command += ["--upstream", f"{each.url}/v1"]
    server = Server(command, port)
    try:
        server.ready()
        yield server
    finally:
        server.close()


@dataclass(slots=True)
class Answer:
    """One streamed answer."""

    text: str = ""
    tokens: int = 0
    at: list[float] = field(default_factory=list)  # when text came, in seconds of `time.perf_counter`
    about: dict[str, Any] = field(default_factory=dict)  # the reply's `ghostkv`
    complete: bool = False

    @property
    def longest_gap_s(self) -> float:
        """Between two pieces of text."""
        return round(max((later - at for at, later in zip(self.at, self.at[1:], strict=False)), default=0.0), 2)


def ask(
    server: Server,
    messages: list[dict[str, str]],
    tokens: int,
    during: Callable[[Answer], bool] = lambda answer: True,
    **more: Any,
) -> Answer:
    """Greedy, read to its end, or until `during`, asked at each event, says no."""
    model = httpx2.get(f"{server.url}/v1/models", timeout=60).json()["data"][0]["id"]
    body = {"model": model, "messages": messages, "max_tokens": tokens, "temperature": 0.0, "stream": True, **more}
    body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    answer = Answer()
    path = f"{server.url}/v1/chat/completions"
    with httpx2.stream("POST", path, json=body, timeout=_PATIENCE_S) as reply:
        if reply.status_code != 200:
            raise SystemExit(f"{reply.status_code}: {reply.read().decode()}")
        for line in reply.iter_lines():
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                answer.complete = True
                break
            event = json.loads(line[6:])
            if "error" in event:
                raise SystemExit(f"after {answer.tokens} tokens: {event['error']['message']}")
            answer.about = event.get("ghostkv") or answer.about
            answer.tokens = (event.get("usage") or {}).get("completion_tokens", answer.tokens)
            if said := "".join(choice["delta"].get("content") or "" for choice in event["choices"]):
                answer.text += said
                answer.at.append(time.perf_counter())
            if not during(answer):
                break
    return answer


def user(text: str) -> list[dict[str, str]]:
    """A conversation of one message."""
    return [{"role": "user", "content": text}]


def story(server: Server, context: int) -> dict[str, Any]:
    """Longer than the upstream's context."""
    tokens = context + context // 4
    answer = ask(server, user(PROMPT), tokens, ignore_eos=True)
    flushes = [mark for mark in answer.about["decisions"] if mark["decision"] == "flush"]
    assert answer.complete and answer.tokens == tokens > context, answer
    assert flushes and {mark["reason"] for mark in flushes} == {"context"}, flushes
    assert answer.about["exact"] is False
    return {"scenario": "story", "tokens": answer.tokens, "segments": len(flushes) + 1}


def recall(server: Server, context: int, *, speaks: bool) -> dict[str, Any]:
    """A model that `speaks` answers most of the questions; for any model, what was said stands in the prompt again."""
    told = " ".join(fact for fact, _, _ in FACTS)
    between = " ".join(f"On day {day} the crew walked, slept and saw nothing new." for day in range(1, context // 10))
    right, carried = 0, 0
    for _, question, value in FACTS:
        talk = [*user(told), {"role": "assistant", "content": f"I see. {between}"}, *user(question)]
        answer = ask(server, talk, 24)
        assert answer.about["unseen_tokens"] > 0, answer  # else it proves nothing
        carried += answer.about["carried_tokens"] + answer.about["recalled_tokens"] > 0
        right += value.lower() in answer.text.lower()
    assert carried == len(FACTS)
    assert not speaks or right >= len(FACTS) // 2 + 1, right
    return {"scenario": "recall", "questions": len(FACTS), "carried": carried, "right": right if speaks else None}


def cancel(server: Server, below: Server, engine: Engine, context: int) -> dict[str, Any]:
    """The upstream lets go of what nobody reads."""
    before, most = below.metric(engine.generated), context // 2
    answer = ask(server, user(PROMPT), most, lambda answer: answer.tokens < 16, ignore_eos=True)
    assert not answer.complete
    wait(lambda: below.metric(engine.running) == 0 and server.metric("ghostkv_upstream_running") == 0)
    computed = below.metric(engine.generated) - before
    assert answer.tokens <= computed < most, (answer.tokens, computed)
    return {"scenario": "cancel", "read": answer.tokens, "computed": computed, "asked": most}


def restart(server: Server, below: Server, context: int) -> dict[str, Any]:
    """Killed after a quarter, started again at once."""
    tokens = context // 2
    undisturbed = ask(server, user(PROMPT), tokens, ignore_eos=True)
    killed = list[int]()

    def during(answer: Answer) -> bool:
        if not killed and answer.tokens >= tokens // 4:
            killed.append(len(answer.text))
            below.kill()
            below.start()
        return True

    answer = ask(server, user(PROMPT), tokens, during, ignore_eos=True)
    assert answer.complete and answer.tokens == tokens and killed, answer
    assert answer.text[: killed[0]] == undisturbed.text[: killed[0]]
    left = server.metric("ghostkv_upstream_failovers")
    assert left >= 1 and server.metric("ghostkv_upstream_healthy") == 1
    return {
        "scenario": "restart",
        "tokens": answer.tokens,
        "killed_after_characters": killed[0],
        "failovers": left,
        "longest_gap_s": answer.longest_gap_s,
        "same_text_as_undisturbed": answer.text == undisturbed.text,
    }


def failover(server: Server, both: tuple[Server, Server], context: int) -> dict[str, Any]:
    """The one that writes is killed after a quarter."""
    tokens = context // 2
    undisturbed = ask(server, user(PROMPT), tokens, ignore_eos=True)
    killed = list[Server]()

    def during(answer: Answer) -> bool:
        if not killed and answer.tokens >= tokens // 4:
            writing = [labels for labels, value in server.samples("ghostkv_upstream_running") if value]
            killed.extend(each for each in both if len(writing) == 1 and f'"{each.url}"' in writing[0])
            killed[0].kill()
        return True

    answer = ask(server, user(PROMPT), tokens, during, ignore_eos=True)
    assert answer.complete and answer.tokens == tokens, answer
    healthy = by_url(server, "ghostkv_upstream_healthy", both)
    left = by_url(server, "ghostkv_upstream_failovers", both)
    for each in both:
        assert healthy[each.url] == (each not in killed), healthy
        assert left[each.url] == (each in killed), left
    return {
        "scenario": "failover",
        "tokens": answer.tokens,
        "failovers": sum(left.values()),
        "longest_gap_s": answer.longest_gap_s,
        "same_text_as_undisturbed": answer.text == undisturbed.text,
    }


def by_url(server: Server, name: str, upstreams: tuple[Server, ...]) -> dict[str, float]:
    """A metric of each upstream."""
    found = server.samples(name)
    return {each.url: sum(value for labels, value in found if f'"{each.url}"' in labels) for each in upstreams}


def wait(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Until it holds."""
    end = time.perf_counter() + seconds
    while not condition():
        assert time.perf_counter() < end
        time.sleep(0.1)


def scenarios(engine: Engine, model: str, context: int, *, speaks: bool) -> Iterator[dict[str, Any]]:
    """All of them over one engine."""
    with upstream(engine) as first:
        with front(model, first) as server:
            yield story(server, context)
            yield recall(server, context, speaks=speaks)
            yield cancel(server, first, engine, context)
            yield restart(server, first, context)
        with upstream(engine) as second, front(model, first, second) as server:
            yield failover(server, (first, second), context)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=ENGINES, action="append", help="repeatable; all of them by default")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--context", type=int, default=512, help="of an upstream; with ghostkv, that of the model")
    parser.add_argument("--mute", action="store_true", help="the model says nothing sensible: answers are not judged")
    parser.add_argument("--dry", action="store_true", help="record nothing")
    parser.add_argument("server", nargs="*", help="options of the ghostkv that is an upstream, after --")
    arguments = parser.parse_args()
    chosen = arguments.engine or ["vllm", "llama.cpp"]
    rows: list[dict[str, Any]] = []
    for engine in engines(chosen, arguments.model, arguments.context, arguments.server):
        about = {"upstream": engine.name, **engine.about, "context": arguments.context}
        for row in scenarios(engine, arguments.model, arguments.context, speaks=not arguments.mute):
            rows.append({**about, **row})
            print(rows[-1], flush=True)
            if not arguments.dry:
                append("upstreams", rows[-1:])


if __name__ == "__main__":
    main()
