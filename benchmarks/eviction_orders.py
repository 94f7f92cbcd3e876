"""Orders of eviction to compare with the pool's own: each stands in for its queue of cached blocks.

A block's key is its score, never less than its child's (so a child goes first), ties by time. `clock` is the greatest
key evicted so far: added to a score it ages what is not used again (GreedyDual, Young 1994; GDSF, Cherkasova 1998).
Higher is kept longer. Tests and production know nothing of this file.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from prefix_traces import Turn

Key = tuple[float, int, int]  # score, time of release, block


class Order:
    """What the pool asks of its queue (`len`, iteration, set, delete), and what a score may look at."""

    falls = False  # a child's score may have fallen since the parent saw it: the order itself puts children first

    def __init__(self, cost: Callable[[int], float], turns: Sequence[Turn]) -> None:
        self.cost = cost  # of the block at a position of its sequence, relative to a mean one
        self.clock = 0.0
        self.now = -1  # the turn that arrived last
        self.prefix: dict[int, int] = {}  # of each block
        self.position: dict[int, int] = {}  # likewise
        self.hits: dict[int, int] = {}  # likewise, since it was computed
        self.asked: dict[int, int] = defaultdict(int)  # how often each prefix was asked for, cached or not
        self._parent: dict[int, int] = {}
        self._floor: dict[int, float] = {}
        self._keys: dict[int, Key] = {}
        self._heap: list[Key] = []
        self._released = 0

    def score(self, block: int) -> float:
        """The order by itself; here: by time alone, which is the pool's own."""
        return 0.0

    def arrived(self, table: Sequence[int], prefixes: Sequence[int], found: int) -> None:
        """The next turn was admitted and found its first `found` blocks; `table` and `prefixes` are of its prompt."""
        self.now += 1
        for position, (block, prefix) in enumerate(zip(table, prefixes, strict=False)):
            self.asked[prefix] += 1
            if position < found:
                self.hits[block] += 1
                self.hit(block)

    def hit(self, block: int) -> None:
        """A block was found."""

    def filled(self, table: Sequence[int], prefixes: Sequence[int]) -> None:
        """These blocks hold these prefixes from now on."""
        above = -1
        for position, (block, prefix) in enumerate(zip(table, prefixes, strict=False)):
            if self.prefix.get(block) != prefix:
                self.prefix[block], self.position[block], self.hits[block] = prefix, position, 0
                self._floor.pop(block, None)
            self._parent[block] = above
            above = block

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[int]:
        while self._heap and self._keys.get(self._heap[0][2]) != self._heap[0]:
            heapq.heappop(self._heap)
        if self._heap:
            first = self._heap[0]
            self.clock = max(self.clock, first[0])
            yield first[2]
            yield from (key[2] for key in islice(sorted(self._keys.values()), 1, None))

    def __setitem__(self, block: int, _: None) -> None:
        self._released += 1
        score = self.score(block)
        if not self.falls:
            score = max(score, self._floor.get(block, score))
        above = self._parent[block]
        self._floor[above] = max(score, self._floor.get(above, -float("inf")))
        key = self._keys[block] = (score, self._released, block)
        heapq.heappush(self._heap, key)

    def __delitem__(self, block: int) -> None:
        del self._keys[block]


class Cost(Order):
    """GreedyDual: the time that the block saves, per byte (all blocks have as many)."""

    def score(self, block: int) -> float:
        return self.clock + self.cost(self.position[block])


class HalfCost(Order):
    """Between recency and cost."""

    def score(self, block: int) -> float:
        return self.clock + 1 + self.cost(self.position[block])


class RootCost(Order):
    """Cost, damped."""

    def score(self, block: int) -> float:
        return self.clock + math.sqrt(self.cost(self.position[block]))


class CostFrequency(Order):
    """GDSF: the time saved, times the uses so far."""

    def score(self, block: int) -> float:
        return self.clock + (1 + self.hits[block]) * self.cost(self.position[block])


class Frequency(Order):
    """Least frequently used, with ageing."""

    def score(self, block: int) -> float:
        return self.clock + 1 + self.hits[block]


class Remembered(Order):
    """Frequency that outlives eviction, as TinyLFU's, up to 15: what is asked for once is the first to go."""

    def score(self, block: int) -> float:
        return self.clock + min(self.asked[self.prefix[block]], 15)


class Deepest(Order):
    """The block farthest from its root goes first, whatever its age."""

    def score(self, block: int) -> float:
        return -float(self.position[block])


class Odds(Order):
    """Odds of reuse, learned online by uses so far and depth."""

    def __init__(self, cost: Callable[[int], float], turns: Sequence[Turn]) -> None:
        super().__init__(cost, turns)
        self._tried: dict[tuple[int, int], int] = defaultdict(lambda: 2)
        self._found: dict[tuple[int, int], int] = defaultdict(lambda: 1)
        self._kind: dict[int, tuple[int, int]] = {}

    def odds(self, block: int) -> float:
        kind = self._kind[block] = (min(self.hits[block], 3), self.position[block].bit_length())
        self._tried[kind] += 1
        return self._found[kind] / self._tried[kind]

    def hit(self, block: int) -> None:
        if (kind := self._kind.pop(block, None)) is not None:
            self._found[kind] += 1

    def score(self, block: int) -> float:
        return self.clock + self.odds(block)


class CostOdds(Odds):
    """Odds of reuse, times the time saved."""

    def score(self, block: int) -> float:
        return self.clock + self.odds(block) * self.cost(self.position[block])


class Clairvoyant(Order):
    """Belady: what is asked for again last goes first. It knows the trace; a bound on found tokens."""

    falls = True

    def __init__(self, cost: Callable[[int], float], turns: Sequence[Turn]) -> None:
        super().__init__(cost, turns)
        self._asked_at: dict[int, list[int]] = defaultdict(list)
        for number, turn in enumerate(turns):
            for prefix in turn.findable:
                self._asked_at[prefix].append(number)

    def score(self, block: int) -> float:
        turns = self._asked_at.get(self.prefix[block], [])
        after = bisect_right(turns, self.now)
        return -float(turns[after]) if after < len(turns) else -float("inf")


ORDERS: dict[str, type[Order]] = {
    "lru": Order,
    "cost": Cost,
    "half cost": HalfCost,
    "root cost": RootCost,
    "cost x uses": CostFrequency,
    "uses": Frequency,
    "uses, remembered": Remembered,
    "deepest first": Deepest,
    "odds": Odds,
    "cost x odds": CostOdds,
    "clairvoyant": Clairvoyant,
}
