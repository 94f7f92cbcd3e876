"""The KV pool's tensors: one allocation, addressed by layer and block. Which block holds what is `kv/`'s business."""

from __future__ import annotations

import torch

from ghostkv.model.shape import ModelShape
from ghostkv.step import BLOCK_TOKENS


def block_bytes(shape: ModelShape, dtype: torch.dtype) -> int:
    """Bytes of one block of 16 tokens over all layers (TGP F1 times 16)."""
    return shape.kv_bytes_per_token(dtype.itemsize) * BLOCK_TOKENS


class KVTensors:
    """Keys [blocks, kv_heads, head_size, 16] and values [blocks, kv_heads, 16, head_size] of every layer.

    Keys stand with the slots innermost: a block's scores are then 16 lanes of plain products.
    """

    def __init__(self, shape: ModelShape, blocks: int, dtype: torch.dtype, device: torch.device) -> None:
        per_layer = blocks * shape.kv_heads * shape.head_size * BLOCK_TOKENS
        pool = torch.zeros(shape.layers, 2, per_layer, dtype=dtype, device=device)
        self.keys = [pool[layer, 0] for layer in range(shape.layers)]  # flat
        self.values = [pool[layer, 1] for layer in range(shape.layers)]
