"""Long messages keep their beginning and their end, word for word."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ghostkv.protocol.condense import condense


def count(text: str) -> int:
    return len(text.split())


def test_whole_sentences_at_both_ends() -> None:
    body = " ".join(f"This is sentence number {i} of many." for i in range(100))
    condensed = condense(f"Read this report. {body} Who wrote it?", count, limit=32)
    assert condensed.content.startswith("Read this report.")
    assert condensed.content.endswith("This is sentence number 99 of many. Who wrote it?")
    assert "\n[...]\n" in condensed.content
    assert count(condensed.content) <= 32 + 1
    assert condensed.content.split("\n[...]\n")[0].endswith((".", "report."))


def test_one_endless_sentence_is_cut_between_words() -> None:
    condensed = condense(" ".join(f"word{i}" for i in range(500)), count, limit=8)
    assert condensed.content == "word0 word1\n[...]\n" + " ".join(f"word{i}" for i in range(494, 500))


@given(st.text(min_size=1, max_size=400), st.integers(4, 40))
def test_what_is_left_out_is_exactly_what_lies_between(text: str, limit: int) -> None:
    condensed = condense(text, len, limit)
    assert 0 <= condensed.start <= condensed.stop <= len(text)
    kept = text[: condensed.start].rstrip() + "\n[...]\n" + text[condensed.stop :].lstrip()
    assert condensed.content == kept.strip()
    assert condensed.start <= limit // 4
    assert len(text) - condensed.stop <= limit - limit // 4
