"""The semantic boundary rule: never inside what must stay whole, always at the natural end that was promised."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ghostkv.protocol.segmenter import SegmentBoundary
from ghostkv.request import Boundary, Rule

NEVER = 10**9
WORDS = ("The", "storm", "rose", "over", "habitat", "she", "said", "www", "http", "half", "Äther", "e.g.", "No")
NUMBERS = ("42", "21.4", "1,250,000.75", "-17", "3/4", "2031-05-17", "14:05", "99%", "€12.50", "v2.3", "1e5")
URLS = ("https://example.org/a.b?c=1&d=2", "http://x.io", "(https://a.b/c)", "www.site.net/page.html", "ftp://h/f.")

word = st.sampled_from(WORDS)
atom = st.one_of(word, word, word, st.sampled_from(NUMBERS), st.sampled_from(URLS))
clause = st.lists(atom, min_size=1, max_size=9).map(" ".join)
sentence = st.tuples(clause, st.sampled_from((".", "!", "?", '."', "…", ":"))).map("".join)
prose = st.lists(sentence, min_size=1, max_size=4).map(" ".join)
code = st.sampled_from(
    ("x = 1. And 2", "    return a | b", "# Done. Next.", "- not a list", "> not a quote", "", "| no |")
)


@dataclass(frozen=True)
class Block:
    """A piece of Markdown, and whether it may be cut only between its lines."""

    text: str
    lines_only: bool


def lines_block(lines: st.SearchStrategy[str], opening: str = "", closing: str = "") -> st.SearchStrategy[Block]:
    body = st.lists(lines, min_size=1, max_size=5)
    return body.map(lambda parts: Block("\n".join([opening, *parts, closing]).strip("\n") + "\n", lines_only=True))


blocks = st.one_of(
    prose.map(lambda text: Block(text + "\n", lines_only=False)),
    lines_block(code, "```python", "```"),
    lines_block(code, "~~~~", "~~~~"),
    lines_block(prose.map("- {}".format)),
    lines_block(prose.map("12. {}".format)),
    lines_block(prose.map("> {}".format)),
    lines_block(prose, "<think>", "</think>"),
    lines_block(st.lists(clause, min_size=1, max_size=4).map(lambda cells: "| " + " | ".join(cells) + " |")),
    lines_block(st.lists(clause, min_size=2, max_size=4).map(" | ".join), "| Name", ""),
)
documents = st.lists(blocks, min_size=1, max_size=6)


def pieces_of(text: str, sizes: list[int]) -> list[str]:
    """`text` cut into pieces of the given sizes, over and over; size 0 is a token that completes no character."""
    pieces, at, i = [], 0, 0
    while at < len(text):
        size = sizes[i % len(sizes)]
        pieces.append(text[at : at + size])
        at, i = at + size, i + 1
    return pieces


def word_pieces(text: str) -> list[str]:
    """Pieces as byte-level tokenizers make them: a space belongs to the word after it, digits are single."""
    return re.findall(r" ?[^\W\d]{1,6}|\d| ?[^\s\w]+|\n+|\s", text)


def cuts(pieces: list[str], rule: Rule) -> list[tuple[int, str]]:
    """(characters before the boundary, its kind) of every boundary."""
    found, at = [], 0
    for piece in pieces:
        at += len(piece)
        rule, verdict = rule.feed(0, piece)
        if isinstance(verdict, Boundary):
            found.append((at, verdict.kind))
    return found


def check_cut(text: str, parts: list[Block], at: int) -> None:
    for match in re.finditer(r"\d+(?:[.,:/-]\d+)*%?|(?:https?|ftp)://[^\s|]+|www\.[^\s|]+", text):
        assert not match.start() < at < match.end(), f"cut inside {match[0]!r}"
    begin = 0
    for part in parts:
        end = begin + len(part.text)
        if part.lines_only and begin < at < end:
            assert text[:at].rstrip(" \t").endswith("\n"), f"cut inside a line: {text[max(0, at - 30) : at]!r}"
        begin = end + 1  # the blank line between blocks


sizes = st.lists(st.integers(0, 7), min_size=1, max_size=9).filter(any)


@given(parts=documents, sizes=sizes, target=st.integers(1, 30), room=st.integers(1, 60))
@example([Block("See https://a.b/c. Then\n", lines_only=False)], [1], 1, 90)
def test_never_inside_for_any_pieces(parts: list[Block], sizes: list[int], target: int, room: int) -> None:
    text = "\n".join(part.text for part in parts)
    for at, _ in cuts(pieces_of(text, sizes), SegmentBoundary(target, target + room)):
        check_cut(text, parts, at)


@given(parts=documents, target=st.integers(1, 60))
def test_never_inside_for_words(parts: list[Block], target: int) -> None:
    text = "\n".join(part.text for part in parts)
    for at, _ in cuts(word_pieces(text), SegmentBoundary(target, target + 42)):
        check_cut(text, parts, at)


def kinds_and_texts(pieces: list[str], rule: Rule) -> list[tuple[str, str]]:
    text, before, found = "".join(pieces), 0, []
    for at, kind in cuts(pieces, rule):
        found.append((kind, text[before:at]))
        before = at
    return [*found, ("end", text[before:])]


def test_a_sentence_ends_with_the_token_after_it() -> None:
    pieces = word_pieces("It was cold. Dr. Reed paid 4.5 dollars. Then she left")
    assert kinds_and_texts(pieces, SegmentBoundary(2, NEVER)) == [
        ("sentence", "It was cold. Dr"),
        ("sentence", ". Reed paid 4.5 dollars. Then"),
        ("end", " she left"),
    ]


def test_the_first_end_at_or_after_the_target() -> None:
    pieces = ["One", ".", " Two", ".", " Three", ".", " Four"]
    first = {target: cuts(pieces, SegmentBoundary(target, NEVER))[:1] for target in range(1, 8)}
    after_two, after_three, after_four = [(8, "sentence")], [(15, "sentence")], [(20 + 1, "sentence")]
    assert first == {
        1: after_two,
        2: after_two,
        3: after_two,
        4: after_three,
        5: after_three,
        6: after_four,
        7: after_four,
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "A title\n\nIt ran.\nMore text\n",
            [("paragraph", "A title\n\n"), ("paragraph", "It ran.\n"), ("end", "More text\n")],
        ),
        ("- one. Two\n- three\n", [("item", "- one. Two\n"), ("item", "- three\n"), ("end", "")]),
        ("> a. B\n> c\n", [("line", "> a. B\n"), ("line", "> c\n"), ("end", "")]),
        ("| a | b |\n| c. D |\n", [("line", "| a | b |\n"), ("line", "| c. D |\n"), ("end", "")]),
        ("```\nx. Y\n```\nz\n", [("line", "```\nx. Y\n"), ("line", "```\n"), ("end", "z\n")]),
        ("## One. Two\nthree\n", [("end", "## One. Two\nthree\n")]),
        ("<think>\na. B c\nYes.\n</think>\n", [("paragraph", "<think>\na. B c\nYes.\n"), ("end", "</think>\n")]),
        (
            "<tool_call>\n\na. B\n</tool_call>\n\nC",
            [("paragraph", "<tool_call>\n\na. B\n</tool_call>\n\n"), ("end", "C")],
        ),
        ("終わった。次の文", [("sentence", "終わった。"), ("end", "次の文")]),
        ("cf. the end of it", [("end", "cf. the end of it")]),
        ("at home. then", [("end", "at home. then")]),
        ("Sol 42. Then 7", [("sentence", "Sol 42. Then"), ("end", " 7")]),
    ],
)
def test_kinds_of_ends(text: str, expected: list[tuple[str, str]]) -> None:
    assert kinds_and_texts(word_pieces(text), SegmentBoundary(1, NEVER)) == expected


def test_in_the_last_third_before_the_cap_a_word_end_will_do() -> None:
    pieces = [" word"] * 40
    assert cuts(pieces, SegmentBoundary(10, 22))[0] == (18 * 5, "word")
    assert cuts(pieces, SegmentBoundary(10, NEVER)) == []


def test_before_the_cap_numbers_and_units_stay_whole() -> None:
    pieces = [*[" word"] * 16, " ", "6", "8", ".", "2", " k", "Pa", " in", " the"]
    whole = len("".join(pieces[:24]))
    first = [cuts(pieces, SegmentBoundary(target, target + 15))[0] for target in (6, 7, 8, 12)]
    assert first == [
        (80, "word"),
        (81, "word"),
        (whole, "word"),
        (whole, "word"),
    ]  # 81: between the space and the number


def test_a_row_that_would_reach_over_the_cap_is_left_to_the_next_segment() -> None:
    row = ["|", *[" cell", " |"] * 20, "\n"]  # 42 tokens
    starts = [at for at, _ in cuts(row * 6, SegmentBoundary(100, 120))]
    length = len("".join(row))
    assert starts == [2 * length, 4 * length, 6 * length]
    # Nothing helps a row longer than the cap, so nothing is cut early for it.
    assert cuts(row * 2, SegmentBoundary(40, 41)) == [(length, "line"), (2 * length, "line")]
    assert cuts(["ab", "\n", *row], SegmentBoundary(NEVER, 41)) == []


def test_under_ignore_eos_an_end_of_sequence_counts_but_is_no_text() -> None:
    rule: Rule = SegmentBoundary(4, NEVER, ignored=frozenset({2}))
    for token_id, piece in [(0, "`"), (2, ""), (0, "``\n"), (2, "")]:
        rule, verdict = rule.feed(token_id, piece)
        assert not isinstance(verdict, Boundary)
    assert isinstance(rule, SegmentBoundary)
    assert rule.generated == 4
    assert [(opening.first, opening.last) for opening in rule.openings] == [(0, 1)]


@pytest.mark.parametrize(
    ("pieces", "open_lines"),
    [
        (["Text", ".\n", "```", "py", "\n", "x"], [("fence", 2, 4)]),
        (["```", "py\n", "x\n", "```", "\n", "y"], []),
        (["````\n", "```\n", "x"], [("fence", 0, 0)]),
        (["~~~\n", "```\n", "x"], [("fence", 0, 0)]),
        (["```", "inline", "```", "\n", "x"], []),
        (["Steps", ":\n", "1", ".", " Go", "\n", "2", ". Stop"], [("list", 2, 5)]),
        (["- a\n", "\n", "- b\n", "\n", "  more\n"], [("list", 0, 0)]),
        (["- a\n", "\n", "Prose", ".\n"], []),
        (["- a\n", "```\n", "x\n"], [("list", 0, 0), ("fence", 1, 1)]),
        ([">", " a", "\n", "> b"], [("quote", 0, 2)]),
        (["> a\n", "b\n"], []),
        (["<", "think", ">", "\n", "Hm", ".\n"], [("think", 0, 2)]),
        (["<think>\n", "- a\n"], [("think", 0, 0), ("list", 1, 1)]),
        (["<think>", "x", "</", "think>", " y"], []),
        (["```\n", "<think>\n"], [("fence", 0, 0)]),
        (["a", "", "\n```", "\n", "b"], [("fence", 2, 3)]),
    ],
)
def test_open_structures_and_their_lines(pieces: list[str], open_lines: list[tuple[str, int, int]]) -> None:
    rule: Rule = SegmentBoundary(NEVER, NEVER)
    for piece in pieces:
        rule, _ = rule.feed(0, piece)
    assert isinstance(rule, SegmentBoundary)
    assert [(opening.kind, opening.first, opening.last) for opening in rule.openings] == open_lines


@given(parts=documents, sizes=sizes)
def test_open_structures_do_not_depend_on_the_pieces(parts: list[Block], sizes: list[int]) -> None:
    text = "\n".join(part.text for part in parts)
    by_size: Rule = SegmentBoundary(NEVER, NEVER)
    for piece in pieces_of(text, sizes):
        by_size, _ = by_size.feed(0, piece)
    by_character: Rule = SegmentBoundary(NEVER, NEVER)
    for piece in text:
        by_character, _ = by_character.feed(0, piece)
    assert isinstance(by_size, SegmentBoundary) and isinstance(by_character, SegmentBoundary)
    assert [o.kind for o in by_size.openings] == [o.kind for o in by_character.openings]
    assert by_size.structure.lines.tool == by_character.structure.lines.tool


def test_prose_gets_a_boundary_soon_after_the_target() -> None:
    pieces = word_pieces("The storm rose over the ridge and nobody spoke. " * 60)
    ends = [at for at, _ in cuts(pieces, SegmentBoundary(50, 92))]
    lengths = [len(word_pieces("".join(pieces)[a:b])) for a, b in zip([0, *ends], ends)]
    assert len(lengths) >= 10
    assert all(50 <= length <= 61 for length in lengths)
