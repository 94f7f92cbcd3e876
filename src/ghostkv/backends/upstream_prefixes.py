"""Which prefixes an upstream has computed lately and may still have cached: a guess, it does not tell what it drops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ghostkv.step import BLOCK_TOKENS

_MOST = 2**14  # blocks that are remembered of one upstream


def prefix_keys(ids: Sequence[int]) -> list[int]:
    """A key for each prefix of whole blocks, shortest first. Other ids may get the same: that costs time, no token."""
    keys, key = [], 0
    for end in range(BLOCK_TOKENS, len(ids) + 1, BLOCK_TOKENS):
        key = hash((key, *ids[end - BLOCK_TOKENS : end]))
        keys.append(key)
    return keys


class SeenPrefixes:
    """Those of one upstream; the ones that were used longest ago are forgotten first."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._keys: dict[int, None] = {}  # the latest last

    def add(self, keys: Iterable[int]) -> None:
        """It has computed these."""
        for key in keys:
            self._keys.pop(key, None)
            self._keys[key] = None
        while len(self._keys) > self._most:
            del self._keys[next(iter(self._keys))]

    def tokens(self, keys: Sequence[int]) -> int:
        """Of the longest prefix among them that it has seen."""
        for count, key in enumerate(keys):
            if key not in self._keys:
                return count * BLOCK_TOKENS
        return len(keys) * BLOCK_TOKENS

    def forget(self) -> None:
        """It has lost them all."""
        self._keys.clear()
