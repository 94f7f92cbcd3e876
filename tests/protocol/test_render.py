"""Assembly by the claim order, written out. The template costs one id for each message's role and one for each word."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ghostkv.errors import InvalidRequest
from ghostkv.protocol.render import Assembled, head, render, render_completion
from ghostkv.request import Message

ROLES = {"system": 1, "developer": 2, "user": 3, "assistant": 4, "tool": 5}
ANSWER = 9  # the generation prompt


def word_id(word: str) -> int:
    return int.from_bytes(word.encode()) + 1000


def template(messages: Sequence[Message]) -> list[int]:
    ids = [part for m in messages for part in (ROLES[m.role], *map(word_id, m.content.split()))]
    return [*ids, ANSWER]


def talk(*lines: str) -> tuple[Message, ...]:
    """`talk("user: hello you")`."""
    return tuple(Message(*line.split(": ", 1)) for line in lines)


TALK = talk(
    "system: be brief",  # 3 ids
    "user: q1 q1",  # exchange 1: 3 + 2
    "assistant: a1",
    "user: q2",  # exchange 2: 2 + 3 + 2 + 2
    "assistant: call c2",
    "tool: r2",
    "assistant: a2",
    "user: q3 q3",  # 3
)
HEAD = 3 + 3 + 1
SECOND = 9
FIRST = 5
TAIL = (71, 72)


def ids_of(*lines: str, tail: tuple[int, ...] = ()) -> tuple[int, ...]:
    return (*template(talk(*lines)), *tail)


SYSTEM, QUESTION = "system: be brief", "user: q3 q3"
OLD = ("user: q1 q1", "assistant: a1")
NEW = ("user: q2", "assistant: call c2", "tool: r2", "assistant: a2")


@pytest.mark.parametrize(
    ("allowance", "kept", "dropped"),
    [
        (None, (*OLD, *NEW), 0),
        (HEAD + 2 + SECOND + FIRST, (*OLD, *NEW), 0),
        (HEAD + 2 + SECOND + FIRST - 1, NEW, FIRST),
        (HEAD + 2 + SECOND, NEW, FIRST),
        (HEAD + 2 + SECOND - 1, (), SECOND + FIRST),  # the older one would fit, but never before a newer one
        (HEAD + 2, (), SECOND + FIRST),
        (1, (), SECOND + FIRST),  # head and tail are always whole
    ],
)
def test_earlier_exchanges_newest_first(allowance: int | None, kept: tuple[str, ...], dropped: int) -> None:
    assembled = render(TALK, template, tail=TAIL, allowance=allowance)
    assert assembled == Assembled(ids_of(SYSTEM, *kept, QUESTION, tail=TAIL), carried=2, dropped=dropped)


@pytest.mark.parametrize(
    ("room", "question"),
    [
        (4, "user: q3 q3 state state best next"),
        (3, "user: q3 q3 state state best"),
        (2, "user: q3 q3 state state"),
        (1, "user: q3 q3 best"),  # a claim that does not fit leaves its room to the next
        (0, "user: q3 q3"),
    ],
)
def test_state_before_recalled_sentences_at_the_end_of_the_question(room: int, question: str) -> None:
    short = talk(SYSTEM, QUESTION)
    assembled = render(
        short, template, tail=TAIL, allowance=HEAD + 2 + room, state="state state", recalled=("best", "next")
    )
    added = len(question.split()) - len(QUESTION.split())
    assert assembled == Assembled(ids_of(SYSTEM, question, tail=TAIL), carried=2 + added, dropped=0)


def test_exchanges_come_before_state() -> None:
    assembled = render(TALK, template, tail=TAIL, allowance=HEAD + 2 + SECOND + 1, state="s1 s2", recalled=("r",))
    assert assembled == Assembled(ids_of(SYSTEM, *NEW, "user: q3 q3 r", tail=TAIL), carried=3, dropped=FIRST)


def test_notes_stand_after_a_blank_line() -> None:
    seen: list[str] = []

    def watching(messages: Sequence[Message]) -> list[int]:
        seen.append(messages[-1].content)
        return template(messages)

    render(talk(QUESTION), watching, state="state", recalled=("one",))
    assert seen[-1] == "q3 q3\n\nstate\n\none"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("user: q",), ("user: q",)),
        (
            ("user: q1", "system: s", "assistant: a", "user: q2", "developer: d"),
            ("system: s", "user: q2", "developer: d"),
        ),
        (("user: q", "assistant: call", "tool: r"), ("tool: r",)),
        (("user: q1", "assistant: a1", "user: q2", "assistant: begun"), ("user: q2", "assistant: begun")),
        (("system: s", "assistant: hello"), ("system: s", "assistant: hello")),
    ],
)
def test_the_head(lines: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert head(talk(*lines)) == talk(*expected)


def test_a_question_is_never_parted_from_its_answer() -> None:
    lines = ("assistant: hi", "user: q1", "user: q1 more", "assistant: a1", "user: q2", "assistant: call", "tool: r")
    kept = set()
    for allowance in range(30):
        ids = render(talk(*lines), template, allowance=allowance).ids
        kept.add(next(n for n in range(len(lines)) if ids == ids_of(*lines[n:])))
    assert kept == {0, 1, 4, 6}  # greeting; first exchange; question and call of the last result; the result alone


def test_no_messages() -> None:
    with pytest.raises(InvalidRequest) as refused:
        render((), template)
    assert refused.value.param == "messages"


def test_a_completion_stays_whole() -> None:
    assert render_completion((5, 6, 7), tail=TAIL) == Assembled((5, 6, 7, *TAIL), carried=2, dropped=0)
