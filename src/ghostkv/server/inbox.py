"""What answers have said and nobody has read yet. A slow reader makes deltas longer, not more."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from ghostkv.request import Token
from ghostkv.session.turn import Event, Output


@dataclass(slots=True)
class _Joined:
    """Outputs of one answer that nothing came between."""

    text: list[str] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    prompt: list[Token] = field(default_factory=list)
    resident: int = 0

    def add(self, output: Output) -> None:
        self.text.append(output.text)
        self.tokens += output.tokens
        self.prompt += output.prompt
        self.resident = output.resident or self.resident

    def output(self) -> Output:
        return Output(tuple(self.tokens), "".join(self.text), self.resident, tuple(self.prompt))


class Inbox:
    """Events of several answers in order, for one reader.

    Outputs of one answer become one where nothing else of that answer stands between them. So it holds at most one
    item for each answer, besides its segments' records and its end.
    """

    def __init__(self, *, apart: bool = False) -> None:
        """`apart`: outputs stay as they are, for a reader that keeps all of them anyway."""
        self._apart = apart
        self._items: deque[tuple[int, Event | _Joined | Exception]] = deque()
        self._open: dict[int, _Joined] = {}  # answer -> what its next output is added to
        self._some = asyncio.Event()

    def __len__(self) -> int:
        """Items that wait."""
        return len(self._items)

    @property
    def failure(self) -> Exception | None:
        """The first error that waits."""
        return next((item for _, item in self._items if isinstance(item, Exception)), None)

    def put(self, index: int, event: Event | Exception) -> None:
        """What answer `index` says next."""
        if self._apart or not isinstance(event, Output):
            self._open.pop(index, None)
            self._items.append((index, event))
        else:
            if index not in self._open:
                self._open[index] = _Joined()
                self._items.append((index, self._open[index]))
            self._open[index].add(event)
        self._some.set()

    async def some(self) -> None:
        """Wait until there is an item."""
        while not self._items:
            self._some.clear()
            await self._some.wait()

    async def get(self) -> tuple[int, Event]:
        """The next event; raises an error that was put. Cancelling it loses nothing."""
        await self.some()
        index, item = self._items.popleft()
        if isinstance(item, Exception):
            raise item
        if not isinstance(item, _Joined):
            return index, item
        if self._open.get(index) is item:
            del self._open[index]
        return index, item.output()
