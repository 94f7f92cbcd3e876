"""KV as digits: the reference against its definition, the compiled routines against the reference in float64."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ghostkv.config import EngineConfig
from ghostkv.errors import ConfigError
from ghostkv.model import int8, kernels, kv_codec
from ghostkv.model.kv_tensors import BLOCK_SCALES, KVTensors, LayerKV, block_bytes
from ghostkv.model.load import load_model, pool_bytes
from ghostkv.model.rope import Rope
from ghostkv.model.shape import LayerShape, ModelShape
from ghostkv.request import Window
from model.lab import Lab, request, same_bits
from model.test_window import under

Array = npt.NDArray[Any]
RNG = np.random.default_rng


def shape_of(size: int, kv_heads: int = 2, group: int = 3) -> ModelShape:
    heads = kv_heads * group
    layer = LayerShape(Rope())
    return ModelShape("llama", 1, heads * size, heads, kv_heads, size, 64, 99, 1e-5, 512, tied=True, attention=(layer,))


def pool(shape: ModelShape, blocks: int) -> LayerKV:
    (layer,) = KVTensors(shape, blocks, torch.int8, torch.device("cpu")).layers
    return layer


def vectors(shape: ModelShape, count: int, seed: int = 0) -> torch.Tensor:
    """Float32 [count, kv_heads, size] of which a few channels are far larger than the others, as in keys."""
    x = torch.from_numpy(RNG(seed).normal(0, 1, (count, shape.kv_heads, shape.head_size)).astype(np.float32))
    x[..., 3] *= 30
    return x


@given(
    values=st.lists(st.floats(-3e4, 3e4, width=32), min_size=64, max_size=64),
    exponent=st.integers(-60, 60),
)
def test_a_digit_is_the_nearest_one(values: list[float], exponent: int) -> None:
    """Half a step of the largest value / 127, also where bfloat16 rounds that step down."""
    x = torch.tensor([values]) * 2.0**exponent
    digits, scales = kv_codec.to_digits(x)
    assert torch.equal(digits, digits.round()) and digits.abs().max() <= 127
    back = digits.double() * scales.double()
    assert ((back - x.double()).abs() <= scales.double() * (0.5 + 1e-6)).all()
    assert float(scales) <= float(x.abs().max()) / 127 * (1 + 2**-8)


@pytest.mark.parametrize("size", [64, 128, 96])
def test_what_is_read_is_what_was_written_up_to_half_a_digit(size: int) -> None:
    """96: heads that are no power of two."""
    shape = shape_of(size)
    layer, slots = pool(shape, 4), torch.tensor([33, 0, 63])
    keys, values = vectors(shape, 3), vectors(shape, 3, 1)
    kv_codec.write(layer, slots, keys, values, shape)
    read_keys, read_values = kv_codec.read(layer, slots, shape)
    step = values.abs().amax(-1, keepdim=True) / 127
    assert ((read_values - values).abs() <= 0.502 * step).all()
    # The error of turned keys is spread evenly: of n channels each errs by less than half a step of their own largest.
    turned = kv_codec.turn(keys) / int8.hadamard_block(size)
    bound = turned.abs().amax(-1, keepdim=True) / 127 * 0.502 * int8.hadamard_block(size)
    assert ((read_keys - keys).abs() <= bound).all()
    error, plain = (read_keys - keys).square().mean().sqrt(), (read_values - values).square().mean().sqrt()
    assert error < 0.6 * plain  # one large channel costs the others less than it does where nothing is turned


def compiled(shape: ModelShape, layer: LayerKV, qkv: Array, slots: Array, positions: Array, threads: int) -> Array:
    """`rotate_and_write` over float32 [rows, heads + 2 kv_heads, size]; the queries."""
    rows, size = len(qkv), shape.head_size
    queries = np.zeros((rows, shape.heads, size), dtype=np.float32)
    angles = np.outer(np.arange(100), 10000.0 ** (-np.arange(0, size, 2) / size))
    rope = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    kernels.rotate_and_write(
        qkv.reshape(-1), queries.reshape(-1), *arrays(layer), slots, positions, positions,
        rope[0].reshape(-1), rope[1].reshape(-1), None, None, np.full(threads * size, np.nan, dtype=np.float32),
        rows, shape.heads, shape.kv_heads, size, 1e-5, 1.0, threads,
    )  # fmt: skip
    return queries


def arrays(layer: LayerKV) -> tuple[Array, Array, Array]:
    assert layer.scales is not None
    return layer.keys.numpy(), layer.values.numpy(), layer.scales.view(torch.uint16).numpy()


@pytest.mark.parametrize("size", [16, 64, 80, 96, 128])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_compiled_write(size: int, threads: int) -> None:
    shape, rng = shape_of(size), RNG(size)
    qkv = rng.normal(0, 1, (5, shape.heads + 2 * shape.kv_heads, size)).astype(np.float32)
    qkv[:, :, 7] *= 20
    slots, positions = np.array([0, 33, 17, 5, 47]), np.zeros(5, dtype=np.int32)
    ours, reference = pool(shape, 3), pool(shape, 3)
    compiled(shape, ours, qkv, slots, positions, threads)
    keys, values = (torch.from_numpy(qkv[:, shape.heads :])).chunk(2, dim=1)
    kv_codec.write(reference, torch.from_numpy(slots), keys, values, shape)
    assert ours.scales is not None and reference.scales is not None
    assert torch.equal(ours.values, reference.values)
    # Sums in another order may put a turned value on the other side of a tie, or of two scales.
    assert (ours.keys.int() - reference.keys.int()).abs().max() <= 1
    assert (ours.keys != reference.keys).float().mean() < 1e-2
    assert torch.allclose(ours.scales.float(), reference.scales.float(), rtol=2**-7, atol=0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_not_hidden(bad: float) -> None:
    shape = shape_of(64)
    qkv = np.ones((1, shape.heads + 2 * shape.kv_heads, 64), dtype=np.float32)
    qkv[0, shape.heads, 9] = qkv[0, -1, 50] = bad
    layer, slots = pool(shape, 1), torch.tensor([3])
    compiled(shape, layer, qkv, slots.numpy(), np.zeros(1, dtype=np.int32), 1)
    reference = pool(shape, 1)
    wide_keys, wide_values = torch.from_numpy(qkv[:, shape.heads :]).chunk(2, dim=1)
    kv_codec.write(reference, slots, wide_keys, wide_values, shape)
    for stored in (layer, reference):
        keys, values = kv_codec.read(stored, slots, shape)
        assert keys[0, 0].isnan().all() and values[0, 1].isnan().all()
        assert keys[0, 1].isfinite().all() and values[0, 0].isfinite().all()


@pytest.mark.parametrize("size", [16, 64, 80, 96, 128])
@pytest.mark.parametrize("group", [1, 3, 5])
def test_attention_reads_digits(size: int, group: int) -> None:
    """Against float64 over what the reference reads from the same slots."""
    shape, rng, blocks = shape_of(size, group=group), RNG(size + group), 12
    layer = pool(shape, blocks)
    everything = torch.arange(16 * blocks)
    kv_codec.write(layer, everything, vectors(shape, 16 * blocks, 2), vectors(shape, 16 * blocks, 3), shape)
    tables = np.array([[7, 2, 11, 0], [3, 9, 0, 0]], dtype=np.int32)
    sequences = np.array([0, 0, 0, 1, 1], dtype=np.int32)
    positions = np.array([0, 15, 50, 16, 31], dtype=np.int32)
    queries = rng.normal(0, 0.1, (5, shape.heads, size)).astype(np.float32)
    found = []
    for threads in (1, 2):
        output = np.zeros(5 * shape.heads * size, dtype=np.float32)
        scratch = kernels.attention_scratch(threads, group, size)
        scratch[:] = np.nan
        kernels.attend(
            queries.copy().reshape(-1), *arrays(layer), tables.reshape(-1), 4, sequences, positions, output, scratch,
            np.arange(5), None, shape.kv_heads, *kernels.group_lengths(group), size, threads,
        )  # fmt: skip
        found.append(output.reshape(5, shape.kv_heads, group, size))
    assert np.array_equal(found[0], found[1])
    for row in range(5):
        slots = (tables[sequences[row]][:, None].astype(np.int64) * 16 + np.arange(16)).reshape(-1)
        keys, values = (
            part.double().numpy()[: positions[row] + 1] for part in kv_codec.read(layer, torch.from_numpy(slots), shape)
        )
        scores = np.einsum("hgd,thd->hgt", queries[row].reshape(shape.kv_heads, group, size).astype(np.float64), keys)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        expected = np.einsum("hgt,thd->hgd", weights / weights.sum(-1, keepdims=True), values)
        assert np.abs(found[0][row] - expected).max() <= 2e-5 * np.abs(expected).max()


def test_what_stands_behind_the_last_token_is_not_seen() -> None:
    shape = shape_of(64, kv_heads=1, group=1)
    layer = pool(shape, 1)
    kv_codec.write(layer, torch.arange(16), vectors(shape, 16), vectors(shape, 16, 1), shape)

    def attend() -> Array:
        output = np.zeros(64, dtype=np.float32)
        at, four, members = np.zeros(1, np.int32), np.array([4], np.int32), np.zeros(1, np.int64)
        query, scratch = np.ones(64, dtype=np.float32), kernels.attention_scratch(1, 1, 64)
        kernels.attend(
            query, *arrays(layer), at, 1, at, four, output, scratch, members, None, 1, *kernels.group_lengths(1), 64, 1
        )
        return output

    clean = attend()
    assert layer.scales is not None
    layer.scales.view(-1, 16)[:, 5:] = torch.nan
    layer.keys.view(64, 16)[:, 5:] = 127
    layer.values.view(16, 64)[5:] = -127
    assert np.isfinite(clean).all() and np.array_equal(attend(), clean)


def test_nearly_twice_the_blocks() -> None:
    shape = shape_of(64)
    plain, small = block_bytes(shape, torch.bfloat16), block_bytes(shape, torch.int8)
    layer = pool(shape, 10)
    assert layer.scales is not None
    held = layer.keys.nbytes + layer.values.nbytes + layer.scales[: 10 * shape.kv_heads * BLOCK_SCALES].nbytes
    assert held == 10 * small
    assert small % 16 == 0  # a token's share is whole bytes
    assert 1.9 < plain / small < 2


def test_close_to_the_model_without_it(small_hf: Path) -> None:
    """And not equal to it, so that the tests of the contract under int8 KV do look at digits."""
    runs = []
    for kv_dtype in (torch.float32, torch.int8):
        lab = Lab(small_hf, torch.float32, kv_dtype=kv_dtype)
        ids = RNG(4).integers(3, lab.shape.vocab, 90).tolist()
        requests = [request("plain", ids, 1), under(Window(4, 37), request("windowed", ids, 1))]
        runs.append(lab.engine().run(requests))
    plain, digits = runs
    for name in ("plain", "windowed"):
        (ours,), (reference,) = digits.rows(name).values(), plain.rows(name).values()
        assert not same_bits(digits.rows(name), plain.rows(name))
        assert (ours - reference).abs().max() < 0.05 * reference.abs().max()


def test_chosen_at_load_it_is_another_identity(small_hf: Path) -> None:
    plain = EngineConfig(dtype="bfloat16", kv_budget=2**20, max_sequences=4, step_tokens=16)
    digits = replace(plain, kv_dtype="int8")
    models = [load_model(small_hf, config) for config in (plain, digits)]
    assert models[0].manifest != models[1].manifest
    assert models[1].blocks / models[0].blocks > 1.9
    for config, model in zip((plain, digits), models, strict=True):
        assert model.blocks * model.block_bytes <= config.kv_budget < (model.blocks + 1) * model.block_bytes
        assert pool_bytes(small_hf, config, model.blocks) == model.blocks * model.block_bytes


def test_an_unknown_kv_dtype_is_refused_by_name(small_hf: Path) -> None:
    with pytest.raises(ConfigError, match="kv_dtype 'int3' is not one of auto, int8"):
        load_model(small_hf, EngineConfig(kv_dtype="int3"))
