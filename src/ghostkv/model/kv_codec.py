"""KV as 8-bit integers: a token's key, or value, of one KV head is digits in -127..127 times a scale of its own.

Digits are made when a slot is written and never again, so a slot's bits depend on its token alone; attention reads them
as they stand. Some channels of a key are far larger than the others, and digits share one scale. So what stands for a
key k is H k / n, with H the Hadamard matrix over the n channels of a head (QuaRot, Ashkboos 2024): since H H = n, a
score is q . k = (H q) . (H k / n), and H takes the key back.

This is the plain torch reference and what other devices run; the compiled routines are in `kv_kernels.py`.
"""

from __future__ import annotations

import torch

from ghostkv.model.int8 import LARGEST, hadamard_block
from ghostkv.model.kv_tensors import LayerKV
from ghostkv.model.shape import ModelShape
from ghostkv.step import BLOCK_TOKENS


def write(kv: LayerKV, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, shape: ModelShape) -> None:
    """Store keys and values, float32 [n, kv_heads, head_size], in `slots` (int64 [n], block * 16 + offset)."""
    blocks, offsets = slots // BLOCK_TOKENS, slots % BLOCK_TOKENS
    if kv.scales is not None:
        scales = _scales(kv.scales, shape)
        keys, scales[blocks, :, 0, offsets] = to_digits(turn(keys) / hadamard_block(shape.head_size))
        values, scales[blocks, :, 1, offsets] = to_digits(values)
    each = kv.per_word
    _keys(kv, shape)[blocks, :, :, offsets] = keys.to(kv.keys.dtype).reshape(*keys.shape[:2], -1, each)
    _values(kv, shape)[blocks, :, offsets // each, :, offsets % each] = values.to(kv.values.dtype)


def read(kv: LayerKV, slots: torch.Tensor, shape: ModelShape) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of `slots` as float32 [n, kv_heads, head_size]."""
    blocks, offsets = slots // BLOCK_TOKENS, slots % BLOCK_TOKENS
    each = kv.per_word
    keys = _keys(kv, shape)[blocks, :, :, offsets].float().flatten(2)
    values = _values(kv, shape)[blocks, :, offsets // each, :, offsets % each].float()
    if kv.scales is None:
        return keys, values
    scales = _scales(kv.scales, shape)[blocks, :, :, offsets].float().unsqueeze(-1)
    return turn(keys * scales[:, :, 0]), values * scales[:, :, 1]


def to_digits(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Digits (whole float32) and bfloat16 scales of the vectors along the last axis. One with NaN or infinity: NaN.

    A scale is the largest absolute value / 127, rounded: that moves the largest digit by a quarter at most.
    """
    scales = (x.abs().amax(dim=-1) / LARGEST).bfloat16()
    scales = torch.where(x.isfinite().all(dim=-1), scales, torch.nan)
    wide = scales.float().unsqueeze(-1)
    return torch.where(wide > 0, x / wide, 0.0).round().clamp(-LARGEST, LARGEST), scales


def turn(x: torch.Tensor) -> torch.Tensor:
    """Each run of `hadamard_block(size)` values of the last axis times the Hadamard matrix, whose entries are +-1."""
    size = x.shape[-1]
    matrix = torch.ones(1, 1, device=x.device)
    while len(matrix) < hadamard_block(size):  # Sylvester's construction
        matrix = torch.cat([torch.cat([matrix, matrix], dim=1), torch.cat([matrix, -matrix], dim=1)])
    return (x.reshape(*x.shape[:-1], -1, len(matrix)) @ matrix).reshape(x.shape)


def _keys(kv: LayerKV, shape: ModelShape) -> torch.Tensor:
    each = kv.per_word
    return kv.keys.view(-1, shape.kv_heads, shape.head_size // each, BLOCK_TOKENS, each)


def _values(kv: LayerKV, shape: ModelShape) -> torch.Tensor:
    each = kv.per_word
    return kv.values.view(-1, shape.kv_heads, BLOCK_TOKENS // each, shape.head_size, each)


def _scales(flat: torch.Tensor, shape: ModelShape) -> torch.Tensor:
    return flat.view(-1, shape.kv_heads, 2, BLOCK_TOKENS)
