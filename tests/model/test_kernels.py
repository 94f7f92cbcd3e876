"""Each compiled routine against float64 numpy, over widths that are no multiple of a vector."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from ghostkv.model import kernels
from ghostkv.model.activations import ACTIVATIONS

Array = npt.NDArray[Any]
RNG = np.random.default_rng


def stored(x: Array, dtype: str) -> tuple[Array, Array]:
    """(what the kernel reads, the same values as float64)."""
    if dtype == "float32":
        flat = x.astype(np.float32).reshape(-1)
        return flat, flat.astype(np.float64).reshape(x.shape)
    half = torch.from_numpy(x.astype(np.float32)).bfloat16()
    return half.reshape(-1).view(torch.uint16).numpy().copy(), half.double().numpy()


def read(flat: Array, shape: tuple[int, ...]) -> Array:
    if flat.dtype == np.uint16:
        wide: Array = torch.from_numpy(flat.copy()).view(torch.bfloat16).double().numpy()
        return wide.reshape(shape)
    narrow: Array = flat.astype(np.float64)
    return narrow.reshape(shape)


def empty(count: int, dtype: str) -> Array:
    return np.zeros(count, dtype=np.float32 if dtype == "float32" else np.uint16)


def tolerance(dtype: str) -> float:
    return 3e-6 if dtype == "float32" else 2**-8


def close(found: Array, expected: Array, dtype: str, roundings: int = 1) -> None:
    scale = np.abs(expected).max()
    assert np.abs(found - expected).max() <= roundings * tolerance(dtype) * scale


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("width", [5, 16, 72, 100, 576, 577])
@pytest.mark.parametrize("threads", [1, 2])
def test_norms(dtype: str, width: int, threads: int) -> None:
    residual = RNG(width).normal(0, 3, (7, width)).astype(np.float32)
    delta, delta64 = stored(RNG(1).normal(0, 1, (7, width)), dtype)
    weight, weight64 = stored(RNG(2).normal(1, 0.2, width), dtype)
    output = empty(7 * width, dtype)

    def norm64(x: Array) -> Array:
        x = x.astype(np.float64)
        normed: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight64
        return normed

    rows = np.array([4, 0, 6])
    kernels.norm(residual.reshape(-1), rows, weight, output, 3, width, 1e-5, threads)
    close(read(output, (7, width))[:3], norm64(residual[rows]), dtype)
    assert not output[3 * width :].any()

    summed = residual.copy()
    kernels.add_norm(summed.reshape(-1), delta, weight, output, 7, width, 1e-5, threads)
    close(summed.astype(np.float64), residual + delta64, "float32")
    close(read(output, (7, width)), norm64(residual + delta64), dtype)

    kernels.add(residual.reshape(-1), delta, 7, width, threads)
    assert np.array_equal(residual, summed)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("width", [5, 16, 100, 1536])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gated(dtype: str, width: int, name: str) -> None:
    x, x64 = stored(RNG(width).normal(0, 4, (5, 2 * width)), dtype)
    output = empty(5 * width, dtype)
    kernels.gated(x, output, 5, width, ACTIVATIONS[name], 2)
    gate, up = x64[:, :width], x64[:, width:]
    activated = gate / (1 + np.exp(-gate))
    if name == "gelu_pytorch_tanh":
        activated = gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
    close(read(output, (5, width)), activated * up, dtype)


@pytest.mark.parametrize("activation", ACTIVATIONS.values())
def test_gated_at_the_ends_of_the_range(activation: int) -> None:
    gate = np.array([[-1e4, -200.0, -88.0, 0.0, 88.0, 1e4]], dtype=np.float32)
    x = np.concatenate([gate, np.ones_like(gate)], axis=1)
    output = np.zeros(6, dtype=np.float32)
    kernels.gated(x.reshape(-1), output, 1, 6, activation, 1)
    assert output == pytest.approx([0.0, 0.0, 0.0, 0.0, 88.0, 1e4], abs=1e-30)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("width", [5, 16, 100])
def test_embed(dtype: str, width: int) -> None:
    table, table64 = stored(RNG(3).normal(0, 1, (11, width)), dtype)
    residual = np.zeros(4 * width, dtype=np.float32)
    ids = np.array([10, 0, 3, 3], dtype=np.int32)
    kernels.embed(ids, table, residual, 4, width, 2)
    assert np.array_equal(residual.reshape(4, width), table64[ids].astype(np.float32))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("size", [16, 48, 64, 80, 128, 256])
@pytest.mark.parametrize("parts", ["", "rope", "bias+rope", "rope+norm"])
def test_projections_and_slots(dtype: str, size: int, parts: str) -> None:
    rows, heads, kv_heads, blocks = 5, 4, 2, 3
    x, x64 = stored(RNG(size).normal(0, 1, (rows, heads + 2 * kv_heads, size)), dtype)
    keys = empty(blocks * kv_heads * size * 16, dtype)
    values = empty(blocks * kv_heads * size * 16, dtype)
    queries = np.zeros(rows * heads * size, dtype=np.float32)
    positions = np.array([0, 1, 17, 40, 99], dtype=np.int32)
    slots = np.array([0, 33, 17, 5, 47])
    angles = np.outer(np.arange(100), 10000.0 ** (-np.arange(0, size, 2) / size))
    rope = [table.astype(np.float32).reshape(-1) for table in (np.cos(angles), np.sin(angles))]
    bias = RNG(1).normal(0, 1, x64.shape[1:]).astype(np.float32)
    norms = RNG(2).normal(1, 0.3, (2, size)).astype(np.float32)
    kernels.rotate_and_write(
        x, queries, keys, values, None, slots, positions, positions, *(rope if "rope" in parts else (None, None)),
        bias.reshape(-1) if "bias" in parts else None, norms.reshape(-1) if "norm" in parts else None,
        np.full(2 * size, np.nan, dtype=np.float32), rows, heads, kv_heads, size, 1e-5, size**-0.5, 2,
    )  # fmt: skip
    expected64 = x64 + bias if "bias" in parts else x64
    turned64 = expected64
    if "norm" in parts:
        normed = expected64 / np.sqrt((expected64**2).mean(-1, keepdims=True) + 1e-5)
        turned64 = normed * np.repeat(norms, (heads, 2 * kv_heads), axis=0)
    if "rope" in parts:
        pairs = turned64[..., : size // 2] + 1j * turned64[..., size // 2 :]
        turned = pairs * np.exp(1j * angles[positions])[:, None]
        turned64 = np.concatenate([turned.real, turned.imag], axis=-1)
    close(queries.reshape(rows, heads, size).astype(np.float64), turned64[:, :heads] * size**-0.5, "float32")
    p = 2 if dtype == "bfloat16" else 1
    by_slot = read(keys, (blocks, kv_heads, size // p, 16, p)).transpose(0, 3, 1, 2, 4).reshape(-1, kv_heads, size)
    close(by_slot[slots], turned64[:, heads : heads + kv_heads], dtype)
    by_pair = read(values, (blocks, kv_heads, 16 // p, size, p))
    value_by_slot = by_pair.transpose(0, 2, 4, 1, 3).reshape(-1, kv_heads, size)
    close(value_by_slot[slots], expected64[:, heads + kv_heads :], dtype)
    if "bias" not in parts:
        assert np.array_equal(value_by_slot[slots], x64[:, heads + kv_heads :])
    untouched = np.setdiff1d(np.arange(blocks * 16), slots)
    assert not by_slot[untouched].any() and not value_by_slot[untouched].any()


def laid_keys(keys: Array, dtype: str) -> Array:
    """[blocks, kv_heads, size, 16] as the pool holds them: channels by word."""
    p = 2 if dtype == "bfloat16" else 1
    blocks, kv_heads, size, slots = keys.shape
    return stored(keys.reshape(blocks, kv_heads, size // p, p, slots).swapaxes(3, 4), dtype)[0]


def laid_values(values: Array, dtype: str) -> Array:
    """[blocks, kv_heads, 16, size] as the pool holds them: slots by word."""
    p = 2 if dtype == "bfloat16" else 1
    blocks, kv_heads, slots, size = values.shape
    return stored(values.reshape(blocks, kv_heads, slots // p, p, size).swapaxes(3, 4), dtype)[0]


def blocks_of(rng: Any, blocks: int, kv_heads: int, size: int, dtype: str) -> tuple[Array, Array, Array, Array]:
    """Random keys and values as the pool holds them, and their values as [.., size, 16] and [.., 16, size]."""
    keys = stored(rng.normal(0, 1, (blocks, kv_heads, size, 16)), dtype)[1]
    values = stored(rng.normal(0, 1, (blocks, kv_heads, 16, size)), dtype)[1]
    return laid_keys(keys, dtype), laid_values(values, dtype), keys, values


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("size", [16, 64, 80, 128, 208, 256])
@pytest.mark.parametrize(
    ("group", "window"), [(1, None), (3, None), (5, None), (3, 1), (3, 16), (3, 20)]
)  # each group is compiled for
def test_attention(dtype: str, size: int, group: int, window: int | None) -> None:
    kv_heads, blocks = 2, 12
    rng = RNG(size + group)
    keys, values, keys64, values64 = blocks_of(rng, blocks, kv_heads, size, dtype)
    tables = np.array([[7, 2, 11, 0], [3, 9, 0, 0]], dtype=np.int32)
    sequences = np.array([0, 0, 0, 1, 1], dtype=np.int32)
    positions = np.array([0, 15, 50, 16, 31], dtype=np.int32)
    # Rounded as the kernel will: what is left is the rounding of weights and of the result.
    queries = stored(rng.normal(0, 0.3, (5, kv_heads * group, size)), dtype)[1].astype(np.float32)
    output = empty(5 * kv_heads * group * size, dtype)
    for threads in (1, 2):
        scratch = kernels.attention_scratch(threads, group, size)
        scratch[:] = np.nan
        kernels.attend(
            queries.reshape(-1), keys, values, None, tables.reshape(-1), 4, sequences, positions, output, scratch,
            np.arange(5), window, kv_heads, *kernels.group_lengths(group), size, threads,
        )  # fmt: skip
        found = read(output, (5, kv_heads, group, size))
        for row in range(5):
            table, visible = tables[sequences[row]], positions[row] + 1
            seen = slice(0 if window is None else max(visible - window, 0), visible)
            k = keys64[table].transpose(1, 0, 3, 2).reshape(kv_heads, -1, size)[:, seen]
            v = values64[table].transpose(1, 0, 2, 3).reshape(kv_heads, -1, size)[:, seen]
            scores = np.einsum("hgd,htd->hgt", queries[row].reshape(kv_heads, group, size).astype(np.float64), k)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            close(found[row], np.einsum("hgt,htd->hgd", weights, v), dtype, roundings=2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("group", "window"), [*((group, None) for group in (1, 3, 4, 7, 8, 9, 16)), (3, 33)])
def test_rows_that_share_blocks_are_attended_as_if_alone(dtype: str, group: int, window: int | None) -> None:
    """Rows of one request, and of requests with a common prefix, that stand beside each other."""
    kv_heads, blocks, size, rng = 2, 9, 64, RNG(group)
    keys, values, _, _ = blocks_of(rng, blocks, kv_heads, size, dtype)
    tables = np.array([[7, 2, 5, 0], [7, 2, 8, 4], [7, 1, 5, 0], [3, 2, 5, 0]], dtype=np.int32)
    sequences = np.array([0, 0, 1, 1, 1, 2, 3, 0, 1, 2, 2], dtype=np.int32)
    positions = np.array([31, 32, 40, 41, 60, 47, 47, 15, 14, 16, 33], dtype=np.int32)
    count = len(sequences)
    queries = rng.normal(0, 0.3, (count, kv_heads * group, size)).astype(np.float32).reshape(-1)

    def attend(members: list[int], threads: int) -> Array:
        output, scratch = empty(len(queries), dtype), kernels.attention_scratch(threads, group, size)
        scratch[:] = np.nan
        kernels.attend(
            queries, keys, values, None, tables.reshape(-1), 4, sequences, positions, output, scratch,
            np.array(members), window, kv_heads, *kernels.group_lengths(group), size, threads,
        )  # fmt: skip
        return output.reshape(count, -1)

    alone = np.stack([attend([row], 1)[row] for row in range(count)])
    for threads in (1, 2):
        assert np.array_equal(attend(list(range(count)), threads), alone)
        assert np.array_equal(attend(list(range(1, count)), threads)[1:], alone[1:])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("window", [1, 5, 16, 18])
def test_attention_ignores_what_stands_before_its_window(dtype: str, window: int) -> None:
    """Whole blocks and slots alike, whatever they hold."""
    size, last = 64, 36
    _, _, keys64, values64 = blocks_of(RNG(9), 3, 1, size, dtype)
    query, gone = np.ones(size, dtype=np.float32), last + 1 - window

    def attend() -> Array:
        output, scratch = empty(size, dtype), kernels.attention_scratch(1, 1, size)
        keys, values = laid_keys(keys64, dtype), laid_values(values64, dtype)
        zero = np.zeros(1, dtype=np.int32)
        kernels.attend(
            query, keys, values, None, np.arange(3, dtype=np.int32), 3, zero, zero + last, output, scratch,
            np.zeros(1, np.int64), window, 1, *kernels.group_lengths(1), size, 1,
        )  # fmt: skip
        return output

    clean = attend()
    for token in range(gone):
        keys64[token // 16, ..., token % 16] = np.nan
        values64[token // 16, :, token % 16] = np.inf
    assert np.isfinite(read(clean, (size,))).all()
    assert np.array_equal(attend(), clean)
    values64[gone // 16, :, gone % 16] = np.inf
    assert not np.array_equal(attend(), clean)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("seen", [1, 2, 5, 8, 15, 16])
def test_attention_ignores_what_stands_behind_the_last_token(dtype: str, seen: int) -> None:
    size = 64
    _, _, keys64, values64 = blocks_of(RNG(9), 1, 1, size, dtype)
    query = np.ones(size, dtype=np.float32)

    def attend() -> Array:
        output, scratch = empty(size, dtype), kernels.attention_scratch(1, 1, size)
        keys, values = laid_keys(keys64, dtype), laid_values(values64, dtype)
        one = np.zeros(1, dtype=np.int32)
        kernels.attend(
            query, keys, values, None, one, 1, one, one + (seen - 1), output, scratch, np.zeros(1, np.int64), None, 1,
            *kernels.group_lengths(1), size, 1,
        )  # fmt: skip
        return output

    clean = attend()
    keys64[..., seen:] = np.nan
    values64[..., seen:, :] = np.inf
    assert np.array_equal(attend(), clean)
