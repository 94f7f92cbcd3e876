"""Matrix products whose rows do not depend on how many rows there are.

A GEMM library may take another path for another row count and then give other bits for the same row. So a product is only
ever called with row counts from a short list (others are padded up), every count of the list is checked at start-up, and
counts that fail are left out. Where the large counts fail too, products run in tiles of one fixed size.

Not here: the activations between products (`kernels.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ghostkv.errors import ModelError

MatMul = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]  # (x [n, k], weight [m, k], out [n, m])

CHECK_ROWS = 1025  # random rows compared per row count; odd, so that positions drift. A handful proves nothing.
_CANONICAL_ROWS = 64
_TILES = (32, 16, 8)
_WIDE = 16_384  # outputs from which a padded row is cheap beside the weights, so that a coarser list will do


def matmul(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    """out = x @ weight.T by the library that torch was built with."""
    torch.mm(x, weight.t(), out=out)


def row_counts(limit: int, outputs: int) -> list[int]:
    """Row counts that products may be called with, up to the first that covers `limit`. One row always has a path of its own."""
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

    def run(self, product: MatMul, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        """out = x @ weight.T; x and out have `padded(rows)` rows, of which the last may hold anything."""
        if self.tile is None:
            product(x, weight, out)
            return
        for start in range(0, x.shape[0], self.tile):
            product(x[start : start + self.tile], weight, out[start : start + self.tile])


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


def check_shape(name: str, weight: torch.Tensor, limit: int, threads: int, product: MatMul = matmul) -> GemmCheck:
    """Choose the plan for products with `weight` [outputs, inputs] of up to `limit` rows, by trial.

    Every row count is compared, on CHECK_ROWS random rows at drifting positions among hostile neighbours, with a canonical
    product by one thread: so plans found for different thread counts agree as well. Uses `threads` torch threads.

    Raises:
        ModelError: not even fixed tiles give a row the same bits everywhere.
    """
    generator = torch.Generator().manual_seed(weight.shape[0] * 1_000_003 + weight.shape[1])
    x = torch.randn(CHECK_ROWS, weight.shape[1], generator=generator).to(weight.dtype)
    counts = row_counts(limit, weight.shape[0])
    canonical = _canonical(product, GemmPlan((_CANONICAL_ROWS,)), x, weight)
    torch.set_num_threads(threads)
    found = {n: _differing_rows(product, GemmPlan((n,)), n, x, weight, canonical) for n in counts}
    differing = {n: rows for n, rows in found.items() if rows}
    plan: GemmPlan | None = GemmPlan(tuple(n for n in counts if n not in differing))
    if counts[-1] in differing:
        plan = _tiled_plan(product, counts, x, weight, threads)
    if plan is None:
        raise ModelError(
            f"products of shape {tuple(weight.shape)} ({name}) give a row other bits in other batches, even in tiles of "
            f"fixed size: this build of torch cannot keep the numeric contract"
        )
    dtype = str(weight.dtype).removeprefix("torch.")
    outputs, inputs = weight.shape
    return GemmCheck(name, outputs, inputs, dtype, threads, CHECK_ROWS * len(counts), differing, plan)


def _tiled_plan(
    product: MatMul, counts: Sequence[int], x: torch.Tensor, weight: torch.Tensor, threads: int
) -> GemmPlan | None:
    for tile in _TILES:
        plan = GemmPlan(tuple(counts), tile)
        canonical = _canonical(product, plan, x, weight)
        torch.set_num_threads(threads)
        if not any(_differing_rows(product, plan, n, x, weight, canonical) for n in (1, tile - 1, tile)):
            return plan
    return None


def _canonical(product: MatMul, plan: GemmPlan, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    torch.set_num_threads(1)
    rows = plan.padded(min(_CANONICAL_ROWS, plan.counts[-1]))
    padded = torch.zeros(-(-x.shape[0] // rows) * rows, x.shape[1], dtype=x.dtype)
    padded[: x.shape[0]] = x
    out = torch.empty(padded.shape[0], weight.shape[0], dtype=x.dtype)
    for start in range(0, padded.shape[0], rows):
        plan.run(product, padded[start : start + rows], weight, out[start : start + rows])
    return out[: x.shape[0]]


def _differing_rows(
    product: MatMul, plan: GemmPlan, rows: int, x: torch.Tensor, weight: torch.Tensor, expected: torch.Tensor
) -> int:
    """Rows of x that come out unlike `expected` in batches of `rows`; every other batch is half filled with hostile rows."""
    padded = plan.padded(rows)
    hostile = torch.tensor([float("nan"), float("inf"), torch.finfo(x.dtype).max, 0.0], dtype=x.dtype)
    neighbours = hostile[torch.arange(padded) % 4].unsqueeze(1).expand(padded, x.shape[1])
    out = torch.empty(padded, weight.shape[0], dtype=x.dtype)
    differing = start = turn = 0
    while start < x.shape[0]:
        kept = max(1, rows // 2) if turn % 2 else rows
        index = torch.arange(start, min(start + kept, x.shape[0]))
        places = (torch.arange(len(index)) * (2 if turn % 2 and rows > 1 else 1) + turn) % padded
        batch = neighbours.clone()
        batch[places] = x[index]
        plan.run(product, batch, weight, out)
        same = _bits(out[places]) == _bits(expected[index])
        differing += int((~same.all(dim=1)).sum())
        start, turn = start + len(index), turn + 1
    return differing


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.int16 if x.element_size() == 2 else torch.int32)
