"""Counts the tokens of answers for the API key that asked for them."""

from __future__ import annotations

import time

from ghostkv.errors import GhostError
from ghostkv.server.access import caller_meter
from ghostkv.session.chain import Carried
from ghostkv.session.turn import Event, Output, Turn
from ghostkv.session.worker import Worker


class Metering:
    """An observer. A prompt counts once for all its answers, and not if it was refused."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._prompts: dict[str, int] = {}  # turn -> tokens of its prompt, until something came of it

    def started(self, turn: Turn) -> None:
        """A turn was asked for."""
        if caller_meter() is not None and turn.sampling.choice == 0:
            self._prompts[turn.id] = self._worker.prompt_tokens(turn)

    def event(self, turn: Turn, event: Event) -> None:
        """It gave something."""
        self._spend(self._prompts.pop(turn.id, 0) + (len(event.tokens) if isinstance(event, Output) else 0))

    def closed(self, turn: Turn, carried: Carried) -> None:
        """Not counted."""

    def ended(self, turn: Turn, error: BaseException | None) -> None:
        """Nothing follows."""
        prompt = self._prompts.pop(turn.id, 0)
        if not isinstance(error, GhostError):
            self._spend(prompt)

    def _spend(self, tokens: int) -> None:
        meter = caller_meter()
        if meter is not None and tokens:
            meter.spend(tokens, time.monotonic())
