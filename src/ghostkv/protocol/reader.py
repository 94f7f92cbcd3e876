"""Reads a message as it grows: text in, sentences and exact facts out. No model, no tokens.

A fold: `feed` gives the reader's successor. What is read in all does not depend on how the text was divided, except
that a sentence carries the segment in which it ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ghostkv.protocol.blocks import Place, Unit, cut
from ghostkv.protocol.extract import Context, code_facts, prose_facts, row_facts
from ghostkv.protocol.facts import Fact, Position, Sentence
from ghostkv.protocol.topics import following_topic, resolved_topic

_STRIPPED = "*_ \t"
_HEAD_WORDS = 6  # a line of fewer words that ends with a colon heads what follows


@dataclass(frozen=True, slots=True)
class Reading:
    """What became known with one piece of text."""

    sentences: tuple[Sentence, ...]
    facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class Reader:
    """One message, or one plan node of it, as far as it is read."""

    message: int
    role: str
    node: int = 0
    pending: str = ""  # text that may still go on
    offset: int = 0  # characters before `pending`
    marks: tuple[tuple[int, int], ...] = ()  # (offset, segment whose text begins there), the first at or before pending
    place: Place = field(default_factory=Place)
    context: Context = field(default_factory=Context)

    def feed(self, text: str, segment: int, *, final: bool = False) -> tuple[Reader, Reading]:
        """Take the next text, which belongs to `segment`. `final`: the message ends with it."""
        whole = self.pending + text
        marks = (*self.marks, (self.offset + len(self.pending), segment)) if text else self.marks
        reader = replace(self, marks=marks or ((0, segment),))  # with the marks that `_read` looks up
        sentences: list[Sentence] = []
        facts: list[Fact] = []
        start, place, context = 0, self.place, self.context
        while start < len(whole):
            unit, stop, following = cut(whole, start, place, final=final)
            if unit is None and stop == start and following == place:
                break
            start, place = stop, following
            if unit is not None:
                context = _read(reader, whole, unit, context, sentences, facts)
        offset = self.offset + start
        kept = [mark for mark in reader.marks if mark[0] > offset]
        current = [mark for mark in reader.marks if mark[0] <= offset][-1:]
        successor = replace(
            self, pending=whole[start:], offset=offset, marks=(*current, *kept), place=place, context=context
        )
        return successor, Reading(tuple(sentences), tuple(facts))


def _read(
    reader: Reader, text: str, unit: Unit, context: Context, sentences: list[Sentence], facts: list[Fact]
) -> Context:
    """Read one unit into the two lists; gives what later units need to know of it."""
    raw = text[unit.start : unit.end]
    line = " ".join(raw.split())
    if not any(map(str.isalnum, line)):
        return context
    begin = unit.start + len(raw) - len(raw.lstrip())
    position = Position(reader.message, reader.node, reader.offset + begin)
    last = reader.offset + unit.start + len(raw.rstrip()) - 1
    segment = [segment for offset, segment in reader.marks if offset <= last][-1]
    topic = resolved_topic(line, context.topic) if unit.kind in ("prose", "item") else ""
    sentence = Sentence(position, segment, reader.role, line, topic)
    sentences.append(sentence)
    if unit.kind == "code":
        facts.extend(code_facts(sentence))
        return replace(context, topic="", header=())
    if unit.kind == "row":
        found, header = row_facts(sentence, context)
        facts.extend(found)
        return replace(context, topic="", header=header)
    found, known, tokens = prose_facts(sentence, context, quoted=unit.kind == "quote")
    facts.extend(found)
    heads = unit.kind == "heading" or (line.endswith(":") and line.count(" ") < _HEAD_WORDS)
    section = line.strip("#[]: " + _STRIPPED) if heads else context.section
    topic = following_topic(sentence, tokens) if unit.kind == "prose" else ""
    return Context(topic, section, (), known)
