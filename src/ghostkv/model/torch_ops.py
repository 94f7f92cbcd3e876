"""The operators in plain torch: the reference that the CPU kernels are tested against, and what CUDA and ROCm run.

Not under the numeric contract: a row may depend on its batch here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from ghostkv.model import int8, kv_codec
from ghostkv.model.activations import GELU_TANH
from ghostkv.model.attention import Attention
from ghostkv.model.batch import Batch, Longs, WindowedRows
from ghostkv.model.gemm import Linear
from ghostkv.model.kv_tensors import LayerKV
from ghostkv.model.rope import RopeTables
from ghostkv.model.shape import ModelShape
from ghostkv.step import BLOCK_TOKENS


class TorchOps:
    """`Ops` for any torch device."""

    def padded_rows(self, rows: int) -> int:
        return rows

    def linear(self, x: torch.Tensor, weight: Linear, out: torch.Tensor, rows: int) -> None:
        out[:rows] = _product(x[:rows], weight)

    def gated(self, x: torch.Tensor, weight: Linear, out: torch.Tensor, rows: int) -> None:
        gate, up = _product(x[:rows], weight).float().chunk(2, dim=1)
        out[:rows] = (_activated(gate, weight.gated) * up).to(out.dtype)

    def embed(self, ids: torch.Tensor, table: torch.Tensor, residual: torch.Tensor, rows: int) -> None:
        residual[:rows] = table[ids.to(table.device, torch.int64)].float()

    def norm(
        self, residual: torch.Tensor, source: Longs, weight: torch.Tensor, out: torch.Tensor, epsilon: float
    ) -> None:
        x = residual[torch.from_numpy(source).to(residual.device)]
        out[: len(source)] = _rms_norm(x, weight, epsilon).to(out.dtype)

    def add_norm(
        self,
        residual: torch.Tensor,
        delta: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor,
        rows: int,
        epsilon: float,
    ) -> None:
        self.add(residual, delta, rows)
        out[:rows] = _rms_norm(residual[:rows], weight, epsilon).to(out.dtype)

    def add(self, residual: torch.Tensor, delta: torch.Tensor, rows: int) -> None:
        residual[:rows] += delta[:rows].float()

    def rotate_and_write(
        self,
        qkv: torch.Tensor,
        queries: torch.Tensor,
        kv: LayerKV,
        batch: Batch,
        attention: Attention,
        shape: ModelShape,
    ) -> None:
        device = qkv.device
        size = shape.head_size
        split = [shape.heads * size, shape.kv_heads * size, shape.kv_heads * size]
        joined, rope = qkv[: batch.rows].float(), attention.rope
        if attention.bias is not None:
            joined = joined + attention.bias
        q, k, v = (part.view(batch.rows, -1, size) for part in torch.split(joined, split, dim=1))
        if attention.head_norm is not None:
            q, k = (
                _rms_norm(part, weight, shape.norm_eps) for part, weight in zip((q, k), attention.head_norm.chunk(2))
            )
        queries[: batch.rows] = (_rotate(q, rope, batch.positions) * attention.scale).reshape(batch.rows, -1)
        slots = torch.from_numpy(batch.slots).to(device)
        kv_codec.write(kv, slots, _rotate(k, rope, batch.key_positions), v, shape)

    def attend(
        self,
        queries: torch.Tensor,
        kv: LayerKV,
        batch: Batch,
        attention: Attention,
        out: torch.Tensor,
        shape: ModelShape,
    ) -> None:
        slots = (batch.tables.reshape(-1, batch.width, 1).astype(np.int64) * BLOCK_TOKENS) + np.arange(BLOCK_TOKENS)
        group = shape.heads // shape.kv_heads
        for sequence in np.unique(batch.sequences[batch.plain]):
            members = batch.plain[batch.sequences[batch.plain] == sequence]
            rows = torch.from_numpy(members).to(queries.device)
            positions = torch.from_numpy(batch.positions).to(queries.device)[rows]
            own = torch.from_numpy(slots[sequence].reshape(-1)).to(queries.device)
            k, v = (part.transpose(0, 1) for part in kv_codec.read(kv, own, shape))
            q = queries[rows].view(len(rows), shape.heads, shape.head_size).transpose(0, 1)
            scores = q @ k.repeat_interleave(group, dim=0).transpose(1, 2)
            places = torch.arange(k.shape[1], device=queries.device)
            hidden = places > positions.unsqueeze(1)
            if attention.window is not None:
                hidden |= places <= positions.unsqueeze(1) - attention.window
            weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
            attended = weights @ v.repeat_interleave(group, dim=0)
            out[rows] = attended.transpose(0, 1).reshape(len(rows), -1).to(out.dtype)

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
        tables = batch.tables.reshape(-1, batch.width).astype(np.int64)
        group, size = shape.heads // shape.kv_heads, shape.head_size
        for i, row in enumerate(windowed.rows):
            sinks, token = windowed.sinks[i], windowed.tokens[i]
            ring = np.arange(windowed.gone[i], token - sinks + 1) % (windowed.ring_blocks[i] * BLOCK_TOKENS)
            seen = np.concatenate([np.arange(min(sinks, token + 1)), windowed.ring_at[i] * BLOCK_TOKENS + ring])
            slots = tables[batch.sequences[row], seen // BLOCK_TOKENS] * BLOCK_TOKENS + seen % BLOCK_TOKENS
            k, v = kv_codec.read(kv, torch.from_numpy(slots).to(queries.device), shape)
            k = _rotate(k, attention.rope, np.arange(len(seen)))
            q = queries[row].view(shape.kv_heads, group, size)
            weights = torch.einsum("hgd,nhd->hgn", q, k).softmax(dim=-1)
            out[row] = torch.einsum("hgn,nhd->hgd", weights, v).reshape(-1).to(out.dtype)


def _product(x: torch.Tensor, weight: Linear) -> torch.Tensor:
    return torch.mm(x, weight.dense().t()) if weight.scales is None else int8.linear(x, weight)


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + epsilon) * weight.float()


def _activated(gate: torch.Tensor, activation: int) -> torch.Tensor:
    return F.gelu(gate, approximate="tanh") if activation == GELU_TANH else F.silu(gate)


def _rotate(x: torch.Tensor, rope: RopeTables | None, positions: npt.NDArray[np.integer[Any]]) -> torch.Tensor:
    """Rotate x [rows, heads, size] by the position of each row."""
    if rope is None:
        return x
    at = torch.from_numpy(positions).to(x.device, torch.int64)
    cosine, sine = (table[at].unsqueeze(1) for table in rope)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
