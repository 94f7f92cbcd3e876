"""The semantic boundary rule: a segment ends at the first natural end at or after its target.

Natural ends are the end of a paragraph, sentence or list item, and of a line of code, quote or table. A line end is
known with its newline. A sentence end is known only with the white space after it, which belongs to the next word's
token, so that boundary falls after this token: `... done. The|`. The carried tail begins at a sentence all the same.

In the last third between target and cap any line end and any word end will do. At the cap the engine ends the segment
wherever it stands, so what is longer than the cap (a table row, a URL) can be cut there and only there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ghostkv.protocol.lines import Opening
from ghostkv.protocol.structure import Structure
from ghostkv.request import CONTINUE, Boundary, Rule, Verdict
from ghostkv.text.sentences import ends_sentence

_KINDS = {"blank": "paragraph", "item": "item", "code": "line", "quote": "line", "row": "line"}  # line -> boundary
_WIDE_STOPS = ("。", "！", "？")  # end a sentence without white space


@dataclass(frozen=True, slots=True)
class SegmentBoundary:
    """Counts the tokens of a segment and follows its structure. Successors share nothing mutable."""

    target: int
    cap: int
    ignored: frozenset[int] = frozenset()  # ids that are no text of the answer (end-of-sequence ids under ignore_eos)
    generated: int = 0  # tokens of this segment
    structure: Structure = field(default_factory=Structure)

    @property
    def held(self) -> int:
        """None: it drops nothing that came before."""
        return 0

    @property
    def openings(self) -> tuple[Opening, ...]:
        """What is open, outermost first; token indices do not count ignored ids."""
        return self.structure.openings

    def feed(self, token_id: int, piece: str) -> tuple[Rule, Verdict]:
        """Take one token; at a boundary the successor has begun the next segment."""
        generated = self.generated + 1
        if token_id in self.ignored:
            return self._successor(generated, self.structure), CONTINUE
        structure = self.structure.feed(piece)
        kind = self._end(structure, piece, generated) if piece else ""
        if kind:
            return self._successor(0, structure), Boundary(kind)
        return self._successor(generated, structure), CONTINUE

    def next_segment(self) -> SegmentBoundary:
        """Count from 0; the structure goes on."""
        return self._successor(0, self.structure)

    def _successor(self, generated: int, structure: Structure) -> SegmentBoundary:
        return SegmentBoundary(self.target, self.cap, self.ignored, generated, structure)

    def _end(self, structure: Structure, piece: str, generated: int) -> str:
        """Kind of the boundary after `piece`; "" for none."""
        if generated < self.target and not ("\n" in piece and self._overlong_next(structure, generated)):
            return ""
        if not structure.cuttable:
            return ""
        soft = generated >= self.cap - (self.cap - self.target) // 3
        if structure.at_line:
            return _line_end(structure, soft=soft) if "\n" in piece else ""
        return _text_end(structure, piece, soft=soft)

    def _overlong_next(self, structure: Structure, generated: int) -> bool:
        """Whether a row, item or line like the one that ended here would reach over the cap, but fits a segment."""
        whole = structure.lines.ended in ("row", "item", "code", "quote")
        return whole and self.cap - generated < structure.lines.length <= self.cap


def _line_end(structure: Structure, *, soft: bool) -> str:
    """At the start of a line: what the line before it was says whether something ended."""
    ended = structure.lines.ended
    if ended == "prose" and ends_sentence(structure.lines.text):
        return "paragraph"  # models do not wrap prose, so its lines are paragraphs
    return _KINDS.get(ended, "line" if soft else "")


def _text_end(structure: Structure, piece: str, *, soft: bool) -> str:
    """Inside a line of prose: whether white space in `piece` shows that a sentence or, if `soft`, a word has ended."""
    gap = next((i for i in range(len(piece) - 1, -1, -1) if piece[i].isspace()), -1)
    if gap < 0:
        return "sentence" if piece.endswith(_WIDE_STOPS) else ""
    before = structure.last[: -(len(piece) - gap)].rstrip()
    if not before or len(structure.last) < len(piece) - gap:  # the line begins inside the piece
        return ""
    if ends_sentence(before) and not piece[gap + 1 : gap + 2].islower():
        return "sentence"
    return "word" if soft else ""
