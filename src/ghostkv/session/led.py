"""Prompts of a chain that goes on from text which is not its own: what other nodes of a plan wrote before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ghostkv.protocol.render import Assembled, Prompting, Selection
from ghostkv.protocol.state import NO_BLOCK, Block


@dataclass(frozen=True, slots=True)
class Led:
    """`inner` with `lead` as the tail, until the chain has text of its own."""

    inner: Prompting
    lead: tuple[int, ...]

    @property
    def question(self) -> str:
        """See Prompting."""
        return self.inner.question

    def select(self, allowance: int | None, tail: int = 0) -> Selection:
        """See Prompting."""
        if tail:
            return self.inner.select(allowance, tail)
        selection = self.inner.select(allowance, len(self.lead))
        return selection if selection.free is None else replace(selection, free=selection.free - len(self.lead))

    def compose(self, selection: Selection, block: Block = NO_BLOCK, tail: Sequence[int] = ()) -> Assembled:
        """See Prompting."""
        if tail:
            return self.inner.compose(selection, block, tail)
        if selection.free is not None:
            selection = replace(selection, free=selection.free + len(self.lead))
        return self.inner.compose(selection, block, self.lead)
