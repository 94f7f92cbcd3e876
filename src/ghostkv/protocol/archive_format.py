"""The stored form of an archive: `canonical` bytes, and the same compressed by `encode`. It does no I/O.

Canonical are the bytes before compression: equal archives have equal `canonical` bytes on every machine, so digest
those. `encode` compresses them with zlib, whose output may differ from build to build; every build reads all of them.

    stored    = b"GKA1" length(canonical):u64 zlib(canonical)            integers here are little-endian
    canonical = n ids:varint[n]  n lengths of segments:varint[n]  n sentences[n]
    sentence  = message node offset segment role text topic              varints; a string is its UTF-8 length and bytes
A varint is LEB128, in its shortest form. A lone surrogate in a string is written as WTF-8 writes it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from ghostkv.errors import InvariantViolation
from ghostkv.protocol.archive import Archive
from ghostkv.protocol.facts import Position, Sentence
from ghostkv.protocol.log import Log
from ghostkv.protocol.token_log import TokenLog

_MAGIC = b"GKA1"
_HEADER = len(_MAGIC) + 8


def canonical(archive: Archive) -> bytes:
    """What two archives share exactly when they are equal."""
    out = bytearray()
    _write(out, (archive.total, *archive.ids))
    ends = archive.ends[:]
    _write(out, (len(ends), *(end - start for start, end in zip((0, *ends), ends, strict=False))))
    _write(out, (len(archive.sentences),))
    for sentence in archive.sentences:
        position = sentence.position
        _write(out, (position.message, position.node, position.offset, sentence.segment))
        for text in (sentence.role, sentence.text, sentence.topic):
            raw = text.encode("utf-8", "surrogatepass")
            _write(out, (len(raw),))
            out += raw
    return bytes(out)


def encode(archive: Archive) -> bytes:
    """The archive in few bytes, for `decode`."""
    content = canonical(archive)
    return _MAGIC + len(content).to_bytes(8, "little") + zlib.compress(content)


def decode(stored: bytes) -> Archive:
    """The archive that `encode` was given. Raises InvariantViolation if `stored` is damaged or of another format."""
    if stored[: len(_MAGIC)] != _MAGIC:
        raise InvariantViolation("not an archive of a known format")
    size = int.from_bytes(stored[len(_MAGIC) : _HEADER], "little")
    try:
        inflate = zlib.decompressobj()
        # One byte more than announced is enough to see that there are too many.
        content = inflate.decompress(stored[_HEADER:], min(size + 1, 1 << 40))
        if len(content) != size or not inflate.eof or inflate.unused_data:
            raise InvariantViolation("a stored archive is not as long as it says")
        return _Reader(content).archive()
    except (zlib.error, IndexError, UnicodeDecodeError) as error:
        raise InvariantViolation(f"a stored archive is damaged: {error}") from error


def _write(out: bytearray, values: Iterable[int]) -> None:
    for value in values:
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        out.append(value)


class _Reader:
    """Reads canonical bytes from the start; running out of them is an IndexError."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def archive(self) -> Archive:
        ids = TokenLog().extended(self._integers())
        ends, end = [], 0
        for length in self._integers():
            end += length
            ends.append(end)
        sentences = [self._sentence() for _ in range(self._integer())]
        if self._at != len(self._content) or end > len(ids) or (ends and end != len(ids)):
            raise InvariantViolation("a stored archive does not add up")
        return Archive(ids, Log(ends), Log(sentences))

    def _integer(self) -> int:
        value = shift = 0
        while True:
            byte = self._content[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def _integers(self) -> list[int]:
        return [self._integer() for _ in range(self._integer())]

    def _string(self) -> str:
        length = self._integer()
        raw = self._content[self._at : self._at + length]
        if len(raw) != length:
            raise IndexError("a string is cut off")
        self._at += length
        return raw.decode("utf-8", "surrogatepass")

    def _sentence(self) -> Sentence:
        position = Position(self._integer(), self._integer(), self._integer())
        return Sentence(position, self._integer(), self._string(), self._string(), self._string())
