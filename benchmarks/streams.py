"""Many more streams than the KV budget holds: do all complete, and does none of them look dead while it waits?

256 streams of 64 tokens at once against `ghostkv serve` over SmolLM2 with 16 MiB. For each stream: the longest silence,
which is the time between two events (or before the first), and how many keep-alives came in it. A stream that is silent
for `--keep-alive` seconds must get one, so between any two things that a client hears there are at most that many
seconds; measured here is what the client sees, so its own scheduling is in it. Appends to results/streams.jsonl.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from http_client import Arrivals, Reply, ServerProcess, ask
from record import append

LATE_S = 2.0  # what a keep-alive may come late on a machine whose cores are all taken


@dataclass(frozen=True, slots=True)
class Heard:
    """One stream, as its client heard it. Seconds."""

    tokens: int
    complete: bool
    first: float  # to the first event with text, or the end
    silence: float  # the longest between two events
    quiet: float  # the longest in which nothing came at all, keep-alives included
    silences: int  # longer than the keep-alive time, with what it may be late
    unheard: int  # of those, without a keep-alive


async def stream(server: ServerProcess, prompt: str, tokens: int, keep_alive_s: float) -> Heard:
    """One stream, read to its end."""
    body = {
        "model": server.name,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    arrivals = Arrivals()
    reply = await ask(server.port, "POST", "/v1/chat/completions", body, arrivals=arrivals)
    if reply is None or reply.status != 200:
        raise SystemExit(f"the server answered {reply}")
    return heard(arrivals, reply, tokens, keep_alive_s)


def heard(arrivals: Arrivals, reply: Reply, tokens: int, keep_alive_s: float) -> Heard:
    """What the times of its events say. The opening, which only says that an answer will come, counts for none."""
    came = list(timeline(arrivals))
    events = [event for _, event in came if event is not None]
    edges = [0.0, *(at for at, event in came if event is not None and not _opens(event))]
    pings = [at for at, event in came if event is None]
    gaps = list(itertools.pairwise(edges))
    silences = [(start, end) for start, end in gaps if end - start > keep_alive_s + LATE_S]
    ends = [choice for event in events for choice in event["choices"] if choice["finish_reason"]]
    generated = (events[-1]["usage"] or {}).get("completion_tokens", 0)
    return Heard(
        tokens=generated,
        complete=reply.whole and reply.events[-1] == "[DONE]" and len(ends) == 1 and generated == tokens,
        first=edges[1],
        silence=max(end - start for start, end in gaps),
        quiet=max(end - start for start, end in itertools.pairwise([0.0, *arrivals.at])),
        silences=len(silences),
        unheard=sum(not any(start < ping <= end for ping in pings) for start, end in silences),
    )


def timeline(arrivals: Arrivals) -> Iterator[tuple[float, dict[str, Any] | None]]:
    """(second, event) as they came; None for a keep-alive. The framing of HTTP stands before each and is skipped."""
    rest = b""
    for at, part in zip(arrivals.at, arrivals.parts, strict=True):
        *blocks, rest = (rest + part).split(b"\n\n")
        for block in blocks:
            _, found, data = block.partition(b"data: ")
            if data.startswith(b"{"):
                yield at, json.loads(data)
            elif not found and block.endswith(b": keep-alive"):
                yield at, None


def _opens(event: dict[str, Any]) -> bool:
    return any(not choice["finish_reason"] and not choice["delta"].get("content") for choice in event["choices"])


async def all_at_once(server: ServerProcess, count: int, tokens: int, keep_alive_s: float) -> list[Heard]:
    """Every stream, its prompt unlike all others."""
    prompts = [f"Tell me about ship number {number} of the harbour of Lisbon." for number in range(count)]
    return await asyncio.gather(*(stream(server, prompt, tokens, keep_alive_s) for prompt in prompts))


def main() -> int:
    """0 where all held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--kv-budget", default="16MiB")
    parser.add_argument("--keep-alive", type=float, default=5.0)
    parser.add_argument("--dry", action="store_true", help="record nothing")
    parser.add_argument("serve_options", nargs="*", help="more options for ghostkv serve, after --")
    arguments = parser.parse_args()
    options = ["--kv-budget", arguments.kv_budget, "--keep-alive", str(arguments.keep_alive), "--log-level", "warning"]
    with ServerProcess(arguments.model, [*options, *arguments.serve_options]) as server:
        began = time.perf_counter()
        found = asyncio.run(all_at_once(server, arguments.streams, arguments.tokens, arguments.keep_alive))
        seconds = time.perf_counter() - began
        metrics = server.metrics()
    row: dict[str, object] = {
        "streams": arguments.streams,
        "tokens": arguments.tokens,
        "model": arguments.model,
        "kv_budget": arguments.kv_budget,
        "keep_alive_s": arguments.keep_alive,
        "seconds": seconds,
        "complete": sum(each.complete for each in found),
        "longest_silence_s": max(each.silence for each in found),
        "median_silence_s": median(each.silence for each in found),
        "longest_quiet_s": max(each.quiet for each in found),
        "silent_streams": sum(each.silences > 0 for each in found),
        "silent_without_keep_alive": sum(each.unheard > 0 for each in found),
        "waits_for_memory": metrics["ghostkv_waits_for_memory_total"],
        "peak_live_kv_bytes": metrics["ghostkv_peak_live_kv_bytes"],
        "each": [asdict(each) for each in found],
    }
    for name, value in row.items():
        if name != "each":
            print(f"{name}: {value:.2f}" if isinstance(value, float) else f"{name}: {value}")
    held = all(each.complete and not each.unheard and each.quiet <= arguments.keep_alive + LATE_S for each in found)
    print("held" if held else "missed")
    if not arguments.dry:
        print(f"written to {append('streams', [row])}")
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
