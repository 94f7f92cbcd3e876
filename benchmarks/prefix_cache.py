"""Which order of eviction finds most: the block pool, replayed over public traces at several sizes.

The pool is the production one; other orders than its own stand in for its queue of cached blocks. A request holds its
blocks until `--running` later ones have arrived, or sooner where the pool is full. Time saved is by a model of prefill:
a token costs `--token-ms`, and `--pair-us` for each token before it. Appends to results/prefix_cache.jsonl, and prints
tables. "pool" is the production queue, "unlimited" a pool in which nothing is ever evicted. Nothing here is timed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from eviction_orders import ORDERS, Order
from prefix_traces import Turn, read_trace
from record import append

from ghostkv.kv.pool import Allocation, BlockPool
from ghostkv.step import BLOCK_TOKENS

SOURCES = """
Traces (plain or .gz), at the commits that the rows in results/ were made with:
  Mooncake   github.com/kvcache-ai/Mooncake 3b5a5941, FAST25-release/traces/conversation_trace.jsonl (Apache-2.0)
  tau-bench  github.com/sierra-research/tau-bench 59a200c6, historical_trajectories/gpt-4o-airline.json (MIT);
             it holds no tool definitions, so the head that its conversations share is the policy alone
"""


@dataclass(frozen=True, slots=True)
class Prefill:
    """Seconds of a prefill, by the numbers of tokens and of (token, earlier token) pairs."""

    token_s: float
    pair_s: float

    def seconds(self, tokens: int) -> float:
        """Of the first `tokens` tokens of a sequence."""
        return tokens * self.token_s + tokens * (tokens - 1) / 2 * self.pair_s

    def of_block(self, position: int) -> float:
        """Of one block."""
        return self.seconds((position + 1) * BLOCK_TOKENS) - self.seconds(position * BLOCK_TOKENS)


@dataclass(slots=True)
class Found:
    """What one replay found."""

    prompt_tokens: int = 0
    hit_tokens: int = 0
    prefill_s: float = 0.0  # without a cache
    saved_s: float = 0.0


class Replay:
    """One pool and the requests that hold blocks of it."""

    def __init__(self, blocks: int, running: int, order: Order | None, prefill: Prefill) -> None:
        self.found = Found()
        self._pool = BlockPool(blocks)
        if order is not None:
            self._pool._cached = order  # type: ignore[assignment]  # noqa: SLF001 - no seam in production for this alone
        self._running, self._order, self._prefill = running, order, prefill
        self._active: dict[int, tuple[Allocation, Turn, list[int]]] = {}  # by session, first come first

    def run(self, turns: Sequence[Turn]) -> Found:
        """All turns in order."""
        for turn in turns:
            self._arrive(turn)
        while self._active:
            self._finish(next(iter(self._active)))
        self._pool.check_integrity()
        return self.found

    def _arrive(self, turn: Turn) -> None:
        if turn.session in self._active:
            self._finish(turn.session)
        while len(self._active) >= self._running:
            self._finish(next(iter(self._active)))
        ids = turn.ids.tolist()
        prompt = ids[: turn.prompt]
        while (allocation := self._pool.admit(prompt, len(ids) - turn.prompt)) is None:
            self._finish(next(iter(self._active)))
        hits = allocation.cached_tokens
        if self._order is not None:
            self._order.arrived(allocation.table.tolist(), turn.findable, hits // BLOCK_TOKENS)
        self._count(turn.prompt, hits)
        self._active[turn.session] = (allocation, turn, ids)
        self._fill(allocation, turn, ids, turn.prompt)

    def _fill(self, allocation: Allocation, turn: Turn, ids: list[int], filled: int) -> None:
        self._pool.commit_filled(allocation, ids, filled)
        if self._order is not None:
            full = turn.prefixes[: filled // BLOCK_TOKENS].tolist()
            self._order.filled(allocation.table[: len(full)].tolist(), full)

    def _finish(self, session: int) -> None:
        allocation, turn, ids = self._active.pop(session)
        self._fill(allocation, turn, ids, len(ids) - 1)  # the last token is never an input
        self._pool.release(allocation)

    def _count(self, prompt: int, hits: int) -> None:
        self.found.prompt_tokens += prompt
        self.found.hit_tokens += hits
        self.found.prefill_s += self._prefill.seconds(prompt)
        self.found.saved_s += self._prefill.seconds(hits)


def relative(prefill: Prefill, turns: Sequence[Turn]) -> Callable[[int], float]:
    """Cost of a block at a position, in units of the mean block of the trace."""
    longest = max(len(turn.prefixes) for turn in turns) + 1
    costs = [prefill.of_block(position) for position in range(longest)]
    mean = sum(sum(costs[: len(turn.prefixes)]) for turn in turns) / sum(len(turn.prefixes) for turn in turns)
    return [cost / mean for cost in costs].__getitem__


def measure(turns: Sequence[Turn], blocks: int, name: str, running: int, prefill: Prefill) -> dict[str, object]:
    """One row: an order at a pool size."""
    fit = [turn for turn in turns if len(turn.ids) - 1 <= blocks * BLOCK_TOKENS]
    order = ORDERS[name](relative(prefill, fit), fit) if name in ORDERS else None
    found = Replay(blocks, running, order, prefill).run(fit)
    return {
        "order": name,
        "blocks": blocks,
        "hit_share": found.hit_tokens / max(found.prompt_tokens, 1),
        "saved_share": found.saved_s / max(found.prefill_s, 1e-9),
        "hit_tokens": found.hit_tokens,
        "saved_s": found.saved_s,
        "prompt_tokens": found.prompt_tokens,
        "prefill_s": found.prefill_s,
        "too_large": len(turns) - len(fit),
        "running": running,
    }


def show(rows: Sequence[dict[str, object]], sizes: Sequence[int], names: Sequence[str], value: str) -> None:
    """A table, an order per line; per cent."""
    print(f"{value:>18}" + "".join(f"{size:>10}" for size in sizes))
    at = {(row["order"], row["blocks"]): row[value] for row in rows}
    for name in names:
        print(f"{name:>18}" + "".join(f"{100 * float(str(at[name, size])):10.2f}" for size in sizes))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=SOURCES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--blocks", type=int, nargs="+", default=[2**n for n in range(10, 18)])
    parser.add_argument("--orders", nargs="+", default=["pool", *ORDERS], choices=["pool", *ORDERS])
    parser.add_argument("--scale", type=int, default=8, choices=[1, 2, 4, 8], help="divisor of Mooncake lengths")
    parser.add_argument("--running", type=int, default=8, help="requests at a time")
    parser.add_argument("--token-ms", type=float, default=0.31)
    parser.add_argument("--pair-us", type=float, default=0.64)
    parser.add_argument("--seed", type=int, default=0, help="of arrivals, where the trace has none")
    asked = parser.parse_args()
    turns = read_trace(asked.trace, asked.scale, asked.seed)
    prefill = Prefill(asked.token_ms / 1e3, asked.pair_us / 1e6)
    setting = {"trace": asked.trace.name, "scale": asked.scale, "seed": asked.seed}
    setting |= {"token_ms": asked.token_ms, "pair_us": asked.pair_us}
    every = sum(len(turn.prefixes) + 1 for turn in turns)
    print(f"{len(turns)} requests, {sum(turn.prompt for turn in turns)} prompt tokens", flush=True)
    rows = [measure(turns, every, "unlimited", asked.running, prefill) | setting]
    print(f"unlimited: {rows[0]['hit_share']:.4f} of tokens, {rows[0]['saved_share']:.4f} of time", flush=True)
    for blocks in asked.blocks:
        for name in asked.orders:
            rows.append(measure(turns, blocks, name, asked.running, prefill) | setting)
            last = rows[-1]
            shares = f"{last['hit_share']:.4f} {last['saved_share']:.4f}"
            print(f"{blocks:>8} {name:<17} {shares}", flush=True)
    for value in ("hit_share", "saved_share"):
        show(rows, asked.blocks, asked.orders, value)
    # A row says which file, not where it lies on this machine.
    sys.argv = [asked.trace.name if Path(word) == asked.trace else word for word in sys.argv]
    print(f"written to {append('prefix_cache', rows)}")


if __name__ == "__main__":
    main()
