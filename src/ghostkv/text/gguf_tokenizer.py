"""The tokenizer that a GGUF file carries in its metadata. Byte-level BPE ("gpt2") only.

A GGUF file names its pre-tokeniser instead of describing it, so `_PRE_TOKENIZERS` holds only what a test proves against
an independent BPE. An unknown name is refused: a wrong split still yields fluent text, from wrong ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from ghostkv.errors import ModelError
from ghostkv.text.tokenizer import Tokenizer

_CONTROL, _USER_DEFINED = 3, 4  # values of tokenizer.ggml.token_type

# The split of Llama 3 (its tokenizer.json), by how many digits stand together; Qwen 2 took it over.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _words(digits: str) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(tokenizers.Regex(_WORDS.format(digits=digits)), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_PRE_TOKENIZERS: Mapping[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "gpt-2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "llama-bpe": lambda: _words("{1,3}"),
    "qwen2": lambda: _words(""),
}
_WHOLE_WORDS = ("llama-bpe",)  # a word that is a token is not divided; prompts begin with BOS unless the file says no

_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_END_NAMES = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<|end|>",
    "</s>",
)

_T = TypeVar("_T")


def tokenizer_from_gguf(metadata: Mapping[str, object], file: str) -> Tokenizer:
    """Build the tokenizer from a GGUF file's metadata (key -> value); `file` is what errors name.

    The end-of-generation ids are those of the eos, eot and eom keys, then well-known control tokens of the vocabulary.
    Raises ModelError if a key is missing or malformed, or if the model or pre-tokeniser is not one proven here.
    """
    model = _value(metadata, "model", str, file)
    if model != "gpt2":
        raise ModelError(f"{file}: tokenizer model {model!r} is not supported (known: 'gpt2')")
    pre = _value(metadata, "pre", str, file)
    if pre not in _PRE_TOKENIZERS:
        raise ModelError(f"{file}: pre-tokeniser {pre!r} is not supported (known: {', '.join(_PRE_TOKENIZERS)})")
    tokens = _strings(metadata, "tokens", file)
    types = _integers(metadata, "token_type", file)
    if len(types) != len(tokens):
        raise ModelError(f"{file}: tokenizer.ggml.token_type has {len(types)} entries for {len(tokens)} tokens")
    inner = _bpe(tokens, _strings(metadata, "merges", file), file, whole_words=pre in _WHOLE_WORDS)
    inner.pre_tokenizer = _PRE_TOKENIZERS[pre]()
    inner.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL]
    defined = [token for token, kind in zip(tokens, types, strict=True) if kind == _USER_DEFINED]
    inner.add_special_tokens([tokenizers.AddedToken(token, normalized=False) for token in control])
    inner.add_tokens([tokenizers.AddedToken(token, normalized=False) for token in defined])
    keyed = [_optional(metadata, key, int, file) for key in _END_KEYS]
    ends = [i for i in keyed if i is not None] + [tokens.index(name) for name in _END_NAMES if name in control]
    add_bos = _optional(metadata, "add_bos_token", bool, file)
    return Tokenizer(
        inner,
        bos_id=_optional(metadata, "bos_token_id", int, file),
        eos_ids=ends,
        add_bos=pre in _WHOLE_WORDS if add_bos is None else add_bos,
        name=file,
    )


def _bpe(tokens: Sequence[str], merges: Sequence[str], file: str, *, whole_words: bool) -> tokenizers.Tokenizer:
    vocabulary = {token: i for i, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise ModelError(f"{file}: tokenizer.ggml.tokens holds a token twice")
    pairs: list[tuple[str, str]] = []
    for merge in merges:
        left, _, right = merge.partition(" ")
        if not (left and right and left in vocabulary and right in vocabulary and left + right in vocabulary):
            raise ModelError(f"{file}: tokenizer.ggml.merges holds {merge!r}, which the vocabulary does not allow")
        pairs.append((left, right))
    return tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=whole_words))


def _optional(metadata: Mapping[str, object], key: str, kind: type[_T], file: str) -> _T | None:
    value = metadata.get(f"tokenizer.ggml.{key}")
    if value is None:
        return None
    if not isinstance(value, kind):
        raise ModelError(f"{file}: tokenizer.ggml.{key} is a {type(value).__name__}, expected {kind.__name__}")
    return value


def _value(metadata: Mapping[str, object], key: str, kind: type[_T], file: str) -> _T:
    value = _optional(metadata, key, kind, file)
    if value is None:
        raise ModelError(f"{file}: the metadata lacks tokenizer.ggml.{key}")
    return value


def _strings(metadata: Mapping[str, object], key: str, file: str) -> list[str]:
    values = _value(metadata, key, list, file)
    if not all(isinstance(value, str) for value in values):
        raise ModelError(f"{file}: tokenizer.ggml.{key} is not a list of strings")
    return values


def _integers(metadata: Mapping[str, object], key: str, file: str) -> list[int]:
    values = _value(metadata, key, list, file)
    if not all(isinstance(value, int) for value in values):
        raise ModelError(f"{file}: tokenizer.ggml.{key} is not a list of integers")
    return values
