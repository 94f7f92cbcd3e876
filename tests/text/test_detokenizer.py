"""Detokenizer: the pieces, joined, are the text of the whole."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from fakes import byte_tokenizer
from ghostkv.text.detokenizer import Detokenizer
from ghostkv.text.tokenizer import Tokenizer

BYTES = byte_tokenizer()
# Lead and continuation bytes, overlong and surrogate forms: the neighbourhood in which decoders disagree.
HARD = st.sampled_from([0x20, 0x7F, 0x80, 0x9F, 0xA0, 0xBF, 0xC0, 0xC2, 0xE0, 0xE6, 0xED, 0xEF, 0xF0, 0xF4, 0xF5, 0xFF])


def pieces(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    undecoded, texts = b"", []
    for token_id in ids:
        text, undecoded = detokenizer.feed(undecoded, token_id)
        texts.append(text)
    return [*texts, detokenizer.flush(undecoded)]


@given(st.lists(st.one_of(HARD, st.integers(0, BYTES.vocab_size - 1)), max_size=40))
def test_pieces_join_to_the_whole(ids: list[int]) -> None:
    assert "".join(pieces(BYTES, ids)) == BYTES.decode(ids)


@given(st.binary(max_size=30))
def test_whole_equals_the_codec(data: bytes) -> None:
    assert BYTES.decode(list(data)) == data.decode("utf-8", "replace")


def test_real_vocabulary(smollm2: Tokenizer) -> None:
    oracle = PreTrainedTokenizerFast(tokenizer_object=smollm2._markup)

    @given(st.lists(st.integers(0, smollm2.vocab_size - 1), max_size=60))
    def check(ids: list[int]) -> None:
        whole = smollm2.decode(ids)
        assert "".join(pieces(smollm2, ids)) == whole
        assert whole == oracle.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    check()


@given(st.text(max_size=20))
def test_no_replacement_character_before_the_character_is_whole(text: str) -> None:
    ids = list(text.encode())
    assert pieces(BYTES, ids)[-1] == ""
    assert [piece for piece in pieces(BYTES, ids) if piece] == list(text)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("🙂".encode(), ["", "", "", "🙂", ""]),
        (b"\xe6A", ["", "\ufffdA", ""]),
        (b"\xf0\x9f\x99", ["", "", "", "\ufffd"]),
        (b"\xff", ["\ufffd", ""]),
    ],
)
def test_examples(data: bytes, expected: list[str]) -> None:
    assert pieces(BYTES, list(data)) == expected


def test_special_token_leaves_the_tail_alone() -> None:
    end = BYTES.control["<|im_end|>"]
    assert Detokenizer(BYTES).feed(b"\xe6", end) == ("", b"\xe6")
    assert "".join(pieces(BYTES, [0xE6, end, 0xBC, 0xA2])) == "漢" == BYTES.decode([0xE6, end, 0xBC, 0xA2])
