"""The vLLM backend with a real vLLM (CPU): the conformance suite of backends, and what clients of a server see.

A story goes past vLLM's own context, segment by segment and as `auto` has it; a client that leaves frees vLLM's
blocks; two tenants with one prompt share nothing; the KV pool is what was asked for. Appends to
results/vllm_backend.jsonl; what does not hold is a row with the reason, and makes the exit code 1. Nothing is timed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import openai
from http_client import ServerProcess
from record import append
from vllm_backend_environment import ROOT, ghostkv_with_vllm
from vllm_environment import VERSION, cpu_variables

from ghostkv.config import cache_dir
from ghostkv.demo import PROMPT
from ghostkv.model.checkpoint import open_checkpoint
from ghostkv.model.export import export_hf
from ghostkv.model.pull import resolve_model

CONTEXT, BLOCK, KV_BYTES = 512, 32, 48 * 2**20
OPTIONS = f"--max-model-len {CONTEXT} --block-size {BLOCK} --enforce-eager"
FACTS = " ".join(f"Box number {i} holds {7 * i} marbles." for i in range(12))
FULL = {"ignore_eos": True, "ghostkv": {"residency": "full"}}
KEYS = '[[keys]]\ntenant = "one"\nkey = "key-one"\nadmin = true\n[[keys]]\ntenant = "two"\nkey = "key-two"\n'
Row = dict[str, object]


class Server:
    """`ghostkv serve --backend vllm`, as its clients have it."""

    def __init__(self, process: ServerProcess) -> None:
        self.process = process
        self._base = f"http://127.0.0.1:{process.port}/v1"

    def client(self, tenant: str) -> openai.OpenAI:
        """With that tenant's key."""
        return openai.OpenAI(base_url=self._base, api_key=f"key-{tenant}", timeout=3600, max_retries=0)

    def live_blocks(self, prompt: str, tenant: str) -> float:
        """That requests hold, as vLLM says in mid-answer to `prompt`; its client then leaves."""
        stream = self.client(tenant).completions.create(
            model=self.process.name, prompt=prompt, max_tokens=200, temperature=0, stream=True, extra_body=FULL
        )
        for seen, _ in enumerate(stream, 1):
            if seen == 10:
                break
        live = self.process.metrics()["ghostkv_live_blocks"]
        stream.close()
        return live


def conformance(python: Path, variables: dict[str, str]) -> Row:
    """The suite over vLLM, in its environment."""
    command = [str(python), "-m", "pytest", "-p", "no:cacheprovider", "-o", "filterwarnings=default", "-k", "vllm"]
    done = subprocess.run(
        [*command, "tests/backends/test_conformance.py"],
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"(\d+) passed, (\d+) deselected", done.stdout)
    if done.returncode or found is None:
        raise RuntimeError(f"conformance: {done.stdout[-1500:]}{done.stderr[-500:]}")
    return {"passed": int(found[1])}


def story(server: Server, residency: str, tokens: int) -> Row:
    """An answer longer than vLLM's context."""
    reply = server.client("one").chat.completions.create(
        model=server.process.name,
        messages=[{"role": "user", "content": PROMPT}],
        max_tokens=tokens,
        temperature=0,
        extra_body={"ignore_eos": True, "ghostkv": {"residency": residency}},
    )
    said = reply.model_extra["ghostkv"]
    reasons = [each["reason"] for each in said["decisions"] if each["decision"] == "flush"]
    if reply.usage.completion_tokens != tokens or not reasons or said["exact"]:
        raise RuntimeError(f"{residency}: {reply.usage.completion_tokens} tokens, flushes {reasons}, {said['exact']}")
    return {
        "tokens": tokens,
        "segments": said["segments"],
        "flushes": {reason: reasons.count(reason) for reason in sorted(set(reasons))},
        "exact": said["exact"],
        "text": reply.choices[0].message.content[:300],
    }


def cancel(server: Server) -> Row:
    """A client that leaves in mid-answer."""
    during = server.live_blocks(FACTS, "one")
    while server.process.metrics()["vllm:num_requests_running"]:
        time.sleep(0.1)
    after = server.live_blocks("A", "two")
    if during < 5 or after > 1:
        raise RuntimeError(f"{during} blocks while it ran, {after} after its client had left, one of them the next's")
    return {"live_blocks": during, "live_blocks_of_the_next": after}


def tenants(server: Server) -> Row:
    """One prompt, sent by one tenant twice and then by another: vLLM's own count of tokens that it found cached."""
    found, hits = [], [server.process.metrics()["vllm:prefix_cache_hits_total"]]
    for tenant in ("one", "one", "two", "two"):
        reply = server.client(tenant).chat.completions.create(
            model=server.process.name,
            messages=[{"role": "user", "content": FACTS}],
            max_tokens=2,
            temperature=0,
            extra_body=FULL,
        )
        found.append(reply.usage.prompt_tokens_details.cached_tokens)
        hits.append(server.process.metrics()["vllm:prefix_cache_hits_total"])
    first, again, other, its = found
    if first or other or not again or its != again:
        raise RuntimeError(f"cached tokens of one, one, two, two: {found}")
    return {"prompt_tokens": reply.usage.prompt_tokens, "cached_tokens": found, "hits_total": hits}


def budget(server: Server) -> Row:
    """vLLM's pool, by its own number of blocks."""
    metrics = server.process.metrics()
    blocks, live = metrics["ghostkv_free_blocks"] + metrics["ghostkv_live_blocks"], metrics["ghostkv_kv_budget_bytes"]
    said = re.findall(r"KV cache size: ([\d,]+) tokens", server.process.log)
    if not KV_BYTES - live < live / blocks or live > KV_BYTES or int(said[-1].replace(",", "")) != blocks * BLOCK:
        raise RuntimeError(f"asked for {KV_BYTES} bytes: {blocks} blocks, {live} bytes, vLLM says {said} tokens")
    return {"asked_bytes": KV_BYTES, "pool_bytes": live, "blocks": blocks, "vllm_says_tokens": int(blocks) * BLOCK}


def dropped(server: Server) -> Row:
    """What came after boundaries, all answers together."""
    metrics = server.process.metrics()
    return {name: metrics[f"ghostkv_{name}_total"] for name in ("dropped_tokens", "boundaries")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environment", type=Path, default=cache_dir() / "peers" / "vllm-ghostkv")
    arguments = parser.parse_args()
    python = ghostkv_with_vllm(arguments.environment)
    model = cache_dir() / "peers" / "smollm2-bf16"
    if not model.exists():
        export_hf(open_checkpoint(resolve_model("smollm2", print)), model)
    variables = cpu_variables(arguments.environment) | {"PYTHONPATH": str(ROOT / "src")}
    rows = [tried("conformance", lambda: conformance(python, variables))]
    with tempfile.TemporaryDirectory() as scratch:
        keys = Path(scratch) / "keys.toml"
        keys.write_text(KEYS, encoding="utf-8")
        options = ["--backend", "vllm", "--kv-budget", str(KV_BYTES), "--vllm-options", OPTIONS, "--no-page"]
        options += ["--api-keys", str(keys)]
        with ServerProcess(str(model), options, python=python, variables=variables, key="key-one") as process:
            server = Server(process)
            rows += [
                tried("KV budget", lambda: budget(server)),
                tried("tenants", lambda: tenants(server)),
                tried("cancel", lambda: cancel(server)),
                tried("story, segment", lambda: story(server, "segment", 600)),
                tried("story, auto", lambda: story(server, "auto", 700)),
                tried("dropped", lambda: dropped(server)),
            ]
    return int(any("failed" in row for row in rows))


def tried(scenario: str, run: Callable[[], Row]) -> Row:
    """Its row, or the row of its failure."""
    about: Row = {"scenario": scenario, "vllm": VERSION, "options": OPTIONS}
    try:
        found = run()
    except (RuntimeError, openai.OpenAIError, OSError, KeyError) as error:
        found = {"failed": re.sub(r"(?<![\w.])/\S*/", ".../", str(error))[-1500:]}
    print(f"{scenario}: {found}", flush=True)
    append("vllm_backend", [about | found])  # at once: what is cut off later does not lose it
    return about | found


if __name__ == "__main__":
    sys.exit(main())
