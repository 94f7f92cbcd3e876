"""One answer in the live page's chat box: its text as it grows, then what ghostkv says about it."""

from __future__ import annotations

from collections.abc import Callable

from nicegui import ui

from ghostkv.session.turn import Event, Finished, Output, SegmentRecord

_PIECE = 600
"""Characters of one element: an update sends the last element again, and no more."""


class ChatAnswer:
    """Builds itself where it is made."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._asked = clock()
        self._first: float | None = None
        self._tokens = 0
        self._segments = 0
        self._end: Finished | None = None
        self._pieces: list[str] = []
        self._shown = 0  # characters of the last piece that the browser has
        with ui.element("div").classes("said model") as self._bubble:
            self._body = ui.element("div").classes("body")
            self._foot = ui.label("waiting for the first token").classes("foot")
            with self._body:
                self._last = ui.label().classes("text")

    @property
    def text(self) -> str:
        """What was written so far."""
        return "".join(self._pieces)

    def take(self, event: Event) -> None:
        """An event of the answer; `push` shows it."""
        if isinstance(event, Output):
            if event.tokens and self._first is None:
                self._first = self._clock()
            self._tokens += len(event.tokens)
            if not self._pieces:
                self._pieces.append("")
            self._pieces[-1] += event.text
        elif isinstance(event, SegmentRecord):
            self._segments += 1
        else:
            self._end = event

    def push(self) -> None:
        """Show what has come since."""
        if self._bubble.is_deleted or not self._pieces:
            return
        if len(self._pieces[-1]) != self._shown:
            self._last.text = self._pieces[-1]
            self._shown = len(self._pieces[-1])
            self._foot.text = self._line(["writing"])
        if self._shown >= _PIECE:
            self._pieces.append("")
            self._shown = 0
            with self._body:
                self._last = ui.label().classes("text")

    def close(self, failure: str) -> None:
        """The answer has ended; `failure` says why, where it was not complete."""
        self.push()
        if self._bubble.is_deleted:
            return
        end = self._end
        if failure or end is None:
            self._bubble.classes("error" if failure != "stopped" else "")
            self._foot.text = self._line([failure or "ended"])
            return
        said = ["exact" if end.exact else "not exact", "cut at its most tokens" if end.reason.value == "length" else ""]
        carried = sum(segment.tail + segment.state + segment.recalled for segment in end.segments)
        said += [f"{carried} tokens carried" if carried else ""]
        said += [f"{end.unseen_tokens} prompt tokens unseen" if end.unseen_tokens else ""]
        self._foot.text = self._line(said)

    def _line(self, said: list[str]) -> str:
        segments = max(1, self._segments)
        parts = [*said, f"{segments} segment{'s' * (segments != 1)}", f"{self._tokens} tokens"]
        if self._first is not None and (seconds := self._clock() - self._first) > 0 and self._tokens > 1:
            parts.append(f"{(self._tokens - 1) / seconds:.0f} tokens/s")
            parts.append(f"first after {self._first - self._asked:.1f} s")
        return " · ".join(part for part in parts if part)
