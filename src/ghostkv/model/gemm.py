"""Matrix products whose rows do not depend on how many rows there are.

Our own (`panels.py`) compute each row alone, on processors that they are written for. Elsewhere a GEMM library does: it
may take another path for another row count and then give other bits for the same row. So a product of the library is
only ever called with row counts from a short list (others are padded up). Every count of the list is checked at
start-up, for our own products too, and counts that fail are left out. Where the large counts fail too, products run in
tiles of one fixed size.

Not here: the activations between products (`kernels.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from ghostkv.errors import ModelError
from ghostkv.model.panels import ZERO_POINT, Panels, panel_product, readable
from ghostkv.model.threads import set_threads

CHECK_ROWS = 1025  # random rows compared per row count; odd, so that positions drift. A handful proves nothing.
_CANONICAL_ROWS = 64
_TILES = (32, 16, 8)
_WIDE = 16_384  # outputs from which a padded row is cheap beside the weights, so that a coarser list will do


@dataclass(frozen=True, slots=True)
class Linear:
    """A weight matrix in the layout of the product that reads it."""

    outputs: int
    inputs: int
    dtype: torch.dtype
    data: torch.Tensor | Panels  # [outputs, inputs], also in oneDNN's own layout, or in panels
    scales: torch.Tensor | None = None  # float32 [outputs], of int8 weights: see `int8.py`
    block: int = 1  # of the Hadamard transform that the inputs of int8 weights go through
    fine: int = 0  # last outputs that are second digits of those before them
    gated: int = 0  # activation of `Ops.gated`, which reads halves: projections to the gate and to what it lets through

    @property
    def width(self) -> int:
        """Columns of a product's result."""
        return self.outputs - self.fine

    @property
    def layout(self) -> str:
        """Its name, for reports."""
        if isinstance(self.data, Panels):
            return "panels"
        return "library" if self.data.layout == torch.strided else "oneDNN"

    def dense(self) -> torch.Tensor:
        """The weight as a plain tensor [outputs, inputs]."""
        if isinstance(self.data, Panels):
            return self.data.dense()
        return self.data if self.data.layout == torch.strided else self.data.to_dense()


# (x [n, inputs], weight, factor of each row [n] or None) -> x @ weight.T * factor [n, width]
Product = Callable[[torch.Tensor, Linear, torch.Tensor | None], torch.Tensor]


def prepare(weight: torch.Tensor, *, gated: int = 0) -> Linear:
    """Lay out `weight` [outputs, inputs] for `product`, or for that of `Ops.gated`.

    bfloat16 on a CPU whose products are not ours is packed by oneDNN once: the plain product packs the whole matrix in
    every call.
    """
    outputs, inputs = weight.shape
    if readable(weight):
        panels = Panels.of(weight, None, outputs // 2 if gated else 0, gated=gated)
        return Linear(outputs, inputs, weight.dtype, panels, gated=gated)
    packed = weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and _packs_bfloat16()
    data = torch.ops.mkldnn._reorder_linear_weight(weight) if packed else weight
    return Linear(outputs, inputs, weight.dtype, data, gated=gated)


def lay_out_int8(linear: Linear) -> Linear:
    """Lay out plain int8 weights for `product`."""
    if not isinstance(linear.data, torch.Tensor) or not readable(linear.data):
        return linear
    paired = linear.outputs // 2 if linear.gated else linear.fine
    return replace(linear, data=Panels.of(linear.data, linear.scales, paired, gated=linear.gated))


def product(x: torch.Tensor, linear: Linear, row_scales: torch.Tensor | None = None) -> torch.Tensor:
    """x [n, inputs] @ weight.T [n, width]; bfloat16 comes out as float32 of our own products.

    Both of the weight's dtype, but for int8 weights: there x is uint8, digits + ZERO_POINT, and the result float32,
    each sum times the scale of its output, second digits added, times `row_scales`.
    """
    if isinstance(linear.data, Panels):
        return panel_product(x, linear.data, row_scales)
    if linear.scales is not None:
        sums = torch._int_mm((x ^ ZERO_POINT).view(torch.int8), linear.data.t()).float()
        return finish_sums(sums, linear, row_scales)
    if linear.layout == "oneDNN":
        found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, linear.data, None, "none", [], "")
        return found
    return torch.mm(x, linear.data.t())


def finish_sums(sums: torch.Tensor, linear: Linear, row_scales: torch.Tensor | None) -> torch.Tensor:
    """What int8 products give for exact `sums` [n, outputs], float32."""
    if linear.scales is None:
        raise ModelError("only int8 weights have scales")
    scaled = sums * linear.scales
    scaled[:, linear.width - linear.fine : linear.width] += scaled[:, linear.width :]
    found = scaled[:, : linear.width]
    return found if row_scales is None else found * row_scales[:, None]


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
    """How products of one shape are called: freely, at the checked row counts, or in tiles of `tile` rows."""

    counts: tuple[int, ...]  # ascending
    tile: int | None = None
    free: bool = False  # our own product, right at all counts

    def padded(self, rows: int) -> int:
        """Rows that a product of `rows` rows really computes."""
        if self.free:
            return rows
        if self.tile is not None:
            return -(-rows // self.tile) * self.tile
        return next(count for count in self.counts if count >= rows)

    def run(
        self, product: Product, x: torch.Tensor, linear: Linear, row_scales: torch.Tensor | None = None
    ) -> torch.Tensor:
        """x @ weight.T; x has `padded(rows)` rows, of which the last may hold anything."""
        if self.tile is None:
            return product(x, linear, row_scales)
        tiles = []
        for start in range(0, x.shape[0], self.tile):
            part = slice(start, start + self.tile)
            tiles.append(product(x[part], linear, None if row_scales is None else row_scales[part]))
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
    set_threads(threads)
    found = {n: _differing_rows(product, GemmPlan((n,)), n, x, linear, canonical) for n in counts}
    differing = {n: rows for n, rows in found.items() if rows}
    free = not differing and isinstance(linear.data, Panels)
    plan: GemmPlan | None = GemmPlan(tuple(n for n in counts if n not in differing), free=free)
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
        set_threads(threads)
        if not any(_differing_rows(product, plan, n, x, linear, canonical) for n in (1, tile - 1, tile)):
            return plan
    return None


def _random_rows(linear: Linear, generator: torch.Generator) -> torch.Tensor:
    if linear.scales is not None:
        x = torch.randint(-127, 128, (CHECK_ROWS, linear.inputs), dtype=torch.int8, generator=generator)
        return x.view(torch.uint8) ^ ZERO_POINT
    return torch.randn(CHECK_ROWS, linear.inputs, generator=generator).to(linear.dtype)


def _exact(x: torch.Tensor, linear: Linear) -> torch.Tensor:
    """What int8 products are: float64 holds each of the sums."""
    wide = x.double() - ZERO_POINT
    sums = torch.cat([wide @ part.double().t() for part in torch.split(linear.dense(), 4096)], dim=1)
    return finish_sums(sums.float(), linear, None)


def _canonical(product: Product, plan: GemmPlan, x: torch.Tensor, linear: Linear) -> torch.Tensor:
    if linear.scales is not None:
        return _exact(x, linear)
    set_threads(1)
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
