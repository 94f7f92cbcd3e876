"""A worker's backend for one placed segment: the switch hears when it begins, when its prompt is read, when it ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from ghostkv.backends.base import Backend, Capabilities
from ghostkv.request import Delta, SegmentRequest, Window
from ghostkv.routing import Switch, Ticket


@dataclass(frozen=True, slots=True)
class Placed:
    """For the one `generate` that the ticket was made for; all else is the backend's own."""

    backend: Backend
    switch: Switch
    ticket: Ticket

    async def generate(self, request: SegmentRequest) -> AsyncIterator[Delta]:
        """See Backend."""
        self.switch.take(self.ticket)
        try:
            async for delta in self.backend.generate(request):
                if delta.tokens:
                    self.switch.read(self.ticket)
                yield delta
        finally:
            self.switch.leave(self.ticket)

    def cancel(self, request_id: str) -> None:
        """See Backend."""
        self.switch.leave(self.ticket)
        self.backend.cancel(request_id)

    def capabilities(self) -> Capabilities:
        """See Backend."""
        return self.backend.capabilities()

    async def score(self, ids: Sequence[int], start: int, window: Window | None = None) -> list[float]:
        """See Backend."""
        return await self.backend.score(ids, start, window)

    def pause(self, request: SegmentRequest, ids: Sequence[int]) -> None:
        """See Backend."""
        self.backend.pause(request, ids)

    def count(self, text: str) -> int:
        """See Backend."""
        return self.backend.count(text)
