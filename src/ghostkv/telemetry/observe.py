"""What watches answers go by: metrics, the live page, the log. An observer only looks; it never changes an answer."""

from __future__ import annotations

from typing import Protocol

from ghostkv.session.chain import Carried
from ghostkv.session.turn import Event, Turn


class Observer(Protocol):
    """Called on the event loop, in order for each turn; must be quick and must not raise."""

    def started(self, turn: Turn) -> None:
        """A turn was asked for."""
        ...

    def event(self, turn: Turn, event: Event) -> None:
        """It gave something."""
        ...

    def closed(self, turn: Turn, carried: Carried) -> None:
        """One of its segments closed and left this; the segment's record follows."""
        ...

    def ended(self, turn: Turn, error: BaseException | None) -> None:
        """Nothing follows: after its `Finished`, after a refusal or fault, or because nobody listens any more."""
        ...
