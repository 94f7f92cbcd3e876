"""The ending rules, against definitions that look at the whole text at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ghostkv.errors import InvalidRequest
from ghostkv.protocol.rules import EndOfSequence, FixedBoundary, StopStrings, next_segment, openings
from ghostkv.protocol.segmenter import SegmentBoundary
from ghostkv.request import CONTINUE, Boundary, FinishReason, Rule, Stop

STOPS = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3)
PIECES = st.lists(st.text("abx", max_size=3), max_size=12)


def first_match(pieces: list[str], stops: list[str], min_tokens: int) -> int | None:
    """Where the output ends by definition: read character by character, the longest stop that is complete first."""
    text = "".join(pieces)
    token_of = [number for number, piece in enumerate(pieces, 1) for _ in piece]  # of each character, from 1
    for end in range(1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts and token_of[end - 1] >= min_tokens:
            return min(starts)
    return None


def longest_beginning(text: str, stops: list[str]) -> int:
    """Length of the longest end of `text` that is a proper beginning of a stop."""
    return max((n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n])), default=0)


@given(pieces=PIECES, stops=STOPS, min_tokens=st.integers(0, 8))
def test_stop_strings_equal_the_definition_for_every_split(
    pieces: list[str], stops: list[str], min_tokens: int
) -> None:
    rule: Rule = StopStrings.of(stops, min_tokens)
    end = first_match(pieces, stops, min_tokens)
    text, shown = "", 0
    for piece in pieces:
        text += piece
        rule, verdict = rule.feed(7, piece)
        if isinstance(verdict, Stop):
            assert verdict.reason is FinishReason.STOP
            assert len(text) - verdict.drop == end
            assert shown <= end  # nothing that is dropped had been given out
            return
        assert rule.held == longest_beginning(text, stops)
        shown = len(text) - rule.held
    assert end is None


@pytest.mark.parametrize(
    ("pieces", "stops", "shown"),
    [
        ([*"ABCDEFGH"], ["DEFG"], "ABC"),
        ([*"ABCDEFGH"], ["DEFX"], "ABCDEFGH"),  # a near miss is released
        (["ABCDE", "FGH and more"], ["DEFG"], "ABC"),  # text after the match, in the same piece
        (["xabc"], ["abc", "b"], "xa"),  # complete first
        (["xab"], ["b", "ab"], "x"),  # complete together: the longest
        (["aab"], ["ab"], "a"),  # a false start directly before
        (["one", "\n", "\n", "two"], ["\n\n"], "one"),
        (["🙂", "é", "!"], ["é!"], "🙂"),
    ],
)
def test_stop_string_examples(pieces: list[str], stops: list[str], shown: str) -> None:
    rule: Rule = StopStrings.of(stops)
    text = ""
    for piece in pieces:
        text += piece
        rule, verdict = rule.feed(0, piece)
        if isinstance(verdict, Stop):
            text = text[: len(text) - verdict.drop]
            break
    assert text == shown


def test_a_match_before_min_tokens_is_text_and_does_not_come_back() -> None:
    rule: Rule = StopStrings.of(["a", "ab"], min_tokens=3)
    verdicts = []
    for piece in ["a", "x", "y", "a"]:
        rule, verdict = rule.feed(0, piece)
        verdicts.append(verdict)
    assert verdicts == [CONTINUE, CONTINUE, CONTINUE, Stop(FinishReason.STOP, drop=1)]


def test_min_tokens_allows_a_match_that_began_before() -> None:
    rule: Rule = StopStrings.of(["abc"], min_tokens=2)
    rule, verdict = rule.feed(0, "ab")
    assert (verdict, rule.held) == (CONTINUE, 2)
    assert rule.feed(0, "cd")[1] == Stop(FinishReason.STOP, drop=4)


def test_an_empty_stop_string_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest) as refused:
        StopStrings.of(["end", ""])
    assert refused.value.param == "stop"


def test_a_rule_is_a_value() -> None:
    rule = StopStrings.of(["abc"])
    first, _ = rule.feed(0, "ab")
    assert rule == StopStrings.of(["abc"])
    assert first == rule.feed(0, "ab")[0] != rule


def test_end_of_sequence_drops_its_own_text_only() -> None:
    rule = EndOfSequence(frozenset({2, 5}))
    assert rule.feed(3, "word") == (rule, CONTINUE)
    assert rule.feed(5, " stop") == (rule, Stop(FinishReason.STOP, drop=5))
    assert rule.feed(2, "") == (rule, Stop(FinishReason.STOP, drop=0))
    assert rule.held == 0


def test_fixed_boundaries() -> None:
    rule: Rule = FixedBoundary(3)
    verdicts = []
    for _ in range(7):
        rule, verdict = rule.feed(0, "x")
        verdicts.append(verdict)
    fixed = Boundary("fixed")
    assert verdicts == [CONTINUE, CONTINUE, fixed, CONTINUE, CONTINUE, fixed, CONTINUE]


def test_only_boundary_rules_begin_the_next_segment() -> None:
    stop, _ = StopStrings.of(["abc"], min_tokens=9).feed(0, "ab")
    fixed, _ = FixedBoundary(3).feed(0, "x")
    semantic: Rule = SegmentBoundary(5, 9)
    for piece in ["```py\n", "x = 1"]:
        semantic, _ = semantic.feed(0, piece)
    restarted = next_segment((stop, fixed, semantic))
    assert restarted[:2] == (stop, FixedBoundary(3))
    assert isinstance(restarted[2], SegmentBoundary) and isinstance(semantic, SegmentBoundary)
    assert (restarted[2].generated, restarted[2].structure) == (0, semantic.structure)
    assert [(opening.kind, opening.first, opening.last) for opening in openings(restarted)] == [("fence", 0, 0)]
