"""What stands between a layer's products besides attention itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ghostkv.model.rope import RopeTables


@dataclass(frozen=True, slots=True)
class Attention:
    """One layer's: biases are added first, then heads are normed, then rotated. What is None is not done."""

    bias: torch.Tensor | None  # float32 [(heads + 2 kv_heads) * head_size], of queries, keys and values
    head_norm: torch.Tensor | None  # float32 [2 * head_size]: weights of the RMSNorm of a query head, then of a key
    rope: RopeTables | None
    scale: float  # of queries
    window: int | None  # tokens up to its own that a query sees; None for all
