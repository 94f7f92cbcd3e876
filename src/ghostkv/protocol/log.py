"""An append-only sequence whose values share their storage: appending costs what is new, and a value may fork.

It is the storage of `archive` and `recall`. It knows nothing of what it holds, and it compresses nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from threading import Lock
from typing import Generic, TypeVar, overload

T = TypeVar("T")

# One lock for all, since a log with a lock of its own could not be pickled; held for microseconds.
_GROWING = Lock()


class Log(Sequence[T], Generic[T]):
    """The first `len` items of a list that only ever grows. Immutable as a value; equal by content; hashable.

    The longest value of a list grows in place. One that is shorter than its list (somebody else went on from it)
    copies its items first, so that two continuations never see each other. Safe between threads.
    """

    __slots__ = ("_items", "_length")

    def __init__(self, items: Iterable[T] = ()) -> None:
        """A log of its own storage."""
        self._items = list(items)
        self._length = len(self._items)

    def extended(self, items: Iterable[T]) -> Log[T]:
        """This log and then `items`: O(new), or O(all) for the second continuation of one value."""
        new = list(items)
        grown: Log[T] = Log()
        with _GROWING:
            own = len(self._items) == self._length
            if own:
                self._items.extend(new)
        grown._items = self._items if own else [*self._items[: self._length], *new]
        grown._length = self._length + len(new)
        return grown

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...

    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            if step == 1:
                return tuple(self._items[start:stop])
            return tuple(self._items[i] for i in range(start, stop, step))
        if not -self._length <= index < self._length:
            raise IndexError(f"item {index} of a log of {self._length}")
        return self._items[index % self._length]

    def __eq__(self, other: object) -> bool:
        return self[:] == other[:] if isinstance(other, Log) else NotImplemented

    def __hash__(self) -> int:
        return hash(self[:])

    def __repr__(self) -> str:
        return f"Log({list(self[:])!r})"
