"""The pool against a brute-force model: every operation, in any order, with all bookkeeping checked after each.

The model knows token prefixes only, no blocks: what is indexed is a set of (domain, prefix), what is evictable a list
of them. A shadow memory of token ids, written and read through the tables, shows that a hit is what it claims to be.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from ghostkv.kv.pool import Allocation, BlockPool
from ghostkv.kv.prefix_index import Node

SIZE = 4  # tokens of a block: small, so that a few tokens fill many
Prefix = tuple[str, tuple[int, ...]]


@dataclass(eq=False)
class Request:
    allocation: Allocation
    domain: str
    tokens: list[int]
    slots: int
    filled: int

    def indexed(self) -> list[Prefix]:
        return [(self.domain, tuple(self.tokens[:end])) for end in range(SIZE, self.filled + 1, SIZE)]


class PoolMachine(RuleBasedStateMachine):
    live = Bundle("live")

    @initialize(blocks=st.integers(1, 14))
    def start(self, blocks: int) -> None:
        self.pool = BlockPool(blocks, SIZE)
        self.memory = [[-1] * SIZE for _ in range(blocks)]
        self.requests: list[Request] = []
        self.evictable: list[Prefix] = []  # next to go first; pinned ones after all others
        self.pins: Counter[Prefix] = Counter()
        self.pinned: list[tuple[tuple[Node, ...], list[Prefix]]] = []

    def referenced(self) -> set[Prefix]:
        return {prefix for request in self.requests for prefix in request.indexed()}

    def live_blocks(self) -> int:
        private = sum(-(-request.slots // SIZE) - request.filled // SIZE for request in self.requests)
        return len(self.referenced()) + private

    def free(self) -> int:
        return self.pool.num_blocks - self.live_blocks() - len(self.evictable)

    def evict_for(self, count: int, free: int) -> None:
        for prefix in self.evictable[: max(0, count - free)]:
            self.forget(prefix)

    def forget(self, prefix: Prefix) -> None:
        """Evicted: its pins are gone with it, whatever is pinned under that name later."""
        self.evictable.remove(prefix)
        del self.pins[prefix]
        self.pinned = [(nodes, [other for other in path if other != prefix]) for nodes, path in self.pinned]

    def put(self, prefix: Prefix) -> None:
        """Evictable from now on, as the last of its kind."""
        if prefix in self.evictable:
            self.evictable.remove(prefix)
        plain = sum(not self.pins[other] for other in self.evictable)
        self.evictable.insert(len(self.evictable) if self.pins[prefix] else plain, prefix)

    def read(self, request: Request, count: int) -> list[int]:
        table = request.allocation.table
        return [self.memory[table[i // SIZE]][i % SIZE] for i in range(count)]

    @rule(
        target=live,
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=20),
        reserve=st.integers(1, 24),
        domain=st.sampled_from(["", "t"]),
    )
    def admit(self, prompt: list[int], reserve: int, domain: str) -> Request | None:
        known = self.referenced() | set(self.evictable)
        hits: list[Prefix] = []
        for end in range(SIZE, len(prompt), SIZE):
            if (domain, tuple(prompt[:end])) not in known:
                break
            hits.append((domain, tuple(prompt[:end])))
        slots = len(prompt) + reserve - 1
        need = -(-slots // SIZE) - len(hits)
        used = [prefix for prefix in hits if prefix in self.evictable]
        fits = need <= self.free() + len(self.evictable) - len(used)
        allocation = self.pool.admit(prompt, reserve, domain)
        assert (allocation is not None) == fits
        if allocation is None:
            return None
        free = self.free()
        self.evictable = [prefix for prefix in self.evictable if prefix not in used]
        self.evict_for(need, free)
        assert allocation.cached_tokens == len(hits) * SIZE
        request = Request(allocation, domain, list(prompt), slots, allocation.cached_tokens)
        self.requests.append(request)
        assert self.read(request, request.filled) == prompt[: request.filled]
        return request

    @rule(request=live, tokens=st.integers(1, 20))
    def extend(self, request: Request | None, tokens: int) -> None:
        if request is None or request not in self.requests:
            return
        need = -(-(request.slots + tokens) // SIZE) - -(-request.slots // SIZE)
        fits = need <= self.free() + len(self.evictable)
        table = request.allocation.table.tolist()
        assert self.pool.extend(request.allocation, tokens) == fits
        assert request.allocation.table.tolist()[: len(table)] == table
        if fits:
            self.evict_for(need, self.free())
            request.slots += tokens

    @rule(request=live, count=st.integers(1, 16), drawn=st.lists(st.integers(0, 1), min_size=16, max_size=16))
    def commit(self, request: Request | None, count: int, drawn: list[int]) -> None:
        """Compute up to `count` more tokens, drawing what the prompt does not give."""
        if request is None or request not in self.requests:
            return
        before, end = request.filled, min(request.slots, request.filled + count)
        request.tokens += drawn[: max(0, end - len(request.tokens))]
        for i in range(before, end):
            self.memory[request.allocation.table[i // SIZE]][i % SIZE] = request.tokens[i]
        request.filled = end
        self.evictable = [prefix for prefix in self.evictable if prefix not in request.indexed()]
        self.pool.commit_filled(request.allocation, request.tokens, end)

    @rule(request=consumes(live))
    def release(self, request: Request | None) -> None:
        if request is None:
            return
        self.requests.remove(request)
        kept = self.referenced()
        for prefix in reversed(request.indexed()):
            if prefix not in kept:
                self.put(prefix)
        self.pool.release(request.allocation)

    @rule(text=st.lists(st.integers(0, 1), max_size=24), domain=st.sampled_from(["", "t"]))
    def pin(self, text: list[int], domain: str) -> None:
        known = self.referenced() | set(self.evictable)
        path: list[Prefix] = []
        for end in range(SIZE, len(text) + 1, SIZE):
            if (domain, tuple(text[:end])) not in known:
                break
            path.append((domain, tuple(text[:end])))
        nodes = self.pool.find(text, domain)
        assert len(nodes) == len(path)
        self.pool.pin(nodes)
        self.pinned.append((nodes, path))
        for prefix in reversed(path):
            self.pins[prefix] += 1
            if prefix in self.evictable:
                self.put(prefix)

    @rule(at=st.integers(0, 9))
    def unpin(self, at: int) -> None:
        if at >= len(self.pinned):
            return
        nodes, path = self.pinned.pop(at)
        assert self.pool.unreferenced(nodes) == sum(prefix in self.evictable for prefix in path)
        self.pool.unpin(nodes)
        for prefix in reversed(path):
            self.pins[prefix] -= 1
            if prefix in self.evictable and not self.pins[prefix]:
                self.put(prefix)

    @rule(domain=st.sampled_from([None, "", "t"]))
    def drop_cached(self, domain: str | None) -> None:
        kept = [prefix for prefix in self.evictable if domain not in (None, prefix[0])]
        assert self.pool.drop_cached(domain) == len(self.evictable) - len(kept)
        for prefix in set(self.evictable) - set(kept):
            self.forget(prefix)

    @invariant()
    def agrees_with_the_model(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check_integrity()
        assert (self.pool.free, self.pool.cached) == (self.free(), len(self.evictable))
        assert self.pool.referenced == self.live_blocks()
        assert [self.prefix_of(block) for block in (*self.pool._cached, *self.pool._pins.order)] == self.evictable
        assert self.pool.pinned == sum(self.pins[prefix] > 0 for prefix in self.evictable)
        assert self.pool.pins == sum(count > 0 for count in self.pins.values())
        for request in self.requests:
            assert self.read(request, request.filled) == request.tokens[: request.filled]

    def prefix_of(self, block: int) -> Prefix:
        node = self.pool._index.of_block(block)
        assert node is not None
        domain, tokens = node.domain, node.tokens
        while node.parent is not None:
            node = node.parent
            tokens = node.tokens + tokens
        return domain, tokens


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
