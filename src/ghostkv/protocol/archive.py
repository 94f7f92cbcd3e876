"""The token ids of all closed segments of one answer. A value: storing it and recalling from it happen elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ghostkv.errors import InvariantViolation


@dataclass(frozen=True, slots=True)
class Archive:
    """Generated ids in order, and where each segment ends."""

    ids: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()  # ids[ends[i - 1]:ends[i]] is segment i

    @property
    def total(self) -> int:
        """Archived tokens."""
        return len(self.ids)

    def append(self, segment: Sequence[int]) -> Archive:
        """The archive with one more closed segment, which may be empty."""
        ids = self.ids + tuple(segment)
        return Archive(ids, (*self.ends, len(ids)))

    def slice(self, start: int, stop: int) -> tuple[int, ...]:
        """ids[start:stop] for 0 <= start <= stop <= total. Raises InvariantViolation outside that."""
        if not 0 <= start <= stop <= self.total:
            raise InvariantViolation(f"tokens {start}:{stop} are not in an archive of {self.total}")
        return self.ids[start:stop]
