"""The KV pool's tensors: one allocation, addressed by layer and block. Which block holds what is `kv/`'s business."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ghostkv.model.large_pages import zeros
from ghostkv.model.shape import ModelShape
from ghostkv.step import BLOCK_TOKENS

BLOCK_SCALES = 2 * BLOCK_TOKENS  # of one block and KV head: of 16 keys, then of 16 values; one cache line
_SCALE_BYTES = 2


def block_bytes(shape: ModelShape, dtype: torch.dtype) -> int:
    """Bytes of one block of 16 tokens over all layers (TGP F1 times 16). With int8, scales included."""
    scales = BLOCK_SCALES * _SCALE_BYTES * shape.kv_heads * shape.layers if dtype is torch.int8 else 0
    return shape.kv_bytes_per_token(dtype.itemsize) * BLOCK_TOKENS + scales


@dataclass(frozen=True, slots=True)
class LayerKV:
    """One layer's part of the pool, flat. In a block, p numbers that are multiplied together stand side by side.

    p is 2 for bfloat16, else 1. Keys have the slots next: a block's scores are then 16 lanes of plain products.
    """

    keys: torch.Tensor  # [blocks, kv_heads, head_size / p, 16, p]
    values: torch.Tensor  # [blocks, kv_heads, 16 / p, head_size, p]
    scales: torch.Tensor | None  # of digits (`kv_codec`): bfloat16 [blocks, kv_heads, 2, 16]

    @property
    def per_word(self) -> int:
        """The p of the layout."""
        return 2 if self.keys.dtype == torch.bfloat16 else 1


class KVTensors:
    """The pool of every layer, in `dtype`; int8 stands for digits with scales."""

    def __init__(self, shape: ModelShape, blocks: int, dtype: torch.dtype, device: torch.device) -> None:
        heads = blocks * shape.kv_heads
        pool = zeros(shape.layers, 2, heads * shape.head_size * BLOCK_TOKENS, dtype=dtype, device=device)
        scales: list[torch.Tensor] | list[None] = [None] * shape.layers
        if dtype is torch.int8:
            scales = list(torch.zeros(shape.layers, heads * BLOCK_SCALES, dtype=torch.bfloat16, device=device))
        self.layers = [LayerKV(pool[layer, 0], pool[layer, 1], scales[layer]) for layer in range(shape.layers)]
