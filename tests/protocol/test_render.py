"""Assembly by the claim order, written out. The template costs one id for each message's role and one for each word."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ghostkv.errors import InvalidRequest
from ghostkv.protocol.facts import Position
from ghostkv.protocol.render import Assembled, Completion, Conversation, notes
from ghostkv.protocol.state import NO_BLOCK, Block, Line
from ghostkv.request import Message

ROLES = {"system": 1, "developer": 2, "user": 3, "assistant": 4, "tool": 5}
ANSWER = 9  # the generation prompt


def word_id(word: str) -> int:
    return int.from_bytes(word.encode()) + 1000


def encode(text: str) -> list[int]:
    return [word_id(word) for word in text.split()]


def template(messages: Sequence[Message]) -> list[int]:
    ids = [part for m in messages for part in (ROLES[m.role], *encode(m.content))]
    return [*ids, ANSWER]


def talk(*lines: str) -> tuple[Message, ...]:
    """`talk("user: hello you")`."""
    return tuple(Message(role, content) for role, _, content in (line.partition(": ") for line in lines))


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


def assembled(
    messages: Sequence[Message],
    allowance: int | None,
    lines: Sequence[str] = (),
    tail: Sequence[int] = TAIL,
) -> Assembled:
    prompting = Conversation.of(messages, template, facts)
    return prompting.compose(prompting.select(allowance, len(tail)), block(*lines), tail)


def facts(question: str, lines: Sequence[str], *, begun: bool) -> str:
    return f"{question}\n\nKnown facts: {' '.join(lines)}"


def block(*lines: str) -> Block:
    return Block(tuple(Line(line, Position(0, 0, 0), len(line.split()), fact=True) for line in lines))


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
    expected = Assembled(ids_of(SYSTEM, *kept, QUESTION, tail=TAIL), NO_BLOCK, tail=2, lines=0, dropped=dropped)
    assert assembled(TALK, allowance) == expected


def test_a_selection_says_what_is_visible_and_what_is_left() -> None:
    selection = Conversation.of(TALK, template).select(HEAD + 2 + SECOND + 3, 2)
    assert selection.visible == {0, 3, 4, 5, 6, 7}
    assert selection.free == 2 + 3  # the tail's room included


@pytest.mark.parametrize(
    ("room", "kept"),
    [
        (5, ("next", "best best")),
        (4, ("best best",)),  # the least useful line stands first and goes first
        (3, ()),
        (0, ()),
    ],
)
def test_lines_at_the_end_of_the_question_within_the_room(room: int, kept: tuple[str, ...]) -> None:
    found = assembled(talk(SYSTEM, QUESTION), HEAD + 2 + room, ("next", "best best"))
    note = f" Known facts: {' '.join(kept)}" if kept else ""
    ids = ids_of(SYSTEM, QUESTION + note, tail=TAIL)
    assert found == Assembled(ids, block(*kept), tail=2, lines=len(note.split()), dropped=0)


def test_exchanges_come_before_lines() -> None:
    found = assembled(TALK, HEAD + 2 + SECOND + 3, ("s1 s2", "r"))
    ids = ids_of(SYSTEM, *NEW, "user: q3 q3 Known facts: r", tail=TAIL)
    assert found == Assembled(ids, block("r"), tail=2, lines=3, dropped=FIRST)


def test_lines_stand_after_a_blank_line() -> None:
    seen: list[str] = []

    def watching(messages: Sequence[Message]) -> list[int]:
        seen.append(messages[-1].content)
        return template(messages)

    prompting = Conversation.of(talk(QUESTION), watching, facts)
    prompting.compose(prompting.select(None), block("One is one.", "Two is two."))
    assert seen[-1] == "q3 q3\n\nKnown facts: One is one. Two is two."


@pytest.mark.parametrize(
    ("begun", "content"),
    [
        (False, 'Notes from earlier in this conversation: "One is one." "Two is two."\n\nHow many?'),
        (True, 'How many?\n\nNotes from earlier in this conversation: "One is one." "Two is two."'),
    ],
)
def test_the_form_of_the_notes(begun: bool, content: str) -> None:
    assert notes("How many?", ("One is one.", "Two is two."), begun=begun) == content


def test_an_open_answer_has_its_lines_after_the_question() -> None:
    seen: list[bool] = []

    def watching(question: str, lines: Sequence[str], *, begun: bool) -> str:
        seen.append(begun)
        return question

    prompting = Conversation.of(talk(QUESTION), template, watching)
    prompting.compose(prompting.select(None), block("One."))
    prompting.compose(prompting.select(None), block("One."), TAIL)
    assert seen == [False, True]


def test_lines_are_never_part_of_a_system_message() -> None:
    found = assembled(talk(QUESTION, SYSTEM), None, ("fact",))  # the system message comes last here
    assert found.ids == ids_of("user: q3 q3 Known facts: fact", SYSTEM, tail=TAIL)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("user: q",), ("user: q",)),
        (
            ("user: q1", "system: s", "assistant: a", "user: q2", "developer: d"),
            ("system: s", "user: q2", "developer: d"),
        ),
        (("user: q", "assistant: call", "tool: r"), ("user: q", "assistant: call", "tool: r")),
        (("assistant: call", "tool: r"), ("assistant: call", "tool: r")),
        (("user: q1", "tool: r", "assistant: a", "user: q2"), ("user: q2",)),
        (("user: q1", "assistant: a1", "user: q2", "assistant: begun"), ("user: q2", "assistant: begun")),
        (("system: s", "assistant: hello"), ("system: s", "assistant: hello")),
    ],
)
def test_the_head(lines: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert Conversation.of(talk(*lines), template).head == talk(*expected)


def test_a_question_is_never_parted_from_its_answer() -> None:
    lines = ("assistant: hi", "user: q1", "user: q1 more", "assistant: a1", "user: q2", "assistant: call", "tool: r")
    kept = set()
    for allowance in range(30):
        ids = assembled(talk(*lines), allowance, tail=()).ids
        kept.add(next(n for n in range(len(lines)) if ids == ids_of(*lines[n:])))
    assert kept == {0, 1, 4}  # greeting; first exchange; question, call and result of the last


def test_rounds_of_calls_go_oldest_first_and_results_never_without_their_calls() -> None:
    first, second, third = (
        ("assistant: call 1", "tool: r1", "tool: r1b"),
        ("assistant: call 2", "tool: r2"),
        ("assistant: call 3", "tool: r3"),
    )
    old = ("user: q0", "assistant: a0")
    lines = (SYSTEM, *old, QUESTION, *first, *second, *third, "assistant: begun")
    kept = []
    for allowance in range(60):
        prompting = Conversation.of(talk(*lines), template)
        ids = prompting.compose(prompting.select(allowance)).ids
        kept.append(ids)
    latest = (*third, "assistant: begun")
    expected = [
        ids_of(SYSTEM, QUESTION, *latest),
        ids_of(SYSTEM, QUESTION, *second, *latest),
        ids_of(SYSTEM, QUESTION, *first, *second, *latest),
        ids_of(*lines),
    ]
    assert list(dict.fromkeys(kept)) == expected
    for allowance, ids in enumerate(kept):
        assert ids == max((each for each in expected if len(each) <= allowance), key=len, default=expected[0])


def test_the_lines_of_a_question_whose_tools_were_called_stand_in_the_question() -> None:
    found = assembled(talk(QUESTION, "assistant: call", "tool: r"), None, ("fact",), tail=())
    assert found.ids == ids_of("user: q3 q3 Known facts: fact", "assistant: call", "tool: r")


def test_no_messages() -> None:
    with pytest.raises(InvalidRequest) as refused:
        Conversation.of((), template)
    assert refused.value.param == "messages"


@pytest.mark.parametrize(("allowance", "lines"), [(None, 3), (8, 3), (7, 0)])
def test_a_completion_stays_whole_and_has_its_lines_before_the_tail(allowance: int | None, lines: int) -> None:
    prompting = Completion((5, 6, 7), encode, facts)
    found = prompting.compose(prompting.select(allowance, 2), block("fact"), TAIL)
    note = encode("Known facts: fact") if lines else []
    shown = block("fact") if lines else NO_BLOCK
    assert found == Assembled((5, 6, 7, *note, *TAIL), shown, tail=2, lines=lines, dropped=0)
