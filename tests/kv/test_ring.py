"""The ring against its purpose: whatever a step overwrites, nothing that one of its tokens sees is gone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ghostkv.errors import ConfigError, InvalidRequest
from ghostkv.kv.pool import BlockPool
from ghostkv.kv.ring import Ring
from ghostkv.request import Window

WINDOWS = st.builds(Window, sinks=st.integers(0, 40), recent=st.integers(1, 80))


def seen(window: Window, token: int) -> list[int]:
    """StreamingLLM's definition."""
    return [t for t in range(token + 1) if t < window.sinks or t > token - window.recent]


@given(window=WINDOWS, steps=st.lists(st.integers(1, 200), min_size=1, max_size=12))
def test_what_a_token_sees_is_where_it_was_written(window: Window, steps: list[int]) -> None:
    ring = Ring(window)
    memory = np.full(ring.blocks * 16, -1)
    start = 0
    for wanted in steps:
        tokens = np.arange(start, min(start + wanted, ring.chunk_end(start)))
        slots = ring.slots(tokens)
        memory[slots] = tokens
        for token, gone in zip(tokens.tolist(), ring.gone(tokens).tolist(), strict=True):
            visible = seen(window, token)
            assert memory[ring.slots(np.array(visible))].tolist() == visible
            assert len(visible) == token + 1 - gone == ring.resident(token + 1)
        start = int(tokens[-1]) + 1


@given(window=WINDOWS, start=st.integers(0, 500))
def test_a_step_may_compute_a_block_and_more_and_the_next_token_would_hurt(window: Window, start: int) -> None:
    ring = Ring(window)
    end = ring.chunk_end(start)
    assert end - start > 32
    oldest = min((token for token in seen(window, start) if token >= window.sinks), default=start)
    assert (
        start <= window.sinks
        or int(ring.slots(np.array(end))) == int(ring.slots(np.array(oldest)))
        or (end == window.sinks + ring.ring_blocks * 16)
    )


def test_a_layout_worked_out_by_hand() -> None:
    ring = Ring(Window(4, 20))  # one block of sinks, then two for the window and two to spare
    assert (ring.sink_blocks, ring.ring_blocks, ring.blocks) == (1, 4, 5)
    tokens = np.array([0, 3, 4, 5, 67, 68, 131, 132])
    assert ring.slots(tokens).tolist() == [0, 3, 16, 17, 79, 16, 79, 16]
    assert ring.gone(np.array([0, 23, 24, 25])).tolist() == [0, 0, 1, 2]
    assert (ring.chunk_end(0), ring.chunk_end(23), ring.chunk_end(24)) == (68, 68, 69)


def test_no_sinks_take_no_block() -> None:
    assert Ring(Window(0, 1)).blocks == 3
    with pytest.raises(ConfigError, match="not even see itself"):
        Window(4, 0)


def test_what_pool_or_context_cannot_hold_is_refused() -> None:
    ring = Ring(Window(4, 60))
    ring.check_fits(7, 64)
    for blocks, context in ((6, 64), (7, 63)):
        with pytest.raises(InvalidRequest, match="needs 7 KV blocks") as refused:
            ring.check_fits(blocks, context)
        assert refused.value.param == "ghostkv.residency"


def test_blocks_apart_evict_what_is_cached_and_are_free_at_once() -> None:
    pool, tokens = BlockPool(6), tuple(range(64))
    cached = pool.admit(tokens, 1)
    assert cached is not None
    pool.commit_filled(cached, tokens, 64)
    pool.release(cached)
    assert (pool.free, pool.cached) == (2, 4)
    assert pool.admit_apart(7) is None
    held = pool.admit_apart(5)
    assert held is not None and len(set(held.table.tolist())) == 5 and held.cached_tokens == 0
    assert (pool.free, pool.cached, pool.referenced) == (0, 1, 5)
    pool.check_integrity()
    pool.release(held)
    assert (pool.free, pool.cached, pool.referenced) == (5, 1, 0)
    pool.check_integrity()
