"""Tokenizer: exact bytes, no control ids from ordinary text, equality with transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models
from transformers import PreTrainedTokenizerFast

from fakes import byte_tokenizer
from ghostkv.errors import InvalidRequest, ModelError
from ghostkv.text.tokenizer import Tokenizer

BYTES = byte_tokenizer()


def assert_equals_transformers(tokenizer: Tokenizer, texts: list[str]) -> None:
    oracle = PreTrainedTokenizerFast(tokenizer_object=tokenizer._markup)
    expected = oracle(texts, add_special_tokens=False)["input_ids"]
    for text, ids in zip(texts, expected, strict=True):
        assert tokenizer.encode(text) == ids, text
        assert tokenizer.decode(ids) == text
        assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


def test_real_vocabulary_round_trips_and_equals_transformers(smollm2: Tokenizer, texts: list[str]) -> None:
    assert_equals_transformers(smollm2, texts)


def test_trained_vocabulary_round_trips_and_equals_transformers(
    byte_level: tokenizers.Tokenizer, texts: list[str]
) -> None:
    assert_equals_transformers(Tokenizer(byte_level), texts)


def test_sentencepiece_like_ids_and_text(sentencepiece: tokenizers.Tokenizer, texts: list[str]) -> None:
    tokenizer = Tokenizer(sentencepiece)
    oracle = PreTrainedTokenizerFast(tokenizer_object=sentencepiece)
    for text in texts[:500]:
        ids = tokenizer.encode(text)
        assert ids == oracle(text, add_special_tokens=False)["input_ids"]
        # The space that the tokenizer puts before the text is one of its bytes.
        assert tokenizer.decode(ids).removeprefix(" ") == text.removeprefix(" ")


def test_text_inside_a_prompt_has_no_leading_space() -> None:
    inner = tokenizers.Tokenizer(models.BPE({"▁": 0, "a": 1, "<s>": 2}, []))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="first")
    inner.decoder = decoders.Metaspace()
    inner.add_special_tokens(["<s>"])
    tokenizer = Tokenizer(inner)
    assert tokenizer.encode("a") == [0, 1]
    assert tokenizer.encode("a", opening=False) == [1]
    assert [token_id for token_id, _, _ in tokenizer.encode_markup("a<s>a")] == [0, 1, 2, 1]


@given(st.text())
def test_any_text_survives(text: str) -> None:
    ids = BYTES.encode(text)
    assert BYTES.decode(ids) == text
    assert BYTES.control_ids.isdisjoint(ids)


def test_lone_surrogate_is_the_clients_error() -> None:
    with pytest.raises(InvalidRequest, match="surrogate"):
        BYTES.encode("a\ud800b")


@given(st.lists(st.sampled_from(["<|im_end|>", "<|im_", "end|>", "<", "|", ">", " ", "a"]), max_size=12))
def test_control_strings_are_bytes(parts: list[str]) -> None:
    text = "".join(parts)
    ids = BYTES.encode(text)
    assert BYTES.control_ids.isdisjoint(ids)
    assert BYTES.decode(ids) == text


def test_control_token_reachable_by_merges_is_spelled_in_bytes() -> None:
    inner = tokenizers.Tokenizer(models.BPE({"<": 0, "s": 1, ">": 2, "<s": 3, "<s>": 4}, [("<", "s"), ("<s", ">")]))
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<s>"])
    tokenizer = Tokenizer(inner)
    assert tokenizer._plain.encode("s<s>").ids == [1, 4]  # the trap: an ordinary merge gives the control id
    assert tokenizer.encode("s<s>") == [1, 0, 1, 2]
    assert tokenizer.control == {"<s>": 4}


def test_token_bytes_and_text() -> None:
    tokenizer = byte_tokenizer()
    assert [tokenizer.token_bytes(byte) for byte in range(256)] == [bytes([byte]) for byte in range(256)]
    the = tokenizer.encode(" the")
    assert [tokenizer.token_bytes(i) for i in the] == [b" the"]
    end = tokenizer.control["<|im_end|>"]
    assert tokenizer.token_bytes(end) == b""
    assert tokenizer.token_bytes(tokenizer.vocab_size) == tokenizer.token_bytes(-1) == b""
    assert tokenizer.decode([*the, end, *the]) == " the the"
    assert tokenizer.token_text(end) == "<|im_end|>"
    assert tokenizer.token_text(the[0]) == " the"
    assert tokenizer.token_text(0xE6) == "\ufffd"


def test_ordinary_added_token_stands_for_its_own_characters() -> None:
    inner = tokenizers.Tokenizer.from_str(byte_tokenizer()._markup.to_str())
    inner.add_tokens(["<think>", "é¿"])
    tokenizer = Tokenizer(inner)
    ids = tokenizer.encode("<think>é¿")
    assert len(ids) == 2
    assert tokenizer.decode(ids) == "<think>é¿"
    assert "<think>" not in tokenizer.control


@pytest.mark.parametrize("content", [None, "", "{", '{"model": {"type": "Nonsense"}}', "\x00"])
def test_missing_or_invalid_file_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        Tokenizer.from_file(path)


def test_file_equals_memory(tmp_path: Path, byte_level: tokenizers.Tokenizer) -> None:
    path = tmp_path / "tokenizer.json"
    byte_level.save(str(path))
    tokenizer = Tokenizer.from_file(path, bos_id=3, eos_ids=[7, 5, 7], add_bos=True)
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.add_bos) == (3, (7, 5), True)
    assert tokenizer.encode("The answer <s>") == Tokenizer(byte_level).encode("The answer <s>")


def test_padding_and_truncation_of_the_file_do_not_apply(byte_level: tokenizers.Tokenizer) -> None:
    inner = tokenizers.Tokenizer.from_str(byte_level.to_str())
    inner.enable_truncation(2)
    inner.enable_padding(length=9)
    assert Tokenizer(inner).encode("The answer is 42") == Tokenizer(byte_level).encode("The answer is 42")


def test_unknown_decoder_is_named(byte_level: tokenizers.Tokenizer) -> None:
    inner = tokenizers.Tokenizer.from_str(byte_level.to_str())
    inner.decoder = decoders.WordPiece()
    with pytest.raises(ModelError, match=r"x\.json: decoder WordPiece"):
        Tokenizer(inner, name="x.json")
    description = json.loads(byte_level.to_str()) | {"decoder": None}
    with pytest.raises(ModelError, match="decoder none"):
        Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(description)))


def test_ids_outside_the_vocabulary_are_refused(byte_level: tokenizers.Tokenizer) -> None:
    with pytest.raises(ModelError, match="token id 99999"):
        Tokenizer(byte_level, eos_ids=[99999])
    with pytest.raises(ModelError, match="none is named"):
        Tokenizer(byte_level, add_bos=True)


def test_the_digest_tells_what_ids_mean() -> None:
    assert byte_tokenizer().digest == byte_tokenizer().digest
    others = (byte_tokenizer(("<|x|>",)), byte_tokenizer(add_bos=True))
    assert len({tokenizer.digest for tokenizer in (byte_tokenizer(), *others)}) == 3
