"""Weights laid out for `panel_kernels`: PANEL outputs side by side, so that a product reads all of them once, in order.

Outputs with a second digit, and those digits, begin panels of their own, and so do the two halves of a gated weight;
the last panel of each part is filled up with zeros.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import torch

from ghostkv.model import machine
from ghostkv.model.large_pages import zeros
from ghostkv.model.panel_kernels import multiply, multiply_values, product_scratch
from ghostkv.model.tile import PANEL, WORD

ZERO_POINT = 128  # of the inputs of int8 products, which are bytes without a sign: what the processor multiplies

_FEATURES = {torch.bfloat16: "avx512bf16", torch.int8: "avx512vnni"}


def readable(weight: torch.Tensor) -> bool:
    """Whether `multiply` reads such a weight on this processor, and nothing else here reads it faster.

    Processors with tile registers (AMX) multiply bfloat16 several times as fast by the library. AVX-512 without the
    instruction is the library's, too.
    """
    features, feature = _features(), _FEATURES.get(weight.dtype)
    if weight.device.type != "cpu" or feature is None or weight.shape[1] * weight.element_size() % WORD:
        return False
    if not features.get("avx512f", False):
        return features.get("avx2", False) and features.get("fma", False)
    return features.get(feature, False) and not (weight.dtype == torch.bfloat16 and features.get("amx-bf16", False))


def _features() -> dict[str, bool]:
    return machine.instruction_sets()


@dataclass(frozen=True, slots=True)
class DigitRows:
    """Room for what `quantize` makes of the rows of a buffer."""

    digits: npt.NDArray[np.uint8]  # flat [rows, inputs]
    scales: npt.NDArray[np.float32]  # [rows]
    scratch: npt.NDArray[np.float32]  # [threads * inputs]

    @classmethod
    def of(cls, rows: int, inputs: int, threads: int) -> DigitRows:
        sizes = rows * inputs, rows, threads * inputs
        return cls(*(np.zeros(size, dtype=kind) for size, kind in zip(sizes, (np.uint8, np.float32, np.float32))))


@dataclass(frozen=True, slots=True)
class Panels:
    """A weight [outputs, inputs] whose last `paired` outputs go with those before them, one by one.

    They are second digits, or, `gated`, what the activation of the first half is multiplied by.
    """

    outputs: int
    inputs: int
    paired: int
    gated: int  # a number of `activations`, else 0
    weights: npt.NDArray[Any]  # flat [panels][words][PANEL][elements of a word]; bfloat16 as uint16, or int8
    starts: npt.NDArray[np.int32] | None  # of digits, by place: what sums begin with, against ZERO_POINT
    scales: npt.NDArray[np.float32] | None  # of digits, by place

    @classmethod
    def of(cls, weight: torch.Tensor, scales: torch.Tensor | None = None, paired: int = 0, *, gated: int = 0) -> Panels:
        """Lay out bfloat16 weights, or int8 ones with the `scales` [outputs] of their sums."""
        outputs, inputs = weight.shape
        words = _laid(weight.contiguous().view(torch.int32), paired)
        if scales is None:
            return cls(outputs, inputs, paired, gated, words.view(np.uint16), None, None)
        starts = _laid(-ZERO_POINT * weight.sum(dim=1, keepdim=True, dtype=torch.int32), paired)
        return cls(outputs, inputs, paired, gated, words.view(np.int8), starts, _laid(scales[:, None], paired))

    def dense(self) -> torch.Tensor:
        """The weight again, [outputs, inputs] in its own dtype."""
        words = self.inputs * self.weights.itemsize // WORD
        laid = torch.from_numpy(self.weights.view(np.int32)).view(-1, words, PANEL)
        found = torch.empty(self.outputs, words, dtype=torch.int32)
        for rows, panels, count in _pieces(self.outputs, self.paired):
            found[rows] = laid[panels, :, :count].transpose(1, 2).reshape(-1, words)
        return found.view(torch.bfloat16 if self.scales is None else torch.int8)

    def multiply(
        self,
        x: npt.NDArray[Any],
        row_scales: npt.NDArray[np.float32] | None,
        out: npt.NDArray[Any],
        rows: int,
        threads: int,
    ) -> None:
        """`panel_product` of the first `rows` rows of flat arrays, into `out`; gated, the gated values."""
        multiply(x, *self._weight, row_scales, out, *self._sizes(rows, threads))

    def multiply_values(
        self,
        values: npt.NDArray[np.float32],
        block: int,
        digits: DigitRows,
        out: npt.NDArray[Any],
        rows: int,
        threads: int,
    ) -> None:
        """`multiply` of what `quantize` makes of flat `values`, transformed in blocks of `block`."""
        weight = self._weight
        sizes = self._sizes(rows, threads)
        multiply_values(values, block, digits.scratch, digits.digits, *weight, digits.scales, out, *sizes)

    @property
    def _weight(self) -> tuple[npt.NDArray[Any] | None, ...]:
        return self.weights, self.starts, self.scales

    def _sizes(self, rows: int, threads: int) -> tuple[Any, ...]:
        sums = _sums(threads, np.float32 if self.scales is None else np.int32)
        return sums, rows, self.inputs, self.outputs - self.paired, self.paired, self.gated, threads

    def halves(self) -> tuple[Panels, Panels]:
        """The two matrices of a gated weight, in the same memory."""

        def half(which: int) -> Panels:
            def own(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
                return np.split(array, 2)[which]

            starts = None if self.starts is None else own(self.starts)
            scales = None if self.scales is None else own(self.scales)
            size = self.outputs // 2, self.inputs
            return Panels(*size, paired=0, gated=0, weights=own(self.weights), starts=starts, scales=scales)

        return half(0), half(1)


def _pieces(outputs: int, paired: int) -> Iterator[tuple[slice, slice, int]]:
    """(outputs, the panels that they fill, how far): of each part its whole panels, then what is left."""
    panel = 0
    for first, last in pairwise((0, outputs - 2 * paired, outputs - paired, outputs)):
        whole, left = divmod(last - first, PANEL)
        for begin, panels, count in ((first, whole, PANEL), (last - left, 1, left)):
            if panels and count:
                yield slice(begin, begin + panels * count), slice(panel, panel + panels), count
                panel += panels


def _laid(by_output: torch.Tensor, paired: int) -> npt.NDArray[Any]:
    """[outputs, n] as flat [panels][n][PANEL], copied once."""
    pieces = list(_pieces(len(by_output), paired))
    size = pieces[-1][1].stop, by_output.shape[1], PANEL
    laid = zeros(*size, dtype=by_output.dtype, device=by_output.device)
    for rows, panels, count in pieces:
        laid[panels, :, :count] = by_output[rows].view(-1, count, by_output.shape[1]).transpose(1, 2)
    return laid.view(-1).numpy()


def panel_product(x: torch.Tensor, panels: Panels, row_scales: torch.Tensor | None = None) -> torch.Tensor:
    """x [n, inputs] @ weight.T as float32, by as many threads as Numba is set to; of a gated weight both halves.

    x bfloat16, or uint8 (digits + ZERO_POINT) with `row_scales` [n], 1 where absent. Second digits are added: the
    result is [n, outputs - paired] with them, else [n, outputs].
    """
    if panels.gated:
        return torch.cat([panel_product(x, half, row_scales) for half in panels.halves()], dim=1)
    out = torch.empty(len(x), panels.outputs - panels.paired)
    source, factors = x.contiguous().view(-1), None
    if panels.scales is None:
        source = source.view(torch.uint16)
    else:
        factors = (torch.ones(len(x)) if row_scales is None else row_scales).numpy()
    panels.multiply(source.numpy(), factors, out.view(-1).numpy(), len(x), numba.get_num_threads())
    return out


@cache
def _sums(threads: int, dtype: type[np.float32 | np.int32]) -> npt.NDArray[Any]:
    return product_scratch(threads, dtype)
