"""A tokenizer as llguidance sees it, and which of its ids an answer under a grammar may have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from llguidance import LLTokenizer, TokenizerWrapper

from ghostkv.request import Bitmask
from ghostkv.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """One tokenizer's."""

    tokenizer: LLTokenizer
    usable: Bitmask  # ids that have text
    ends: Bitmask  # end-of-sequence ids

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Vocabulary:
        """Takes 0.2 s for 50,000 ids."""
        tokens = [tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)]
        # No text has the byte FF, and llguidance marks its own control tokens with it.
        usable = [bool(piece) and piece[0] != 0xFF for piece in tokens]
        ends = [token_id in tokenizer.eos_ids for token_id in range(tokenizer.vocab_size)]
        wrapper = TokenizerWrapper(_Described(tokenizer, tokens))
        return cls(LLTokenizer(wrapper, n_vocab=len(tokens) + 1), _bitmask(usable), _bitmask(ends))


class _Described:
    """What llguidance wants to know. The last id is the end as it sees it; no model has it."""

    def __init__(self, tokenizer: Tokenizer, tokens: list[bytes]) -> None:
        self.tokens = [*tokens, b""]
        self.eos_token_id = len(tokens)
        self.bos_token_id = None
        self.special_token_ids = sorted({*tokenizer.control_ids, *tokenizer.eos_ids, len(tokens)})
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, opening=False)


def _bitmask(flags: list[bool]) -> Bitmask:
    padded = np.zeros(-(-len(flags) // 32) * 32, dtype=np.bool_)
    padded[: len(flags)] = flags
    return np.packbits(padded, bitorder="little").view("<u4")
