"""The text of a planned answer, put together in document order; nothing of a part is final before the part before it.

It finds stop strings that stand across two parts. Those inside a part are found where the part is generated.
"""

from __future__ import annotations

from collections.abc import Sequence

from ghostkv.protocol.node_prompt import joint
from ghostkv.protocol.rules import StopStrings
from ghostkv.request import Rule, Stop


class Document:
    """Grows at its end. `stopped` tells that a stop string was found; the text then ends before it."""

    def __init__(self, stop: Sequence[str]) -> None:
        """An empty document."""
        self.stopped = False
        self._rule: Rule | None = StopStrings.of(stop) if stop else None
        self._pending = ""  # may still turn out to be part of a stop string
        self._end = ""  # last characters of the document
        self._heading: str | None = None  # of a part that has no text yet

    def begin(self, heading: str) -> str:
        """Start a part; gives the text that is final now."""
        if heading:
            text = self._add(joint(self._end, heading))
            self._heading = None
            return text
        self._heading = ""
        return ""

    def add(self, text: str) -> str:
        """More text of the part; gives what is final now."""
        if not text:
            return ""
        if self._heading is not None:
            text = joint(self._end, self._heading, text) + text
            self._heading = None
        return self._add(text)

    def close(self) -> str:
        """The document ends; gives what was held back."""
        rest, self._pending = self._pending, ""
        return rest

    def _add(self, text: str) -> str:
        self._end = (self._end + text)[-2:]
        if self._rule is None or self.stopped:
            return "" if self.stopped else text
        self._pending += text
        self._rule, verdict = self._rule.feed(0, text)
        if isinstance(verdict, Stop):
            self.stopped = True
            self._pending = self._pending[: len(self._pending) - verdict.drop]
            return self.close()
        held = self._rule.held
        final, self._pending = self._pending[: len(self._pending) - held], self._pending[len(self._pending) - held :]
        return final
