"""The block pool: who holds which block, and which full blocks stay behind for reuse.

A block is free, referenced (held by at least one allocation) or cached (held by none, but indexed: evictable, least
recently released first). It is bookkeeping over block numbers; the tensors behind the numbers are the model's, and it
knows neither requests nor policies.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from ghostkv.errors import ConfigError, InvariantViolation
from ghostkv.kv.audit import Held, audit
from ghostkv.kv.pins import Pins
from ghostkv.kv.prefix_index import Node, PrefixIndex
from ghostkv.step import BLOCK_TOKENS, BlockTable


class Allocation:
    """What a request holds of the pool: the blocks of its positions, and how much of its prompt was found."""

    __slots__ = ("cached_tokens", "key", "table")

    def __init__(self, key: int, table: BlockTable, cached_tokens: int) -> None:
        self.key = key  # names the holding inside the pool; never used again
        self.table = table  # int32 [blocks], covers the whole reservation; changes only in commit_filled and extend
        self.cached_tokens = cached_tokens  # leading prompt tokens whose KV is already there


class BlockPool:
    """A fixed number of blocks, shared by exact token prefix within a domain."""

    def __init__(self, num_blocks: int, block_tokens: int = BLOCK_TOKENS, identity: str = "") -> None:
        """`identity` names what a block's bits depend on besides tokens and domain: a manifest, of fixed length."""
        if num_blocks < 1 or block_tokens < 1:
            raise ConfigError(f"a pool of {num_blocks} blocks of {block_tokens} tokens holds nothing")
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self._identity = identity
        # A stack with block 0 on top: the block freed last is used first, so memory never touched stays untouched.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._refs = [0] * num_blocks
        self._cached: OrderedDict[int, None] = OrderedDict()  # next to evict first
        self._pins = Pins()
        self._index = PrefixIndex(block_tokens)
        self._held: dict[int, Held] = {}
        self._next_key = 0

    @classmethod
    def for_budget(cls, budget_bytes: int, block_bytes: int, block_tokens: int = BLOCK_TOKENS) -> BlockPool:
        """The largest pool within `budget_bytes`; ConfigError where not even one block fits."""
        if budget_bytes < block_bytes:
            raise ConfigError(f"a KV budget of {budget_bytes} bytes is less than one block of {block_bytes} bytes")
        return cls(budget_bytes // block_bytes, block_tokens)

    @property
    def free(self) -> int:
        """Blocks that hold nothing."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Blocks that no allocation holds and that a later prompt may find; evictable."""
        return len(self._cached) + len(self._pins.order)

    @property
    def pinned(self) -> int:
        """Of those, the ones that are evicted after all others."""
        return len(self._pins.order)

    @property
    def pins(self) -> int:
        """Blocks that are pinned, those that allocations hold included."""
        return len(self._pins)

    @property
    def referenced(self) -> int:
        """Blocks that at least one allocation holds: the live KV."""
        return self.num_blocks - len(self._free) - self.cached

    @property
    def available(self) -> int:
        """Blocks that an allocation could take now."""
        return len(self._free) + self.cached

    def blocks_for(self, slots: int) -> int:
        """Blocks that cover `slots` token slots."""
        return -(-slots // self.block_tokens)

    def admit(self, prompt: Sequence[int], reserve: int, domain: str = "", spare: int = 0) -> Allocation | None:
        """Blocks for a prompt and `reserve` output tokens, or None, which leaves everything as it was.

        `spare` blocks must stay available after it.

        The last output token is never an input, hence prompt + reserve - 1 slots. The last prompt token is always
        computed, since its logits choose the first output token, hence hits within prompt[:-1] only. A hit that is
        evictable now is used, not evicted, so it does not count as room.
        """
        slots = len(prompt) + reserve - 1
        total = self.blocks_for(slots)
        findable = (len(prompt) - 1) // self.block_tokens
        room = self.available - spare
        if total - findable > room:
            return None  # not even a prompt found in full would fit: spare a waiting request the look-up in each step
        domain = self._full(domain)
        hits = self._index.match(domain, prompt, len(prompt) - 1)
        need = total - len(hits)
        if need > room - sum(1 for node in hits if self._refs[node.block] == 0):
            return None
        return self._hold(domain, hits, slots)

    def admit_apart(self, blocks: int, spare: int = 0) -> Allocation | None:
        """That many blocks whose holder reuses their slots, or None: never index them with `commit_filled`."""
        if blocks > self.available - spare:
            return None
        return self._hold("", [], blocks * self.block_tokens)

    def extend(self, allocation: Allocation, tokens: int, spare: int = 0) -> bool:
        """Reserve `tokens` more slots at once, or say no and change nothing. Never waits.

        `spare` blocks must stay available after it.
        """
        held = self._holding(allocation)
        need = self.blocks_for(held.slots + tokens) - len(held.blocks)
        if need and need > self.available - spare:
            return False
        held.slots += tokens
        if need:
            held.blocks += self._take(need)
            allocation.table = np.array(held.blocks, dtype=np.int32)
        return True

    def commit_filled(self, allocation: Allocation, token_ids: Sequence[int], filled: int) -> None:
        """Index every block that became full: `token_ids[:filled]` are the tokens whose KV is computed.

        Where the same prefix is indexed with another block, that one is referenced instead and the own one freed: by
        the numeric contract their bits are equal. So a holder of an indexed block holds all its parents too.
        """
        held = self._holding(allocation)
        size = self.block_tokens
        while (position := len(held.nodes)) < filled // size:
            own = held.blocks[position]
            tokens = tuple(token_ids[position * size : (position + 1) * size])
            node = self._index.place(held.domain, held.nodes[-1] if held.nodes else None, tokens, own)
            if node.block != own:
                self._reference(node.block)
                self._drop(own)
                held.blocks[position] = node.block
                allocation.table[position] = node.block
            held.nodes.append(node)

    def release(self, allocation: Allocation) -> None:
        """Give up every reference; indexed blocks stay cached, the others become free."""
        held = self._holding(allocation)
        del self._held[allocation.key]
        for block in reversed(held.blocks):  # deepest first, so that a child is always evicted before its parent
            self._drop(block)

    def find(self, token_ids: Sequence[int], domain: str = "") -> tuple[Node, ...]:
        """The full blocks that are indexed for the beginning of a text. Nodes are to be compared by identity."""
        return tuple(self._index.match(self._full(domain), token_ids, len(token_ids)))

    def pin(self, path: Sequence[Node]) -> None:
        """Have what `find` just gave evicted after all without a pin. Pins add up."""
        self._pins.add(path, self._cached)

    def unpin(self, pinned: Sequence[Node]) -> None:
        """Take what `pin` did; blocks that were evicted meanwhile are passed over."""
        self._pins.take(self._still(pinned), self._cached)

    def unreferenced(self, pinned: Sequence[Node]) -> int:
        """How many blocks of what was pinned are held by nobody and were not evicted."""
        return sum(1 for node in self._still(pinned) if not self._refs[node.block])

    def drop_cached(self, domain: str | None = None) -> int:
        """Empty the cache, of one domain or of all; returns the number of blocks that became free."""
        full = None if domain is None else self._full(domain)
        evictable = [*self._cached, *self._pins.order]
        dropped = [block for block in evictable if full is None or self._node(block).domain == full]
        for block in dropped:
            self._evict(block)
        self._free += dropped
        return len(dropped)

    def check_integrity(self) -> None:
        """Raise InvariantViolation, with the numbers, unless all bookkeeping agrees. Costs time in all blocks."""
        evictable = [*self._cached, *self._pins.order]
        audit(self._refs, self._free, evictable, self._index, self._held.values(), self.block_tokens)

    def _full(self, domain: str) -> str:
        """A request's domain as the index knows it: blocks of another identity stand under other roots."""
        return self._identity + domain

    def _hold(self, domain: str, hits: list[Node], slots: int) -> Allocation:
        """Reference the blocks of `hits`, take the rest of `slots`, and write it down."""
        for node in hits:
            self._reference(node.block)
        blocks = [node.block for node in hits] + self._take(self.blocks_for(slots) - len(hits))
        key = self._next_key
        self._next_key += 1
        self._held[key] = Held(domain, blocks, hits, slots)
        return Allocation(key, np.array(blocks, dtype=np.int32), len(hits) * self.block_tokens)

    def _holding(self, allocation: Allocation) -> Held:
        held = self._held.get(allocation.key)
        if held is None:
            raise InvariantViolation(f"allocation {allocation.key} is used after its release")
        return held

    def _reference(self, block: int) -> None:
        if self._refs[block] == 0:
            del (self._pins.order if block in self._pins else self._cached)[block]
        self._refs[block] += 1

    def _drop(self, block: int) -> None:
        self._refs[block] -= 1
        if self._refs[block] > 0:
            return
        if self._index.of_block(block) is None:
            self._free.append(block)
        else:
            (self._pins.order if block in self._pins else self._cached)[block] = None

    def _take(self, count: int) -> list[int]:
        """`count` blocks with one reference each: free ones, then the least recently released, pinned ones last."""
        taken = []
        for _ in range(count):
            if self._free:
                block = self._free.pop()
            else:
                block = next(iter(self._cached or self._pins.order))
                self._evict(block)
            self._refs[block] = 1
            taken.append(block)
        return taken

    def _evict(self, block: int) -> None:
        self._cached.pop(block, None)
        self._pins.evict(block)
        self._index.remove(self._node(block))

    def _still(self, pinned: Sequence[Node]) -> list[Node]:
        return [node for node in pinned if self._index.of_block(node.block) is node]

    def _node(self, block: int) -> Node:
        node = self._index.of_block(block)
        if node is None:
            raise InvariantViolation(f"block {block} is cached but not indexed")
        return node
