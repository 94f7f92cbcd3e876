"""The operators on the CPU.

Checked matrix products and one compiled routine per row. This is where the numeric contract is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ghostkv.errors import ModelError
from ghostkv.model import int8_kernels, kernels, window_kernels
from ghostkv.model.attention import Attention
from ghostkv.model.batch import Batch, Longs, WindowedRows
from ghostkv.model.gemm import GemmPlan, Linear, Product, product
from ghostkv.model.kv_tensors import LayerKV
from ghostkv.model.panels import DigitRows, Panels
from ghostkv.model.rope import RopeTables
from ghostkv.model.shape import ModelShape
from ghostkv.model.vector import LANES

_FIRST_POSITIONS = 1024

Plans = Mapping[tuple[int, int], GemmPlan]  # (outputs, inputs) -> plan


class CPUOps:
    """`Ops` through Numba kernels and torch products. Call under `threads.compute`."""

    def __init__(self, shape: ModelShape, plans: Plans, threads: int, product: Product = product) -> None:
        if shape.head_size % LANES:
            raise ModelError(
                f"head size {shape.head_size} is not supported by the CPU kernels (supported: multiples of {LANES})"
            )
        group = shape.heads // shape.kv_heads
        if group > kernels.MAX_GROUP:
            raise ModelError(f"{group} query heads per KV head: the CPU kernels take at most {kernels.MAX_GROUP}")
        self._plans = plans
        self._product = product
        self._threads = threads
        self._lengths = kernels.group_lengths(group)
        self._scratch = kernels.attention_scratch(threads, group, shape.head_size)
        self._tiles = np.zeros(threads * window_kernels.tile_floats(shape.head_size), dtype=np.float32)
        self._lanes: dict[int, window_kernels.LaneRope] = {}  # by the cosines that they are made of, 0 for none
        self._digits: dict[int, DigitRows] = {}  # by input buffer
        self._flat: dict[int, tuple[torch.Tensor, npt.NDArray[Any]]] = {}

    def padded_rows(self, rows: int) -> int:
        return max(plan.padded(rows if plan.free else min(rows, plan.counts[-1])) for plan in self._plans.values())

    def linear(self, x: torch.Tensor, weight: Linear, out: torch.Tensor, rows: int) -> None:
        if not self._by_panels(x, weight, out, rows):
            out[:rows] = self._by_plan(x, weight, rows)

    def gated(self, x: torch.Tensor, weight: Linear, out: torch.Tensor, rows: int) -> None:
        if not self._by_panels(x, weight, out, rows):
            both = self._by_plan(x, weight, rows).float().contiguous()
            kernels.gated(_view(both), self._array(out), rows, out.shape[1], weight.gated, self._threads)

    def _by_panels(self, x: torch.Tensor, weight: Linear, out: torch.Tensor, rows: int) -> bool:
        """Multiply by our own product, if the weight is laid out for it and it has passed the check."""
        if not (self._plan(weight).free and isinstance(weight.data, Panels)):
            return False
        values, panels, target = self._array(x), weight.data, self._array(out)
        if weight.scales is None:
            panels.multiply(values, None, target, rows, self._threads)
        else:
            panels.multiply_values(values, weight.block, self._digit_rows(x), target, rows, self._threads)
        return True

    def _by_plan(self, x: torch.Tensor, weight: Linear, rows: int) -> torch.Tensor:
        """`gemm.product` of the first rows, called as the check allows."""
        plan, scales = self._plan(weight), None
        padded = plan.padded(rows)
        if weight.scales is not None:
            made = self._digit_rows(x)
            sizes = rows, weight.inputs, weight.block, self._threads
            int8_kernels.quantize(self._array(x), made.digits, made.scales, made.scratch, *sizes)
            x, scales = torch.from_numpy(made.digits).view(x.shape), torch.from_numpy(made.scales[:padded])
        return plan.run(self._product, x[:padded], weight, scales)[:rows]

    def _plan(self, weight: Linear) -> GemmPlan:
        return self._plans[weight.outputs, weight.inputs]

    def _digit_rows(self, x: torch.Tensor) -> DigitRows:
        made = self._digits.get(id(x))  # whose id `_array` keeps its own
        if made is None:
            made = self._digits[id(x)] = DigitRows.of(len(x), x.shape[1], self._threads)
        return made

    def embed(self, ids: torch.Tensor, table: torch.Tensor, residual: torch.Tensor, rows: int) -> None:
        kernels.embed(ids.numpy(), self._array(table), self._array(residual), rows, table.shape[1], self._threads)

    def norm(
        self, residual: torch.Tensor, source: Longs, weight: torch.Tensor, out: torch.Tensor, epsilon: float
    ) -> None:
        width = weight.shape[0]
        arrays = self._array(weight), self._array(out)
        kernels.norm(self._array(residual), source, *arrays, len(source), width, epsilon, self._threads)

    def add_norm(
        self,
        residual: torch.Tensor,
        delta: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor,
        rows: int,
        epsilon: float,
    ) -> None:
        width = weight.shape[0]
        arrays = self._array(residual), self._array(delta), self._array(weight), self._array(out)
        kernels.add_norm(*arrays, rows, width, epsilon, self._threads)

    def add(self, residual: torch.Tensor, delta: torch.Tensor, rows: int) -> None:
        kernels.add(self._array(residual), self._array(delta), rows, residual.shape[1], self._threads)

    def rotate_and_write(
        self,
        qkv: torch.Tensor,
        queries: torch.Tensor,
        kv: LayerKV,
        batch: Batch,
        attention: Attention,
        shape: ModelShape,
    ) -> None:
        cosines, sines = (None, None) if attention.rope is None else map(self._array, attention.rope)
        kernels.rotate_and_write(
            self._array(qkv),
            self._array(queries),
            *self._layer(kv),
            batch.slots,
            batch.positions,
            batch.key_positions,
            cosines,
            sines,
            None if attention.bias is None else self._array(attention.bias),
            None if attention.head_norm is None else self._array(attention.head_norm),
            self._scratch,
            batch.rows,
            shape.heads,
            shape.kv_heads,
            shape.head_size,
            shape.norm_eps,
            attention.scale,
            self._threads,
        )

    def attend(
        self,
        queries: torch.Tensor,
        kv: LayerKV,
        batch: Batch,
        attention: Attention,
        out: torch.Tensor,
        shape: ModelShape,
    ) -> None:
        kernels.attend(
            self._array(queries),
            *self._layer(kv),
            batch.tables,
            batch.width,
            batch.sequences,
            batch.positions,
            self._array(out),
            self._scratch,
            batch.plain,
            attention.window,
            shape.kv_heads,
            *self._lengths,
            shape.head_size,
            self._threads,
        )

    def attend_windowed(
        self,
        queries: torch.Tensor,
        kv: LayerKV,
        batch: Batch,
        windowed: WindowedRows,
        attention: Attention,
        out: torch.Tensor,
        shape: ModelShape,
    ) -> None:
        heads, _, chains = self._lengths
        lanes = self._lane_rope(attention.rope, int(windowed.positions.max()) + 1, shape.head_size)
        window_kernels.attend_windowed(
            self._array(queries),
            *self._layer(kv),
            batch.tables,
            batch.width,
            batch.sequences,
            windowed.rows,
            windowed.tokens,
            windowed.sinks,
            windowed.gone,
            windowed.ring_at,
            windowed.ring_blocks,
            lanes.cosines,
            lanes.sines,
            lanes.stride,
            self._array(out),
            self._scratch,
            self._tiles,
            shape.kv_heads,
            heads,
            chains,
            shape.head_size,
            self._threads,
        )

    def _lane_rope(self, rope: RopeTables | None, positions: int, size: int) -> window_kernels.LaneRope:
        """The tables for at least that many positions, kept: they grow with the longest window that was seen."""
        key = 0 if rope is None else id(rope[0])  # the model's own, which live as long as it
        lanes = self._lanes.get(key)
        if lanes is None or lanes.positions < positions:
            whole = max(2 * positions, _FIRST_POSITIONS)
            if rope is None:  # to turn by nothing
                rope = torch.ones(whole, size // 2), torch.zeros(whole, size // 2)
            lanes = self._lanes[key] = window_kernels.LaneRope.of(rope, min(whole, len(rope[0])))
        return lanes

    def _layer(self, kv: LayerKV) -> tuple[npt.NDArray[Any] | None, ...]:
        scales = None if kv.scales is None else self._array(kv.scales)
        return self._array(kv.keys), self._array(kv.values), scales

    def _array(self, tensor: torch.Tensor) -> npt.NDArray[Any]:
        """`_view`, kept for tensors that live as long as the model: making one costs more than a small kernel."""
        known = self._flat.get(id(tensor))
        if known is None:
            known = self._flat[id(tensor)] = (tensor, _view(tensor))  # holding the tensor keeps its id its own
        return known[1]


def _view(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """The tensor's memory as a flat array, bfloat16 as uint16."""
    flat = tensor.view(-1)
    if flat.dtype == torch.bfloat16:
        flat = flat.view(torch.uint16)
    elif flat.dtype not in (torch.float32, torch.int32, torch.int8, torch.uint8):
        raise ModelError(f"the CPU kernels compute in bfloat16 or float32, not {tensor.dtype}")
    return flat.numpy()
