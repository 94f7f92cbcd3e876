"""Token ids in order, compressed, as a value: the ids of `archive`. The newest stay plain: each boundary reads them.

In memory only; the stored form is `archive_format`'s.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import overload

from ghostkv.errors import InvariantViolation
from ghostkv.protocol.log import Log

CHUNK = 4096  # ids compressed together: 1.4 (Python's topics) to 1.8 (a novel) bytes an id, 1.6 to 1.9 with 1,024
RECENT = 1024  # newest ids that are never compressed: a tail reads twice its length, at most
_LARGEST = 2**32 - 1
_WIDTH = 4  # bytes of an id before compression, in the machine's own order


@dataclass(frozen=True, slots=True)
class TokenLog(Sequence[int]):
    """An immutable sequence of ids in 0..2**32 - 1. Slices are tuples; only the chunks that a slice touches are read.

    Equal by content: the split into chunks follows from the number of ids alone.
    """

    _chunks: Log[bytes] = field(default_factory=Log)  # CHUNK ids each, compressed
    _open: bytes = b""  # the ids after them: fewer than CHUNK + RECENT, as they are

    def extended(self, ids: Sequence[int]) -> TokenLog:
        """These ids and then `ids`, in O(new + CHUNK + RECENT). Raises InvariantViolation for what is no id."""
        try:
            rest = self._open + array("I", ids).tobytes()
        except (OverflowError, TypeError) as error:
            raise InvariantViolation(f"an id is not an integer in 0..{_LARGEST}") from error
        chunks = []
        while len(rest) >= (CHUNK + RECENT) * _WIDTH:
            chunks.append(zlib.compress(rest[: CHUNK * _WIDTH]))
            rest = rest[CHUNK * _WIDTH :]
        return TokenLog(self._chunks.extended(chunks) if chunks else self._chunks, rest)

    @property
    def stored_bytes(self) -> int:
        """Bytes that the ids take in memory, Python's own objects aside."""
        return sum(map(len, self._chunks)) + len(self._open)

    def __len__(self) -> int:
        return len(self._chunks) * CHUNK + len(self._open) // _WIDTH

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[int, ...]: ...

    def __getitem__(self, index: int | slice) -> int | tuple[int, ...]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            wanted = range(start, stop, step)
            if not wanted:
                return ()
            first = min(wanted[0], wanted[-1])
            ids = self._read(first, max(wanted[0], wanted[-1]) + 1)
            return tuple(ids) if step == 1 else tuple(ids[i - first] for i in wanted)
        if not -len(self) <= index < len(self):
            raise IndexError(f"id {index} of {len(self)}")
        index %= len(self)
        return self._read(index, index + 1)[0]

    def __iter__(self) -> Iterator[int]:
        for start in range(0, len(self), CHUNK):
            yield from self._read(start, min(start + CHUNK, len(self)))

    def _read(self, start: int, stop: int) -> array[int]:
        """ids[start:stop] for 0 <= start < stop <= len."""
        ids: array[int] = array("I")
        sealed = len(self._chunks)
        for chunk in range(start // CHUNK, min(-(-stop // CHUNK), sealed)):
            ids.frombytes(zlib.decompress(self._chunks[chunk]))
        begin = min(start // CHUNK, sealed) * CHUNK
        if stop > sealed * CHUNK:
            skipped = max(0, start - sealed * CHUNK)
            begin += skipped
            ids.frombytes(self._open[skipped * _WIDTH : (stop - sealed * CHUNK) * _WIDTH])
        return ids[start - begin : stop - begin]
