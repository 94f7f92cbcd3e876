"""Products over panels against float64 and against the library's integer product, for every number of rows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy.typing as npt
import pytest
import torch

from ghostkv.model import int8, kernels
from ghostkv.model.activations import ACTIVATIONS
from ghostkv.model.gemm import Linear, lay_out_int8, prepare, product
from ghostkv.model.panels import Panels, readable
from ghostkv.model.threads import compute

SHAPES = [(960, 576), (48, 8), (49, 12), (40, 24), (100, 96), (7, 4), (1, 4), (145, 1536)]
ROWS = [1, 2, 3, 7, 8, 9, 16, 17, 65, 130]

bfloat16_only = pytest.mark.skipif(
    not readable(torch.zeros(1, 2, dtype=torch.bfloat16)),
    reason="this processor's products of bfloat16 are the library's",
)
int8_only = pytest.mark.skipif(
    not readable(torch.zeros(1, 4, dtype=torch.int8)), reason="the library multiplies int8 on this processor"
)


def normal(seed: int, *sizes: int) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed))


def digits(weight: torch.Tensor, fine: int = 0) -> tuple[Linear, Linear]:
    """(plain, in panels)."""
    plain = int8.prepare_int8(weight, 1, fine)
    return plain, lay_out_int8(plain)


def flat(x: torch.Tensor) -> npt.NDArray[Any]:
    return (x.view(torch.uint16) if x.dtype == torch.bfloat16 else x).view(-1).numpy()


def random_bytes(rows: int, inputs: int) -> torch.Tensor:
    return torch.randint(1, 256, (rows, inputs), dtype=torch.uint8, generator=torch.Generator().manual_seed(rows))


@bfloat16_only
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_bfloat16_is_near_the_true_product_and_a_row_does_not_know_its_neighbours(outputs: int, inputs: int) -> None:
    weight = normal(outputs, outputs, inputs).bfloat16()
    linear = prepare(weight)
    assert isinstance(linear.data, Panels) and torch.equal(linear.dense(), weight)
    x = normal(inputs, max(ROWS), inputs).bfloat16()
    exact = x.double() @ weight.double().t()
    with compute(1):
        alone = torch.cat([product(row[None], linear) for row in x])
    assert (alone - exact).abs().max() <= 1e-6 * inputs * exact.abs().max()
    for threads in (1, 2):
        for rows in ROWS:
            with compute(threads):
                assert torch.equal(product(x[-rows:], linear), alone[-rows:])


@int8_only
@pytest.mark.parametrize(
    ("outputs", "inputs", "fine"), [(*shape, fine) for shape in SHAPES for fine in (0, 1, 24, 192) if fine <= shape[0]]
)
def test_digits_are_the_library_s_exact_product(outputs: int, inputs: int, fine: int) -> None:
    plain, laid = digits(normal(outputs, outputs, inputs), fine)
    assert isinstance(laid.data, Panels) and torch.equal(laid.dense(), plain.dense())
    for threads in (1, 2):
        for rows in ROWS:
            x, scales = random_bytes(rows, inputs), normal(rows, rows).abs()
            with compute(threads):
                assert torch.equal(product(x, laid, scales), product(x, plain, scales))


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize(("width", "inputs"), [(48, 8), (40, 24), (100, 96), (1, 4), (1536, 576)])
@pytest.mark.parametrize("gated", ACTIVATIONS.values())
def test_a_gated_product_is_its_two_halves_put_together(dtype: str, width: int, inputs: int, gated: int) -> None:
    weight = normal(width, 2 * width, inputs)
    if dtype == "int8":
        plain = replace(int8.prepare_int8(weight), gated=gated)
        linear, kind = lay_out_int8(plain), torch.float32
    else:
        linear, kind = prepare(weight.bfloat16(), gated=gated), torch.bfloat16
    if not isinstance(linear.data, Panels):
        pytest.skip("the library multiplies these on this processor")
    assert torch.equal(linear.dense(), plain.dense() if dtype == "int8" else weight.bfloat16())
    for rows in ROWS:
        x = random_bytes(rows, inputs) if dtype == "int8" else normal(rows, rows, inputs).bfloat16()
        scales = normal(rows, rows).abs() if dtype == "int8" else None
        for threads in (1, 2):
            found, expected = torch.empty(rows, width, dtype=kind), torch.empty(rows, width, dtype=kind)
            with compute(threads):
                both = product(x, linear, scales)
                kernels.gated(flat(both), flat(expected), rows, width, gated, threads)
                factors = None if scales is None else scales.numpy()
                linear.data.multiply(flat(x), factors, flat(found), rows, threads)
            assert torch.equal(found, expected)


@int8_only
def test_the_largest_sums_do_not_overflow() -> None:
    inputs = 65_536
    plain, laid = digits(torch.ones(3, inputs))
    x = torch.full((2, inputs), 255, dtype=torch.uint8)
    x[1] = 1
    assert torch.equal(product(x, laid), product(x, plain))


@bfloat16_only
@pytest.mark.parametrize("bad", [math.nan, math.inf, torch.finfo(torch.bfloat16).max])
def test_a_row_that_holds_no_number_harms_no_other(bad: float) -> None:
    linear = prepare(normal(0, 50, 64).bfloat16())
    x = normal(1, 9, 64).bfloat16()
    expected = product(x, linear)
    x[4] = bad
    found = product(x, linear)
    kept = [row for row in range(9) if row != 4]
    assert torch.equal(found[kept], expected[kept])
    assert not found[4].isfinite().all() or bad == torch.finfo(torch.bfloat16).max


@int8_only
def test_what_cannot_be_read_by_words_is_left_to_the_library() -> None:
    assert not readable(torch.zeros(4, 6, dtype=torch.int8))
    assert not readable(torch.zeros(4, 8))
    weight = int8.prepare_int8(normal(2, 10, 6))
    assert lay_out_int8(weight) is weight
