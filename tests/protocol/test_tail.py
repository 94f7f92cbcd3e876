"""The tail: what it starts with, what it repeats, what it costs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ghostkv.protocol.lines import Opening
from ghostkv.protocol.tail import choose_tail


class Words:
    """Token ids for a list of pieces: the index of each."""

    def __init__(self, *pieces: str | bytes) -> None:
        self.pieces = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
        self.ids = tuple(range(len(pieces)))

    def tail(self, limit: int, *openings: Opening) -> bytes:
        chosen = choose_tail(self.ids, self.pieces.__getitem__, limit, openings)
        assert len(chosen) <= limit
        return b"".join(self.pieces[token_id] for token_id in chosen)


def words(text: str) -> Words:
    """One token a word, with the space before it."""
    first, *rest = text.split(" ")
    return Words(first, *(" " + word for word in rest))


def test_a_short_answer_is_its_own_tail() -> None:
    assert words("no. Sentence here").tail(3) == b"no. Sentence here"
    assert Words().tail(3) == b""


@pytest.mark.parametrize(
    ("text", "limit", "expected"),
    [
        ("a b cat. D e f g h", 6, " D e f g h"),
        ("a b cat. D e f g h", 5, " D e f g h"),  # the window's edge is a sentence start: seen from what is before it
        ("a b cat. D e f g h", 4, " e f g h"),
        ("Hi. B cat. D e f g h", 7, " B cat. D e f g h"),  # the earliest
        ("a b c d e pig. G h", 6, " c d e pig. G h"),  # a sentence in the last half would throw away too much
        ("a b c d e pig. G h", 5, " d e pig. G h"),
        ("a b c d e pig. G h", 4, " G h"),  # just half
        ("e.g. b c dr. d e f", 5, " c dr. d e f"),
    ],
)
def test_starts_at_a_sentence_if_that_leaves_half(text: str, limit: int, expected: str) -> None:
    assert words(text).tail(limit) == expected.encode()


def test_what_is_before_the_window_tells_whether_a_sentence_starts_at_its_edge() -> None:
    assert Words("It", " sat", ".", " Do", " it", ".", " Go", " f", " g", " h").tail(7) == b" Do it. Go f g h"
    assert Words("It", " Mr", ".", " Do", " it", ".", " Go", " f", " g", " h").tail(7) == b" Go f g h"


def test_else_at_a_line_else_at_a_word() -> None:
    lined = Words("a", " b", "c", ",\n", "d", " e", " f", " g")
    assert lined.tail(6) == b"d e f g"
    assert Words("a", "b", " c", "d", " e", "f").tail(5) == b" cd ef"
    assert Words("a", "b ", "c", "d", "e", "f").tail(5) == b"cdef"


def test_else_anywhere_but_at_a_whole_character() -> None:
    face = "🙂".encode()
    assert Words("x", face[:1], face[1:3], face[3:], "y", "z").tail(5) == face + b"yz"
    assert Words("x", face[:1], face[1:3], face[3:], "y", "z").tail(4) == b"yz"
    assert Words("x", face[:1], face[1:2], face[2:3], face[3:]).tail(2) == b""


def test_white_space_of_its_own_leaves_the_start_to_the_next_token() -> None:
    assert Words("a", "b.", "\n", "\n", "C", " d", " e", " f").tail(6) == b"C d e f"


def test_opening_lines_come_first_and_count() -> None:
    code = Words("```", "py\n", *[f"x{i}\n" for i in range(10)])
    fence = Opening("fence", 0, 1)
    assert code.tail(6, fence) == b"```py\nx6\nx7\nx8\nx9\n"
    assert code.tail(11, fence) == b"```py\n" + b"".join(b"x%d\n" % i for i in range(1, 10))
    assert code.tail(12, fence) == b"".join(code.pieces)
    assert code.tail(3, fence) == b"x7\nx8\nx9\n"  # two ids are more than half of three


def test_inside_code_a_line_not_a_sentence() -> None:
    code = Words("```", "\n", "a", ". B", "\n", "c", " d", "\n", "e", "\n", "f")
    assert code.tail(10, Opening("fence", 0, 1)) == b"```\nc d\ne\nf"


def test_nested_openings_outermost_first_each_line_once() -> None:
    text = Words("<think>", "\n", "- a", "\n", *[f"- {i}\n" for i in range(9)])
    openings = Opening("think", 0, 0), Opening("list", 2, 3)
    assert text.tail(7, *openings) == b"<think>- a\n" + b"- 5\n- 6\n- 7\n- 8\n"
    assert text.tail(8, Opening("list", 2, 3), Opening("quote", 2, 3)) == b"- a\n- 3\n- 4\n- 5\n- 6\n- 7\n- 8\n"


def test_an_opening_line_that_is_too_long_is_left_out_and_others_stay() -> None:
    text = Words("- a", " b", " c", " d", "\n", "```", "\n", *[f"{i}\n" for i in range(9)])
    assert text.tail(6, Opening("list", 0, 4), Opening("fence", 5, 6)) == b"```\n5\n6\n7\n8\n"


PIECE = st.sampled_from(["a", " B", ". ", "\n", ".\n", " c.", "é", "🙂", "```\n", "- "])


@st.composite
def answers(draw: st.DrawFn) -> tuple[list[bytes], list[Opening]]:
    text = "".join(draw(st.lists(PIECE, max_size=60))).encode()
    pieces = []
    while text:
        size = draw(st.integers(1, 3))
        pieces.append(text[:size])
        text = text[size:]
    edges = sorted(draw(st.sets(st.integers(0, max(0, len(pieces) - 1)), max_size=4))) if pieces else []
    kinds = st.sampled_from(["fence", "list", "quote", "think"])
    return pieces, [Opening(draw(kinds), first, last) for first, last in zip(edges[::2], edges[1::2])]


@given(answer=answers(), limit=st.integers(1, 40))
def test_rules_that_always_hold(answer: tuple[list[bytes], list[Opening]], limit: int) -> None:
    pieces, openings = answer
    ids = range(len(pieces))
    chosen = choose_tail(ids, pieces.__getitem__, limit, openings)
    assert len(chosen) <= limit
    assert list(chosen) == sorted(set(chosen))  # in order, nothing twice
    rest = len(chosen)
    while rest > 0 and chosen[rest - 1] == len(pieces) - 1 - (len(chosen) - rest):
        rest -= 1
    lead, tail = chosen[:rest], chosen[rest:]
    assert {i for o in openings for i in range(o.first, o.last + 1)} >= set(lead)
    if tail and tail[0] > 0 and tail[0] not in {o.first for o in openings}:
        assert not 0x80 <= pieces[tail[0]][0] < 0xC0
    begin = len(pieces) - len(tail)
    small = sum(o.last + 1 - o.first for o in openings) <= limit // 2
    if small:
        assert all(o.first in chosen for o in openings if o.first < begin)
