"""The one source of randomness: a counter-based uniform number per output token.

There is no generator state: a number is a function of its key, so a boundary, a restart or another batch cannot
change it.
"""

from __future__ import annotations

import struct
from hashlib import blake2b

_MASK = 2**64 - 1


def uniform(seed: int, choice: int, node: int, index: int) -> float:
    """The number in [0, 1) for output token `index` of plan node `node` of answer `choice`; 53 random bits.

    Seeds are taken modulo 2**64.
    """
    key = struct.pack("<4Q", seed & _MASK, choice, node, index)
    return (int.from_bytes(blake2b(key, digest_size=8).digest(), "little") >> 11) * 2.0**-53
