"""Which router serves best: public traces replayed over several simulated engines, behind each router in turn.

Everything but the passing of time is production code: router, switch, scheduler, pool and prefix index. A step takes
what a fitted line says (`step_line.json`: SmolLM2-135M in bfloat16 on two cores). A Mooncake trace arrives when it
says, `--slower` times as slowly, its lengths divided by `--scale`; of a tau-bench conversation, the next turn comes
some time after the answer before it. Appends to results/routing.jsonl, and prints a table. Nothing here is timed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from prefix_cache import SOURCES
from prefix_traces import Turn, read_trace
from record import append

from ghostkv.engine.admission import Limits
from ghostkv.residency import policy
from ghostkv.routing import key_of, names, router
from ghostkv.sim.hardware import read_hardware
from ghostkv.sim.replicas import Replicas, Visit
from ghostkv.sim.simulation import Setup

LINE = Path(__file__).parent / "step_line.json"
COLUMNS = ("first_p50_s", "first_p95_s", "first_mean_s", "computed_tokens", "hit_share", "imbalance", "goodput")


def visits(turns: Sequence[Turn], slower: float) -> list[Visit]:
    """Conversations are programs of their own, with waits that no stretch changes; a request of no known one is not."""
    several = len({turn.session for turn in turns}) < len(turns)
    found = []
    for turn in turns:
        ids = turn.ids.tolist()
        key = key_of(f"s{turn.session}" if several else "", ids[: turn.prompt])
        found.append(Visit(turn.session, ids, turn.prompt, turn.at * (1 if several else slower), key))
    return found


def measure(name: str, asked: argparse.Namespace, trace: Sequence[Visit], setup: Setup) -> dict[str, object]:
    """One row."""
    found = Replicas(asked.replicas, asked.blocks, router(name), policy(asked.residency), setup).run(trace)
    return {
        "router": name,
        "first_p50_s": found.first_token_s(0.5),
        "first_p95_s": found.first_token_s(0.95),
        "first_mean_s": found.mean_first_token_s,
        "computed_tokens": found.computed_tokens,
        "hit_share": found.cached_tokens / found.prompt_tokens,
        "imbalance": found.imbalance,
        "goodput": found.goodput(asked.first_s, asked.token_s),
        "served": len(found.served),
        "refused": found.refused,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=SOURCES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--routers", nargs="+", default=list(names()), choices=names())
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--blocks", type=int, default=4096, help="of each replica's pool, 16 tokens each")
    parser.add_argument("--scale", type=int, default=8, choices=[1, 2, 4, 8], help="divisor of Mooncake lengths")
    parser.add_argument("--slower", type=float, default=1.0, help="stretches a Mooncake trace's arrivals")
    parser.add_argument("--first", type=int, default=0, help="only so many requests of the trace; 0: all")
    parser.add_argument("--residency", default="auto")
    parser.add_argument("--first-s", type=float, default=5.0, help="goodput: to the first token, at most")
    parser.add_argument("--token-s", type=float, default=0.25, help="goodput: from one token to the next, on average")
    parser.add_argument("--seed", type=int, default=0, help="of arrivals, where the trace has none")
    asked = parser.parse_args()
    turns = read_trace(asked.trace, asked.scale, asked.seed)
    trace = visits(turns[: asked.first or None], asked.slower)
    setup = Setup(read_hardware(LINE), Limits(32_768, max_waiting=1_000_000))
    setting = {"trace": asked.trace.name} | {
        name: getattr(asked, name)
        for name in ("replicas", "blocks", "scale", "slower", "residency", "first_s", "token_s", "seed")
    }
    print(f"{len(trace)} requests, {sum(visit.prompt for visit in trace)} prompt tokens", flush=True)
    print(f"{'':>12}" + "".join(f"{column:>17}" for column in COLUMNS))
    # A row says which file, not where it lies on this machine.
    sys.argv = [asked.trace.name if Path(word) == asked.trace else word for word in sys.argv]
    for name in asked.routers:
        row = measure(name, asked, trace, setup) | setting
        print(f"{name:>12}" + "".join(f"{row[column]:>17.3f}" for column in COLUMNS), flush=True)
        append("routing", [row])


if __name__ == "__main__":
    main()
