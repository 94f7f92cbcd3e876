"""The exact-prefix index: a trie over full blocks, one root per domain.

A node's identity is (parent node, the block's token ids), so a node stands for exactly one token prefix of one domain;
nothing is hashed away. A domain is an opaque name for all else that a block's KV and its sharing depend on (see
`SegmentRequest.domain`). It is not an allocator: which block is free, referenced or evictable is the pool's business.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ghostkv.errors import InvariantViolation
from ghostkv.step import BLOCK_TOKENS

Key = tuple[int, tuple[int, ...]]  # (uid of the parent node, token ids of the block)

_ROOT_BLOCK = -1  # a root stands for the empty prefix and owns no block


@dataclass(slots=True, eq=False)
class Node:
    """One indexed block, or a domain's root."""

    uid: int  # never used again, so a key can never match a later node of the same number
    domain: str
    parent: Node | None  # None for a root
    tokens: tuple[int, ...]
    block: int
    children: int = field(default=0)

    @property
    def key(self) -> Key:
        """What this node is found by; only for nodes that have a parent."""
        if self.parent is None:
            raise InvariantViolation(f"the root of domain {self.domain!r} has no key")
        return self.parent.uid, self.tokens


class PrefixIndex:
    """Finds the block that holds an exact token prefix."""

    def __init__(self, block_tokens: int = BLOCK_TOKENS) -> None:
        self._block_tokens = block_tokens
        self._next_uid = 0
        self._roots: dict[str, Node] = {}  # only domains that have an indexed block
        self._nodes: dict[Key, Node] = {}
        self._by_block: dict[int, Node] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    def of_block(self, block: int) -> Node | None:
        """The node that this block carries."""
        return self._by_block.get(block)

    def match(self, domain: str, tokens: Sequence[int], limit: int) -> list[Node]:
        """Nodes of the longest indexed run of full blocks within the first `limit` tokens, root's child first."""
        found: list[Node] = []
        parent = self._roots.get(domain)
        size = self._block_tokens
        for end in range(size, limit + 1, size):
            if parent is None:
                break
            parent = self._nodes.get((parent.uid, tuple(tokens[end - size : end])))
            if parent is not None:
                found.append(parent)
        return found

    def place(self, domain: str, parent: Node | None, tokens: tuple[int, ...], block: int) -> Node:
        """The node of `tokens` after `parent` (None: at the domain's root); made for `block` if there is none yet.

        The caller sees by `node.block` whether its block was taken.
        """
        above = parent if parent is not None else self._roots.get(domain)
        if above is None:
            above = self._roots[domain] = self._new(domain, None, (), _ROOT_BLOCK)
        node = self._nodes.get((above.uid, tokens))
        if node is None:
            if block in self._by_block:
                raise InvariantViolation(f"block {block} is already indexed as node {self._by_block[block].uid}")
            node = self._new(domain, above, tokens, block)
            self._nodes[node.key] = self._by_block[block] = node
            above.children += 1
        return node

    def remove(self, node: Node) -> None:
        """Take a leaf out; a node with children would leave orphans behind."""
        parent = node.parent
        if node.children or parent is None:
            raise InvariantViolation(f"block {node.block} is removed while {node.children} children are indexed")
        del self._nodes[node.key], self._by_block[node.block]
        parent.children -= 1
        if parent.parent is None and not parent.children:
            del self._roots[parent.domain]  # domains come and go; an empty root is made again when needed

    def check_integrity(self) -> None:
        """Every node is found under its key and by its block, hangs below a live parent, and child counts are true."""
        children: dict[int, int] = {}
        live = {node.uid for node in self._nodes.values()} | {root.uid for root in self._roots.values()}
        for key, node in self._nodes.items():
            if node.parent is None or key != node.key or self._by_block.get(node.block) is not node:
                raise InvariantViolation(f"node {node.uid} and block {node.block} do not point at each other")
            if node.parent.uid not in live or node.domain != node.parent.domain:
                raise InvariantViolation(f"node {node.uid} (block {node.block}) is an orphan of node {node.parent.uid}")
            children[node.parent.uid] = children.get(node.parent.uid, 0) + 1
        if len(self._by_block) != len(self._nodes):
            raise InvariantViolation(f"{len(self._nodes)} nodes are indexed for {len(self._by_block)} blocks")
        for node in (*self._nodes.values(), *self._roots.values()):
            if node.children != children.get(node.uid, 0):
                raise InvariantViolation(
                    f"node {node.uid} counts {node.children} children but has {children.get(node.uid, 0)}"
                )
        empty = [domain for domain, root in self._roots.items() if not root.children]
        if empty:
            raise InvariantViolation(f"{len(empty)} domains without an indexed block still have a root")

    def _new(self, domain: str, parent: Node | None, tokens: tuple[int, ...], block: int) -> Node:
        node = Node(self._next_uid, domain, parent, tokens, block)
        self._next_uid += 1
        return node
