"""The operators that an architecture is written in.

Two implementations: `cpu_ops` (Numba and checked products, the numeric contract) and `torch_ops` (plain torch: the
reference, and what other devices run).

All tensors are flat or row-major; `rows` says how many leading rows count. The residual stream and the results
of products are float32, everything else has the model's dtype.
"""

from __future__ import annotations

from typing import Protocol

import torch

from ghostkv.model.attention import Attention
from ghostkv.model.batch import Batch, Longs, WindowedRows
from ghostkv.model.gemm import Linear
from ghostkv.model.kv_tensors import LayerKV
from ghostkv.model.shape import ModelShape


class Ops(Protocol):
    """What a transformer layer needs. Outputs named as arguments are written in place."""

    def padded_rows(self, rows: int) -> int:
        """Rows that an input must have room for, for products of `rows` rows."""
        ...

    def linear(self, x: torch.Tensor, weight: Linear, out: torch.Tensor, rows: int) -> None:
        """out[:rows] = x[:rows] @ weight.T; out float32. Of x, as many rows as `padded_rows` says may be read."""
        ...

    def gated(self, x: torch.Tensor, weight: Linear, out: torch.Tensor, rows: int) -> None:
        """out[:rows] = activation(x[:rows] @ first half.T) * (x[:rows] @ second half.T), of a `Linear.gated` weight.

        The activation is the weight's (`activations`). Of x, as many rows as `padded_rows` says may be read.
        """
        ...

    def embed(self, ids: torch.Tensor, table: torch.Tensor, residual: torch.Tensor, rows: int) -> None:
        """residual[i] = table[ids[i]]; ids int32."""
        ...

    def norm(
        self, residual: torch.Tensor, source: Longs, weight: torch.Tensor, out: torch.Tensor, epsilon: float
    ) -> None:
        """out[i] = RMSNorm(residual[source[i]]); source int64. Where source[i] is i, out may be the residual itself."""
        ...

    def add_norm(
        self,
        residual: torch.Tensor,
        delta: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor,
        rows: int,
        epsilon: float,
    ) -> None:
        """residual += delta; out = RMSNorm(residual)."""
        ...

    def add(self, residual: torch.Tensor, delta: torch.Tensor, rows: int) -> None:
        """residual += delta."""
        ...

    def rotate_and_write(
        self,
        qkv: torch.Tensor,
        queries: torch.Tensor,
        kv: LayerKV,
        batch: Batch,
        attention: Attention,
        shape: ModelShape,
    ) -> None:
        """Split qkv, add biases, norm and rotate queries (scaled, float32) and keys, write keys and values.

        Keys of rows under a window are not rotated: their `batch.key_positions` are 0.
        """
        ...

    def attend(
        self,
        queries: torch.Tensor,
        kv: LayerKV,
        batch: Batch,
        attention: Attention,
        out: torch.Tensor,
        shape: ModelShape,
    ) -> None:
        """out = causal attention of each row in `batch.plain` over its own blocks, in order, within the layer's window.

        What stands in `queries` for those rows may be lost.
        """
        ...

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
        """out = attention of each row in `windowed` over its sinks and its window; rotates the keys as it reads them.

        A key's position is its place among what the row sees. The layer's own window hides none of that.
        """
        ...
