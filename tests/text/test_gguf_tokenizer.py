"""GGUF tokenizer: each pre-tokeniser equals a BPE written from its definition; what is not proven is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, pairwise

import pytest
import regex  # type: ignore[import-untyped]
import tokenizers

from ghostkv.errors import ModelError
from ghostkv.text.gguf_tokenizer import tokenizer_from_gguf
from ghostkv.text.tokenizer import Tokenizer

# GPT-2's split (Radford et al., 2019); smollm applies it to the pieces between single digits.
GPT2 = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")


# Llama 3's split, written out for the letters that its contractions ignore the case of; Qwen 2 takes digits one by one.
LLAMA3 = (
    r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORDS = {"llama-bpe": regex.compile(LLAMA3), "qwen2": regex.compile(LLAMA3.replace("{1,3}", ""))}


def split(text: str, pre: str) -> list[str]:
    if pre in WORDS:
        found: list[str] = WORDS[pre].findall(text)
        return found
    pieces = [text] if pre == "gpt-2" else [piece for piece in regex.split(r"(\p{N})", text) if piece]
    return [word for piece in pieces for word in GPT2.findall(piece)]


def letter(byte: int) -> str:
    """The byte's letter, counted out as the original encoder does."""
    shown = [b for b in range(256) if chr(b).isprintable() and chr(b) not in " \xa0\xad"]
    return chr(byte) if byte in shown else chr(256 + [b for b in range(256) if b not in shown].index(byte))


def reference(pre: str, tokens: Sequence[str], merges: Sequence[str]) -> Callable[[str], list[int]]:
    """Byte-pair encoding by its definition: merge the best-ranked adjacent pair until there is none."""
    ids = {token: i for i, token in enumerate(tokens)}
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
    letters = [letter(byte) for byte in range(256)]

    @lru_cache(None)
    def word_ids(word: str) -> list[int]:
        parts = [letters[byte] for byte in word.encode()]
        if pre == "llama-bpe" and "".join(parts) in ids:
            return [ids["".join(parts)]]
        while len(parts) > 1:
            rank, at = min((ranks.get(pair, 1 << 30), at) for at, pair in enumerate(pairwise(parts)))
            if rank == 1 << 30:
                break
            pair = parts[at : at + 2]
            merged, at = [], 0
            while at < len(parts):
                joined = parts[at : at + 2] == pair
                merged.append("".join(pair) if joined else parts[at])
                at += 2 if joined else 1
            parts = merged
        return [ids[part] for part in parts]

    return lambda text: [i for word in split(text, pre) for i in word_ids(word)]


PRE_TOKENIZERS = ("gpt-2", "smollm", "llama-bpe", "qwen2")


def metadata(inner: tokenizers.Tokenizer, **changes: object) -> dict[str, object]:
    """GGUF metadata with the vocabulary of `inner`; a change to None removes the key."""
    model = json.loads(inner.to_str())["model"]
    vocabulary = inner.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    values: dict[str, object] = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": tokens,
        "token_type": [3 if token[0] in "<[" and len(token) > 2 else 1 for token in tokens],
        "merges": [" ".join(pair) for pair in model["merges"]],
    }
    values |= changes
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}


def as_strings(data: Mapping[str, object], key: str) -> list[str]:
    values = data[f"tokenizer.ggml.{key}"]
    assert isinstance(values, list)
    return values


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_ids_equal_the_definition(byte_level: tokenizers.Tokenizer, texts: list[str], pre: str) -> None:
    data = metadata(byte_level, pre=pre, add_bos_token=False)
    tokenizer = tokenizer_from_gguf(data, "x.gguf")
    expected = reference(pre, as_strings(data, "tokens"), as_strings(data, "merges"))
    for text in texts[:600]:
        assert tokenizer.encode(text) == expected(text), text


MORE: dict[str, list[object]] = {"tokens": ["42", "'L"], "merges": ["4 2", "' L"], "token_type": [1, 1]}


def test_the_pre_tokenisers_differ(byte_level: tokenizers.Tokenizer) -> None:
    """Were they equal on the strings above, the test above could not tell a mix-up."""
    seen = set()
    for pre in PRE_TOKENIZERS:
        data = metadata(byte_level, pre=pre, bos_token_id=3)
        for key, more in MORE.items():
            values = data[f"tokenizer.ggml.{key}"]
            assert isinstance(values, list)
            data[f"tokenizer.ggml.{key}"] = values + [
                each for each in more if each not in values or key == "token_type"
            ]
        seen.add(tuple(tokenizer_from_gguf(data, "x.gguf").encode(" 'Sol 42\n\n it'LL 42 ")))
    assert len(seen) == len(PRE_TOKENIZERS)


def test_prompts_of_llama_3_begin_with_bos_unless_the_file_says_no(byte_level: tokenizers.Tokenizer) -> None:
    def begins(**changes: object) -> bool:
        return tokenizer_from_gguf(metadata(byte_level, bos_token_id=3, **changes), "x.gguf").add_bos

    assert begins(pre="llama-bpe")
    assert not begins(pre="llama-bpe", add_bos_token=False)
    assert not begins(pre="qwen2")


def test_real_ids_equal_the_definition(
    smollm2: Tokenizer, smollm2_metadata: Mapping[str, object], texts: list[str]
) -> None:
    expected = reference("smollm", as_strings(smollm2_metadata, "tokens"), as_strings(smollm2_metadata, "merges"))
    prose = [
        "In 1969, 400,000 people worked on it.",
        "  def f(x):\n\treturn x**2  # 21.4\n\n",
        "It's 5:30 p.m. — “hello”",
    ]
    ids = smollm2.encode(prose[0])
    assert [smollm2.token_text(i) for i in ids][:6] == ["In", " ", "1", "9", "6", "9"]
    for text in chain(prose, texts[:300]):
        assert smollm2.encode(text) == expected(text), text


def test_real_special_tokens(smollm2: Tokenizer) -> None:
    assert smollm2.vocab_size == 49_152
    assert smollm2.eos_ids == (2, 0)
    assert (smollm2.bos_id, smollm2.add_bos) == (1, False)
    assert smollm2.control["<|im_end|>"] == 2
    assert len(smollm2.control) == 17


def test_end_ids_come_from_keys_then_names(byte_level: tokenizers.Tokenizer) -> None:
    data = metadata(byte_level, eos_token_id=4, eot_token_id=11, eom_token_id=4, bos_token_id=3, add_bos_token=True)
    tokenizer = tokenizer_from_gguf(data, "x.gguf")
    names = [tokenizer.token_text(i) for i in tokenizer.eos_ids]
    assert names == ["<eos>", "<|eot_id|>", "<|im_end|>", "<|endoftext|>", "<end_of_turn>", "</s>"]
    assert (tokenizer.bos_id, tokenizer.add_bos) == (3, True)


def test_user_defined_tokens_are_text(byte_level: tokenizers.Tokenizer) -> None:
    data = metadata(byte_level)
    types = [4 if token == "[INST]" else 1 for token in as_strings(data, "tokens")]
    tokenizer = tokenizer_from_gguf(data | {"tokenizer.ggml.token_type": types}, "x.gguf")
    ids = tokenizer.encode("[INST]")
    assert len(ids) == 1
    assert tokenizer.decode(ids) == "[INST]"
    assert "[INST]" not in tokenizer.control


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pre": "llama-spm"}, "pre-tokeniser 'llama-spm'"),
        ({"pre": None}, "lacks tokenizer.ggml.pre"),
        ({"model": "llama"}, "tokenizer model 'llama'"),
        ({"model": None}, "lacks tokenizer.ggml.model"),
        ({"tokens": None}, "lacks tokenizer.ggml.tokens"),
        ({"tokens": ["a", 3]}, "tokens is not a list of strings"),
        ({"tokens": ["a", "a"], "token_type": [1, 1]}, "holds a token twice"),
        ({"token_type": [1]}, "token_type has 1 entries"),
        ({"merges": None}, "lacks tokenizer.ggml.merges"),
        ({"merges": ["Ġ qqqq"]}, "merges holds 'Ġ qqqq'"),
        ({"merges": ["a"]}, "merges holds 'a'"),
        ({"eos_token_id": "2"}, "eos_token_id is a str"),
        ({"eos_token_id": 10**6}, "token id 1000000"),
    ],
)
def test_unusable_metadata_is_refused_by_name(
    byte_level: tokenizers.Tokenizer, change: dict[str, object], words: str
) -> None:
    with pytest.raises(ModelError, match=r"^x\.gguf: ") as caught:
        tokenizer_from_gguf(metadata(byte_level, **change), "x.gguf")
    assert words in caught.value.message
