"""A boundary in values: what the closing of a segment adds to what a session knows, and how it is added.

`close` reads a segment (encode_transition in TGP's pseudo-code) and `Memory.add` merges what it found. Reading needs
the segment's ids alone, so its KV may be gone by then.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, field

from ghostkv.protocol.archive import Archive
from ghostkv.protocol.density import estimate_density
from ghostkv.protocol.ledger import Ledger
from ghostkv.protocol.payload import Cursor, Payload, Sealed, advance
from ghostkv.protocol.reader import Reader, Reading
from ghostkv.protocol.sentence_index import SentenceIndex
from ghostkv.protocol.style import style_sentence
from ghostkv.protocol.tail import TokenBytes

_RECENT = 4000  # characters of the open answer that style and density look at


@dataclass(frozen=True, slots=True)
class Memory:
    """What a session knows of all closed text."""

    payload: Sealed = field(default_factory=Sealed.first)
    archive: Archive = field(default_factory=Archive)
    index: SentenceIndex = field(default_factory=SentenceIndex)

    def add(self, transition: Transition, budget: int) -> Memory:
        """With one more closed segment or message; the payload stays within `budget` bytes."""
        return Memory(
            payload=advance(self.payload, transition.delta, budget),
            archive=self.archive.append(transition.ids, transition.reading.sentences),
            index=self.index.append(transition.reading.sentences),
        )


@dataclass(frozen=True, slots=True)
class OpenText:
    """The text of the message that is being written, as far as its segments are closed."""

    reader: Reader
    undecoded: bytes = b""  # bytes of a character that is not complete yet
    recent: str = ""  # its last characters
    length: int = 0  # characters in all


@dataclass(frozen=True, slots=True)
class Transition:
    """What one closed segment adds."""

    ids: tuple[int, ...]
    reading: Reading
    delta: Payload
    density: float
    open_text: OpenText  # for the segment after it


def close(
    before: OpenText,
    ids: Sequence[int],
    token_bytes: TokenBytes,
    cursor: Cursor,
    *,
    openings: tuple[str, ...] = (),
    final: bool,
) -> Transition:
    """Read a segment that generated `ids`, which ends its message if `final`."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    text = decoder.decode(before.undecoded + b"".join(map(token_bytes, ids)), final)
    undecoded, _ = decoder.getstate()
    reader, reading = before.reader.feed(text, cursor.segment - 1, final=final)
    recent = (before.recent + text)[-_RECENT:]
    delta = Payload(Ledger().merge(reading.facts), cursor, style_sentence(recent), openings)
    return Transition(
        ids=tuple(ids),
        reading=reading,
        delta=delta,
        density=estimate_density(text, len(reading.facts), before=before.recent),
        open_text=OpenText(reader, undecoded, recent, before.length + len(text)),
    )


def read_message(memory: Memory, index: int, role: str, content: str, budget: int) -> Memory:
    """`memory` after message `index` of a conversation, which a client sent whole."""
    _, reading = Reader(message=index, role=role).feed(content, 0, final=True)
    delta = Payload(Ledger().merge(reading.facts), Cursor(message=index + 1))
    return Memory(
        payload=advance(memory.payload, delta, budget),
        archive=memory.archive.read(reading.sentences),
        index=memory.index.append(reading.sentences),
    )
