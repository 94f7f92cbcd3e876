"""A machine's memory by the source's three formulas: what KV takes, with whole histories and with one segment each.

F1: KV = 2 x layers x KV heads x head size x tokens x bytes. F2: weights + users x KV(tokens) + runtime. F3: weights +
users x KV(segment) + sessions x payload + runtime. Bytes; nothing here is measured.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path

from ghostkv.errors import ConfigError
from ghostkv.step import BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class Memory:
    """One model on one device."""

    total: float  # bytes of the device
    share: float  # of them, that an engine may use
    weights: float  # bytes
    runtime: float  # bytes of buffers beside weights and KV
    layers: int
    kv_heads: int
    head_size: int
    kv_bytes: float  # of one number
    context: int  # tokens that the model can address

    @property
    def token_bytes(self) -> float:
        """F1 for one token."""
        return 2 * self.layers * self.kv_heads * self.head_size * self.kv_bytes

    @property
    def blocks(self) -> int:
        """Of the pool that is left for KV. Raises ConfigError where that is none."""
        blocks = int((self.total * self.share - self.weights - self.runtime) / (self.token_bytes * BLOCK_TOKENS))
        if blocks < 1:
            raise ConfigError(
                f"no memory for KV: of {self.total / 1e9:.2f} GB an engine may use {self.share:.0%}, and weights of "
                f"{self.weights / 1e9:.2f} GB and {self.runtime / 1e9:.2f} GB of buffers leave less than one block"
            )
        return blocks

    def whole(self, users: int, tokens: float) -> float:
        """F2."""
        return self.weights + users * tokens * self.token_bytes + self.runtime

    def segmented(self, users: int, sessions: int, segment: float, payload: float) -> float:
        """F3; `payload` in bytes."""
        return self.weights + users * segment * self.token_bytes + sessions * payload + self.runtime

    def prompt_to_fill(self, users: int, output: int) -> int:
        """Prompt tokens from which on that many users do not fit side by side with their whole answers."""
        return max(0, self.blocks * BLOCK_TOKENS // users - output + 1)


def read_memory(path: Path) -> Memory:
    """The object `memory` of a hardware file. Raises ConfigError for one without."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))["memory"]
        return Memory(**{field.name: told[field.name] for field in fields(Memory)})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} says nothing of a machine's memory: {error!r}") from error
