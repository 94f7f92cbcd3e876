"""The pool's self-check: block states, reference counts, index and holdings must tell one story.

It only reads. The pool calls it in check_integrity(); the engine does so when it goes idle, the tests after every
operation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ghostkv.errors import InvariantViolation
from ghostkv.kv.prefix_index import Node, PrefixIndex


@dataclass(slots=True)
class Held:
    """The pool's record of one allocation."""

    domain: str
    blocks: list[int]  # in order of position
    nodes: list[Node]  # of the leading blocks, as far as they are indexed
    slots: int  # reserved token slots


def audit(
    refs: Sequence[int],
    free: Sequence[int],
    cached: Iterable[int],
    index: PrefixIndex,
    holdings: Iterable[Held],
    block_tokens: int,
) -> None:
    """Raise InvariantViolation at the first contradiction; `cached` in order of eviction."""
    holdings, cached = list(holdings), list(cached)
    _check_states(refs, free, cached, index)
    _check_references(refs, holdings, block_tokens)
    index.check_integrity()
    _check_families(refs, cached, index)


def _check_states(refs: Sequence[int], free: Sequence[int], cached: Sequence[int], index: PrefixIndex) -> None:
    """Each block is free, cached or referenced, and exactly one of them."""
    referenced = [block for block, count in enumerate(refs) if count > 0]
    states = Counter([*free, *cached, *referenced])
    wrong = [block for block in range(len(refs)) if states[block] != 1]
    if wrong or len(states) != len(refs):
        raise InvariantViolation(
            f"{len(free)} free + {len(cached)} cached + {len(referenced)} referenced blocks are not {len(refs)}: "
            f"blocks {wrong[:8]} are in no state or in two"
        )
    lost = [block for block in cached if index.of_block(block) is None]
    found = [block for block in free if index.of_block(block) is not None]
    if lost or found:
        raise InvariantViolation(f"cached but not indexed: {lost[:8]}; free but indexed: {found[:8]}")


def _check_references(refs: Sequence[int], holdings: Sequence[Held], block_tokens: int) -> None:
    """Reference counts are the references held, and each holding covers its reservation."""
    counted = Counter(block for held in holdings for block in held.blocks)
    for block, count in enumerate(refs):
        if count != counted[block]:
            raise InvariantViolation(f"block {block} counts {count} references but {counted[block]} are held")
    for held in holdings:
        if len(held.blocks) != -(-held.slots // block_tokens):
            raise InvariantViolation(f"{held.slots} slots are reserved in {len(held.blocks)} blocks of {block_tokens}")
        if [node.block for node in held.nodes] != held.blocks[: len(held.nodes)]:
            raise InvariantViolation(f"indexed blocks {[node.block for node in held.nodes]} are not {held.blocks}")


def _check_families(refs: Sequence[int], cached: Sequence[int], index: PrefixIndex) -> None:
    """A parent has at least its child's references, and is evicted after it."""
    turn = {block: position for position, block in enumerate(cached)}
    for node in index:
        parent = node.parent
        if parent is None or parent.parent is None:
            continue
        if refs[parent.block] < refs[node.block]:
            raise InvariantViolation(
                f"parent block {parent.block} has {refs[parent.block]} references, "
                f"its child {node.block} has {refs[node.block]}"
            )
        if parent.block in turn and turn[node.block] > turn[parent.block]:
            raise InvariantViolation(f"block {parent.block} would be evicted before its child {node.block}")
