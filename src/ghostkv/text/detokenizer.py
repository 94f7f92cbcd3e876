"""Token ids to text, one at a time. Pure: the bytes of an unfinished character travel with the caller."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

from ghostkv.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Detokenizer:
    """Incremental form of `Tokenizer.decode`: all pieces and the flush, joined, are that text."""

    tokenizer: Tokenizer

    def feed(self, undecoded: bytes, token_id: int) -> tuple[str, bytes]:
        """Return (text that this token completes, bytes of a character that is still incomplete).

        `undecoded` is what the previous call returned, at first empty. Bytes that no continuation can complete become
        U+FFFD at once. A special token gives no text and leaves `undecoded` as it is.
        """
        data = undecoded + self.tokenizer.token_bytes(token_id)
        text, used = codecs.utf_8_decode(data, "replace")
        return text, data[used:]

    def flush(self, undecoded: bytes) -> str:
        """Text of a tail that nothing will complete."""
        return undecoded.decode("utf-8", errors="replace")
