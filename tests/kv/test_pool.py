"""Block ids and eviction order in examples; each one is worked out by hand."""

from __future__ import annotations

import pytest

from ghostkv.errors import ConfigError, InvariantViolation
from ghostkv.kv.pool import Allocation, BlockPool

A = tuple(range(1000, 1160))  # 10 blocks
B = tuple(range(2000, 2160))


def run(pool: BlockPool, tokens: tuple[int, ...], domain: str = "") -> Allocation:
    """Admit exactly `tokens` slots and fill all of them."""
    allocation = pool.admit(tokens, 1, domain)
    assert allocation is not None
    pool.commit_filled(allocation, tokens, len(tokens))
    pool.check_integrity()
    return allocation


def snapshot(pool: BlockPool) -> tuple[object, ...]:
    return list(pool._free), list(pool._cached), list(pool._refs), len(pool._index), len(pool._held)


def test_reservation_covers_all_but_the_last_output_token() -> None:
    pool = BlockPool(8)
    exact = pool.admit(A[:40], 9)  # 48 slots
    over = pool.admit(B[:40], 10)  # 49 slots
    assert exact is not None and exact.table.tolist() == [0, 1, 2] and exact.cached_tokens == 0
    assert exact.table.dtype == "int32"
    assert over is not None and over.table.tolist() == [3, 4, 5, 6]
    assert (pool.free, pool.cached, pool.referenced, pool.available) == (1, 0, 7, 1)
    pool.check_integrity()


def test_unfilled_blocks_become_free_and_the_first_of_them_is_used_next() -> None:
    pool = BlockPool(8)
    first = pool.admit(A[:40], 9)
    assert first is not None
    pool.commit_filled(first, A[:40], 40)  # blocks 0 and 1 are full, block 2 is not
    pool.release(first)
    assert list(pool._cached) == [1, 0]
    assert pool.free == 6
    second = pool.admit(B[:16], 17)  # 32 slots
    assert second is not None and second.table.tolist() == [2, 3]


def test_children_are_evicted_before_parents_and_old_before_new() -> None:
    pool = BlockPool(6)
    old, new = run(pool, A[:48]), run(pool, B[:48])
    assert old.table.tolist() == [0, 1, 2] and new.table.tolist() == [3, 4, 5]
    pool.release(old)
    pool.release(new)
    assert list(pool._cached) == [2, 1, 0, 5, 4, 3]
    third = pool.admit(tuple(range(64)), 1)  # 4 blocks, no hit
    assert third is not None and third.table.tolist() == [2, 1, 0, 5]
    assert list(pool._cached) == [4, 3]
    pool.check_integrity()


def test_a_hit_moves_to_the_back_of_the_eviction_order() -> None:
    pool = BlockPool(6)
    pool.release(run(pool, A[:48]))
    pool.release(run(pool, B[:48]))
    again = pool.admit(A[:33], 1)  # 33 slots: hits blocks 0 and 1, and takes the oldest evictable one, 2
    assert again is not None and again.table.tolist() == [0, 1, 2] and again.cached_tokens == 32
    pool.commit_filled(again, A[:33], 33)
    pool.release(again)
    assert list(pool._cached) == [5, 4, 3, 1, 0]
    assert pool.free == 1
    pool.check_integrity()


def test_the_last_prompt_token_is_always_computed() -> None:
    pool = BlockPool(6)
    pool.release(run(pool, A[:32]))
    same, longer = pool.admit(A[:32], 1), pool.admit(A[:33], 1)
    assert same is not None and same.cached_tokens == 16
    assert longer is not None and longer.cached_tokens == 32


@pytest.mark.parametrize(
    ("reserve", "need", "admitted"),
    [(160, 10, True), (161, 11, False), (208, 13, False), (144, 9, True)],
)
def test_hits_that_are_evictable_are_no_room(reserve: int, need: int, admitted: bool) -> None:
    """20 evictable blocks, 10 of them this request's hits: 10 are left for the rest, whatever 20 may suggest."""
    pool = BlockPool(20)
    pool.release(run(pool, A))
    pool.release(run(pool, B))
    assert (pool.free, pool.cached) == (0, 20)
    prompt = (*A, 7)
    assert -(-(len(prompt) + reserve - 1) // 16) - 10 == need
    before = snapshot(pool)
    allocation = pool.admit(prompt, reserve)
    if admitted:
        assert allocation is not None and allocation.cached_tokens == 160
        assert allocation.table.tolist() == [*range(10), *range(19, 19 - need, -1)]
        assert pool.cached == 10 - need
    else:
        assert allocation is None
        assert snapshot(pool) == before
    pool.check_integrity()


def test_hits_that_are_referenced_cost_no_room() -> None:
    pool = BlockPool(21)
    run(pool, A)  # stays
    pool.release(run(pool, B))
    allocation = pool.admit((*A, 7), 176)  # 336 slots: 21 blocks, 10 referenced hits, 1 free and 10 evictable
    assert allocation is not None
    assert allocation.table.tolist() == [*range(10), 20, *range(19, 9, -1)]
    assert pool.available == 0
    pool.check_integrity()


def test_equal_blocks_are_merged_into_the_indexed_one() -> None:
    pool = BlockPool(8)
    first, second = pool.admit(A[:32], 17), pool.admit(A[:32], 17)  # 48 slots each
    assert first is not None and second is not None
    assert second.cached_tokens == 0  # nothing was computed yet
    pool.commit_filled(first, A[:32], 32)
    pool.commit_filled(second, A[:32], 20)
    assert second.table.tolist() == [0, 4, 5]
    pool.commit_filled(second, A[:32], 32)
    assert second.table.tolist() == [0, 1, 5]
    assert (pool.free, pool.referenced) == (4, 4)
    pool.check_integrity()
    pool.release(first)
    assert list(pool._cached) == []
    pool.release(second)
    assert list(pool._cached) == [1, 0]
    pool.check_integrity()


def test_a_generated_block_is_merged_into_a_cached_one() -> None:
    pool = BlockPool(8)
    pool.release(run(pool, A[:48]))
    request = pool.admit(A[:17], 32)  # 48 slots; hits block 0, then happens to generate the same tokens
    assert request is not None and request.table.tolist() == [0, 3, 4]
    pool.commit_filled(request, A[:48], 48)
    assert request.table.tolist() == [0, 1, 2]
    assert (pool.free, pool.cached, pool.referenced) == (5, 0, 3)
    pool.check_integrity()


def test_domains_share_nothing() -> None:
    pool = BlockPool(12)
    pool.release(run(pool, A[:32], "a"))
    other = pool.admit(A[:33], 1, "b")
    assert other is not None and other.cached_tokens == 0
    pool.commit_filled(other, A[:33], 33)
    own = pool.admit(A[:33], 1, "a")
    assert own is not None and own.cached_tokens == 32
    assert not set(own.table.tolist()) & set(other.table.tolist())
    pool.check_integrity()


def test_equal_blocks_after_different_prefixes_are_different() -> None:
    pool = BlockPool(12)
    pool.release(run(pool, A[:16] + B[:16]))
    other = pool.admit(A[16:32] + B[:16] + (1,), 1)
    assert other is not None and other.cached_tokens == 0


def test_extend_grows_the_table_or_changes_nothing() -> None:
    pool = BlockPool(4)
    allocation = pool.admit(A[:10], 4)  # 13 slots
    assert allocation is not None and allocation.table.tolist() == [0]
    assert pool.extend(allocation, 3)  # 16 slots: the block has them already
    assert allocation.table.tolist() == [0]
    assert pool.extend(allocation, 1)
    assert allocation.table.tolist() == [0, 1]
    assert pool.extend(allocation, 31)  # 48 slots
    assert allocation.table.tolist() == [0, 1, 2]
    before = snapshot(pool)
    assert not pool.extend(allocation, 17)
    assert snapshot(pool) == before
    assert pool.extend(allocation, 16)  # 64 slots: the refusal reserved nothing
    assert allocation.table.tolist() == [0, 1, 2, 3]
    pool.check_integrity()


def test_extend_evicts() -> None:
    pool = BlockPool(4)
    pool.release(run(pool, B[:48]))
    allocation = pool.admit(A[:16], 1)
    assert allocation is not None and pool.extend(allocation, 32)
    assert allocation.table.tolist() == [3, 2, 1]
    assert list(pool._cached) == [0]
    pool.check_integrity()


def test_drop_cached_of_one_domain() -> None:
    pool = BlockPool(12)
    pool.release(run(pool, A[:32], "a"))
    pool.release(run(pool, A[:48], "b"))
    live = run(pool, A[:16], "a")
    assert pool.drop_cached("a") == 1  # the other block is in use
    assert (pool.free, pool.cached, pool.referenced) == (8, 3, 1)
    pool.check_integrity()
    assert pool.drop_cached() == 3
    pool.release(live)
    assert pool.drop_cached() == 1
    assert pool.free == 12
    pool.check_integrity()
    assert pool._index._roots == {}


def test_an_allocation_is_used_after_its_release() -> None:
    pool = BlockPool(4)
    allocation = pool.admit(A[:16], 1)
    assert allocation is not None
    pool.release(allocation)
    for use in (
        lambda: pool.release(allocation),
        lambda: pool.extend(allocation, 1),
        lambda: pool.commit_filled(allocation, A, 16),
    ):
        with pytest.raises(InvariantViolation, match="after its release"):
            use()


def test_budget() -> None:
    assert BlockPool.for_budget(12 * 2**20, 23_040 * 16).num_blocks == 34
    with pytest.raises(ConfigError, match="less than one block"):
        BlockPool.for_budget(1000, 1001)


def _break_reference(pool: BlockPool) -> None:
    pool._refs[0] += 1


def _break_state(pool: BlockPool) -> None:
    pool._free.append(0)


def _break_child(pool: BlockPool) -> None:
    node = pool._index.of_block(0)
    assert node is not None
    node.children += 1


def _break_order(pool: BlockPool) -> None:
    pool._cached.move_to_end(2)


def _break_parent(pool: BlockPool) -> None:
    node = pool._index.of_block(4)
    assert node is not None
    pool._refs[4] += 1
    pool._held[0].blocks.append(4)
    pool._held[0].slots += 16


def _break_index(pool: BlockPool) -> None:
    del pool._index._by_block[0]


def _break_lookup(pool: BlockPool) -> None:
    del pool._index._nodes[next(iter(pool._index._nodes))]


@pytest.mark.parametrize(
    "damage",
    [_break_reference, _break_state, _break_child, _break_order, _break_parent, _break_index, _break_lookup],
)
def test_integrity_check_sees(damage: object) -> None:
    pool = BlockPool(8)
    live = pool.admit(B[:16], 1)
    assert live is not None
    cached, other = pool.admit(A[:48], 1), None
    assert cached is not None
    pool.release(live)
    pool.commit_filled(cached, A, 48)
    pool.release(cached)
    other = run(pool, B[:32])
    assert list(pool._cached) == [3, 2, 1] and other.table.tolist() == [0, 4]
    pool._held = {0: next(iter(pool._held.values()))}
    pool.check_integrity()
    assert callable(damage)
    damage(pool)
    with pytest.raises(InvariantViolation, match=r"\d"):
        pool.check_integrity()


def test_blocks_of_another_identity_are_not_found() -> None:
    """Even in an index that both know: what model, precision and codec wrote is part of a block's name."""
    plain, digits = BlockPool(8, identity="plain"), BlockPool(8, identity="digits")
    plain.release(run(plain, A[:64]))
    digits._index = plain._index
    assert digits._index.match("plain", A[:64], 64)
    found = digits.admit(A[:64], 1)
    assert found is not None and found.cached_tokens == 0
    again = plain.admit(A[:64], 1)
    assert again is not None and again.cached_tokens == 48
