"""Matrix products whose rows do not depend on how many rows there are.

A GEMM library may take another path for another row count and then give other bits for the same row. So a product is
only ever called with row counts from a short list (others are padded up), every count of the list is checked at
start-up, and counts that fail are left out. Where the large counts fail too, products run in tiles of one fixed size.

Not here: the activations between products (`kernels.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch

from ghostkv.errors import ModelError

CHECK_ROWS = 1025  # random rows compared per row count; odd, so that positions drift. A handful proves nothing.
_CANONICAL_ROWS = 64
_TILES = (32, 16, 8)
ZERO_POINT = 128  # of the inputs of int8 products, which are bytes without a sign: what the processor multiplies
_WIDE = 16_384  # outputs from which a padded row is cheap beside the weights, so that a coarser list will do


@dataclass(frozen=True, slots=True)
class Linear:
    """A weight matrix in the layout of the product that reads it."""

    outputs: int
    inputs: int
    dtype: torch.dtype
    data: torch.Tensor  # [outputs, inputs], or the library's own layout
    packed: bool
    scales: torch.Tensor | None = None  # float32 [outputs], of int8 weights: see `int8.py`
    block: int = 1  # of the Hadamard transform that the inputs of int8 weights go through
    fine: int = 0  # last outputs that are second digits of those before them


Product = Callable[[torch.Tensor, Linear], torch.Tensor]  # x [n, inputs] -> x @ weight.T [n, outputs]


def prepare(weight: torch.Tensor) -> Linear:
    """Lay out `weight` [outputs, inputs] for `product`.

    bfloat16 on a CPU is packed by oneDNN once: the plain product packs the whole matrix in every call, which makes a
    step of one sequence about 1.5 times as long (docs/architecture.md, Numbers).
    """
    outputs, inputs = weight.shape
    packed = weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and _packs_bfloat16()
    data = torch.ops.mkldnn._reorder_linear_weight(weight) if packed else weight
    return Linear(outputs, inputs, weight.dtype, data, packed)


def product(x: torch.Tensor, linear: Linear) -> torch.Tensor:
    """x [n, inputs] -> x @ weight.T [n, outputs], by the library that torch was built with.

    Both of the weight's dtype, but for int8 weights: there x is uint8, digits + ZERO_POINT, and the result float32,
    each sum times the scale of its output.
    """
    if linear.scales is not None:
        return _int8_product(x, linear, linear.scales)
    if linear.packed:
        found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, linear.data, None, "none", [], "")
        return found
    return torch.mm(x, linear.data.t())


def pack_int8(linear: Linear) -> Linear:
    """Lay out int8 weights for `product` once, where the processor has byte products (VNNI) that do not saturate.

    Without, every call packs the whole matrix, and by threads that wait for each other without rest
    (docs/architecture.md, Numbers).
    """
    if linear.data.device.type != "cpu" or not torch.cpu._is_vnni_supported():
        return linear
    return replace(linear, data=torch.ops.onednn.qlinear_prepack(linear.data, None), packed=True)


def digits(linear: Linear) -> torch.Tensor:
    """The int8 digits [outputs, inputs] of a weight, packed or not."""
    return linear.data.to_dense().t() if linear.packed else linear.data


def _int8_product(x: torch.Tensor, linear: Linear, scales: torch.Tensor) -> torch.Tensor:
    if not linear.packed:
        return torch._int_mm((x ^ ZERO_POINT).view(torch.int8), linear.data.t()).float() * scales
    zeros = _zeros(len(scales))  # the weights' zero points
    found: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
        x, 1.0, ZERO_POINT, linear.data, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return found


@cache
def _zeros(outputs: int) -> torch.Tensor:
    return torch.zeros(outputs, dtype=torch.int64)


def _packs_bfloat16() -> bool:
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return available and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def row_counts(limit: int, outputs: int) -> list[int]:
    """Row counts that products may be called with, up to the first that covers `limit`.

    Never 1: a single row takes a path of its own in every library seen so far.
    """
    fine = [2, 4, *range(8, 128, 8), *range(128, 2**20, 64)]
    coarse = [2, 4, 8, 16, 24, 32, 48, 64, *range(96, 2**20, 32)]
    counts = coarse if outputs >= _WIDE else fine
    return counts[: next(i for i, count in enumerate(counts) if count >= max(limit, 8)) + 1]


@dataclass(frozen=True, slots=True)
class GemmPlan:
    """How products of one shape are called: at the checked row counts, or in tiles of `tile` rows."""

    counts: tuple[int, ...]  # ascending
    tile: int | None = None

    def padded(self, rows: int) -> int:
        """Rows that a product of `rows` rows really computes."""
        if self.tile is not None:
            return -(-rows // self.tile) * self.tile
        return next(count for count in self.counts if count >= rows)

    def run(self, product: Product, x: torch.Tensor, linear: Linear) -> torch.Tensor:
        """x @ weight.T; x has `padded(rows)` rows, of which the last may hold anything."""
        if self.tile is None:
            return product(x, linear)
        tiles = [product(x[start : start + self.tile], linear) for start in range(0, x.shape[0], self.tile)]
        return tiles[0] if len(tiles) == 1 else torch.cat(tiles)


@dataclass(frozen=True, slots=True)
class GemmCheck:
    """What the self-check found for one shape and chose."""

    name: str
    outputs: int
    inputs: int
    dtype: str
    threads: int
    compared: int  # rows compared, over all row counts
    differing: dict[int, int]  # row count -> rows that differed; such counts are not used
    plan: GemmPlan


def check_shape(name: str, linear: Linear, limit: int, threads: int, product: Product) -> GemmCheck:
    """Choose the plan for products with `linear` of up to `limit` rows, by trial.

    Every row count is compared, on CHECK_ROWS random rows at drifting positions among hostile neighbours, with a
    canonical product by one thread: so plans found for different thread counts agree as well. Uses `threads` threads.
    Integer products are compared with the true sums: a processor's short ways with int8 may saturate.

    Raises:
        ModelError: not even fixed tiles give a row the same bits everywhere.
    """
    generator = torch.Generator().manual_seed(linear.outputs * 1_000_003 + linear.inputs)
    x = _random_rows(linear, generator)
    counts = row_counts(limit, linear.outputs)
    canonical = _canonical(product, GemmPlan((_CANONICAL_ROWS,)), x, linear)
    torch.set_num_threads(threads)
    found = {n: _differing_rows(product, GemmPlan((n,)), n, x, linear, canonical) for n in counts}
    differing = {n: rows for n, rows in found.items() if rows}
    plan: GemmPlan | None = GemmPlan(tuple(n for n in counts if n not in differing))
    if counts[-1] in differing:
        plan = _tiled_plan(product, counts, x, linear, threads)
    if plan is None:
        raise ModelError(
            f"products of shape {linear.outputs} x {linear.inputs} ({name}) give a row other bits in other "
            f"batches, even in tiles of fixed size: this build of torch cannot keep the numeric contract"
        )
    dtype = str(linear.dtype).removeprefix("torch.")
    return GemmCheck(name, linear.outputs, linear.inputs, dtype, threads, CHECK_ROWS * len(counts), differing, plan)


def _tiled_plan(
    product: Product, counts: Sequence[int], x: torch.Tensor, linear: Linear, threads: int
) -> GemmPlan | None:
    for tile in _TILES:
        plan = GemmPlan(tuple(counts), tile)
        canonical = _canonical(product, plan, x, linear)
        torch.set_num_threads(threads)
        if not any(_differing_rows(product, plan, n, x, linear, canonical) for n in (1, tile - 1, tile)):
            return plan
    return None


def _random_rows(linear: Linear, generator: torch.Generator) -> torch.Tensor:
    if linear.scales is not None:
        x = torch.randint(-127, 128, (CHECK_ROWS, linear.inputs), dtype=torch.int8, generator=generator)
        return x.view(torch.uint8) ^ ZERO_POINT
    return torch.randn(CHECK_ROWS, linear.inputs, generator=generator).to(linear.dtype)


def _exact(x: torch.Tensor, linear: Linear, scales: torch.Tensor) -> torch.Tensor:
    """What int8 products are: float64 holds each of the sums."""
    wide = x.double() - ZERO_POINT
    sums = torch.cat([wide @ part.double().t() for part in torch.split(digits(linear), 4096)], dim=1)
    return sums.float() * scales


def _canonical(product: Product, plan: GemmPlan, x: torch.Tensor, linear: Linear) -> torch.Tensor:
    if linear.scales is not None:
        return _exact(x, linear, linear.scales)
    torch.set_num_threads(1)
    rows = plan.padded(min(_CANONICAL_ROWS, plan.counts[-1]))
    padded = torch.zeros(-(-x.shape[0] // rows) * rows, x.shape[1], dtype=x.dtype)
    padded[: x.shape[0]] = x
    pieces = [plan.run(product, padded[start : start + rows], linear) for start in range(0, padded.shape[0], rows)]
    return torch.cat(pieces)[: x.shape[0]]


def _differing_rows(
    product: Product, plan: GemmPlan, rows: int, x: torch.Tensor, linear: Linear, expected: torch.Tensor
) -> int:
    """Rows of x that come out unlike `expected` in batches of `rows`; every other batch is half hostile rows."""
    padded = plan.padded(rows)
    extremes = [1, 255, 129, 128] if x.dtype == torch.uint8 else [math.nan, math.inf, torch.finfo(x.dtype).max, 0]
    hostile = torch.tensor(extremes, dtype=x.dtype)
    neighbours = hostile[torch.arange(padded) % 4].unsqueeze(1).expand(padded, x.shape[1])
    differing = start = turn = 0
    while start < x.shape[0]:
        kept = max(1, rows // 2) if turn % 2 else rows
        index = torch.arange(start, min(start + kept, x.shape[0]))
        places = (torch.arange(len(index)) * (2 if turn % 2 and rows > 1 else 1) + turn) % padded
        batch = neighbours.clone()
        batch[places] = x[index]
        out = plan.run(product, batch, linear)
        same = _bits(out[places]) == _bits(expected[index])
        differing += int((~same.all(dim=1)).sum())
        start, turn = start + len(index), turn + 1
    return differing


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.int16 if x.element_size() == 2 else torch.int32)
