"""Memories of earlier messages: equal on a warm and on a fresh server, apart by tenant, forked by an edit."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from ghostkv.protocol.transition import Memory, read_message
from ghostkv.request import Message
from ghostkv.session.histories import Histories

BUDGET = 4096
MESSAGES = st.lists(
    st.builds(
        Message,
        st.sampled_from(("user", "assistant")),
        st.sampled_from(("The code of Eos is AX-1.", "It is now AX-2. Thanks!", "Who leads Eos?")),
    ),
    max_size=4,
)


def read(messages: Sequence[Message]) -> Memory:
    """The reference: everything, from nothing."""
    memory = Memory()
    for i, message in enumerate(messages):
        memory = read_message(memory, i, message.role, message.content, BUDGET)
    return memory


@given(st.lists(MESSAGES, min_size=1, max_size=6))
def test_a_warm_server_knows_what_a_fresh_one_would(conversations: list[list[Message]]) -> None:
    warm = Histories(kept=5)
    for messages in conversations:
        assert warm.memory(messages, "a", BUDGET) == read(messages)


def test_only_what_is_new_is_read() -> None:
    histories = Histories()
    talk = [Message("user", "The code of Eos is AX-1."), Message("assistant", "Noted."), Message("user", "Which code?")]
    first = histories.memory(talk[:2], "a", BUDGET)
    grown = histories.memory(talk, "a", BUDGET)
    assert histories.memory(talk[:2], "a", BUDGET) is first
    assert grown.index.sentences[0] is first.index.sentences[0]
    assert histories.memory(talk, "b", BUDGET) is not grown  # another tenant shares nothing
    assert histories.memory(talk, "a", 2048) is not grown


def test_an_edit_forks() -> None:
    histories = Histories()
    turns = [Message("user", f"Unit {i} has code AX-{i}.") for i in range(6)]
    histories.memory(turns, "a", BUDGET)
    edited = [*turns[:2], Message("user", "Unit 2 has code BX-2."), *turns[3:]]
    assert histories.memory(edited, "a", BUDGET) == read(edited)
    assert histories.memory(turns, "a", BUDGET) == read(turns)


def test_role_and_content_do_not_run_together() -> None:
    histories = Histories()
    one = histories.memory([Message("user", "xab")], "a", BUDGET)
    assert histories.memory([Message("userx", "ab")], "a", BUDGET) is not one
