"""What tests of structured output share: masks as sets, and languages enumerated by brute force."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from ghostkv.request import Bitmask
from ghostkv.step import Draw
from ghostkv.text.tokenizer import Tokenizer


def ids_of(bits: Bitmask) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist())


def allowed_by(language: Iterable[bytes], tokenizer: Tokenizer, text: bytes) -> set[int]:
    """The ids after which some text of a finite language can still be reached, and the end where one is."""
    rests = [whole[len(text) :] for whole in language if whole.startswith(text)]
    found = {
        token_id
        for token_id in range(tokenizer.vocab_size)
        if (piece := tokenizer.token_bytes(token_id)) and any(rest.startswith(piece) for rest in rests)
    }
    return found | (set(tokenizer.eos_ids) if b"" in rests and any(rests) else set())


def reading(language: Iterable[bytes], tokenizer: Tokenizer) -> Iterator[tuple[int, ...]]:
    """All token sequences that spell a text of the language or the beginning of one."""
    texts = list(language)
    open_: list[tuple[int, ...]] = [()]
    while open_:
        ids = open_.pop()
        yield ids
        text = b"".join(map(tokenizer.token_bytes, ids))
        open_ += [(*ids, token) for token in allowed_by(texts, tokenizer, text) if token not in tokenizer.eos_ids]


def choose(draw: Draw, seed: int) -> int:
    """Some id that the draw allows."""
    assert draw.allowed is not None
    found = sorted(ids_of(draw.allowed))
    return found[seed % len(found)]
