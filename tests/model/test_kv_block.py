"""The inner loops of attention against float64, with the processor's product of pairs and without it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from numba import njit

from ghostkv.model import kv_block, pairs
from ghostkv.model import vector as v

SIZE, GROUP = 64, 3
HEADS, CHAINS = (0,) * GROUP, (0,) * 4


def bfloat16(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Rounded, as float64."""
    rounded: npt.NDArray[Any] = torch.from_numpy(x).bfloat16().double().numpy()
    return rounded


def words(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Flat uint16 of values that are bfloat16."""
    bits: npt.NDArray[Any] = torch.from_numpy(x).bfloat16().reshape(-1).view(torch.uint16).numpy().copy()
    return bits


def compiled() -> Any:
    """Both loops over one block, compiled anew: what is on disk was compiled for this processor."""

    @njit
    def both(keys: Any, values: Any, queries: Any, scratch: Any, first: int, last: int) -> None:
        for j in range(0, GROUP * SIZE, 16):
            kv_block.pack(keys, scratch, j // 2, v.load(queries, j))
        kv_block.dot_columns(keys, 0, 0, scratch, 0, SIZE, HEADS, CHAINS, scratch, 1000)
        for head in range(GROUP):
            kv_block.pack(values, scratch, 1100 + 16 * head, v.load(scratch, 1000 + 16 * head))
        kv_block.add_weighted_rows(values, 0, 0, first, last, scratch, 1100, 1200, 1300, SIZE, HEADS)

    return both


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(("first", "last"), [(0, 16), (0, 1), (0, 7), (3, 4), (5, 16), (6, 11)])
def test_a_block_of_pairs(native: bool, first: int, last: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if native and not pairs.native():
        pytest.skip("this processor has no product of pairs")
    monkeypatch.setattr(pairs, "native", lambda: native)
    rng = np.random.default_rng(last)
    keys, values = (bfloat16(rng.normal(0, 1, (16, SIZE))) for _ in range(2))
    queries = bfloat16(rng.normal(0, 0.3, (GROUP, SIZE)))
    before = rng.normal(0, 1, (GROUP, SIZE)).astype(np.float32)
    unseen = np.ones(16, dtype=bool)
    unseen[first:last] = False
    scratch = np.zeros(1300 + GROUP * SIZE, dtype=np.float32)
    scratch[1200 : 1200 + GROUP] = 0.5
    scratch[1300:] = before.reshape(-1)
    stored_values = values.copy()
    stored_values[unseen] = np.nan
    compiled()(
        words(keys.reshape(16, SIZE // 2, 2).transpose(1, 0, 2)),
        words(stored_values.reshape(8, 2, SIZE).transpose(0, 2, 1)),
        queries.astype(np.float32).reshape(-1), scratch, first, last,
    )  # fmt: skip
    scores = scratch[1000 : 1000 + GROUP * 16].reshape(GROUP, 16)
    assert np.abs(scores - queries @ keys.T).max() < 1e-5
    weights = bfloat16(scores)
    weights[:, unseen] = 0
    totals = scratch[1300:].reshape(GROUP, SIZE)
    assert np.abs(totals - (0.5 * before + weights @ values)).max() < 1e-5


def test_a_channel_of_a_block_is_what_was_written_there() -> None:
    @njit
    def through(x: Any, keys: Any, values: Any, out: Any, slot: int) -> None:
        each = kv_block.per_word(keys)
        for j in range(0, SIZE, 16):
            kv_block.store_key(keys, slot * each + j * 16, v.load(x, j))
            kv_block.store_value(values, slot // each * each * SIZE + slot % each + j * each, v.load(x, j))
        for j in range(SIZE):
            v.store(out, 16 * j, kv_block.channel(keys, 0, j))

    x = np.arange(1, SIZE + 1, dtype=np.float32)
    for kind in (np.uint16, np.float32, np.int8):
        for slot in (0, 5, 15):
            keys, values = (np.zeros(16 * SIZE, dtype=kind) for _ in range(2))
            out = np.zeros(16 * SIZE, dtype=np.float32)
            through(x, keys, values, out, slot)
            found = out.reshape(SIZE, 16)
            assert np.array_equal(found[:, slot], x) and not np.delete(found, slot, axis=1).any()
            p = 2 if kind is np.uint16 else 1
            by_slot = values.reshape(16 // p, SIZE, p).swapaxes(1, 2).reshape(16, SIZE)
            assert by_slot[slot].all() and not np.delete(by_slot, slot, axis=0).any()
