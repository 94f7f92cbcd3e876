"""How a conversation divides, by what must hold for any sequence of roles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ghostkv.errors import InvalidRequest
from ghostkv.protocol.exchanges import Exchanges
from ghostkv.request import Message

ROLES = {"s": "system", "d": "developer", "u": "user", "a": "assistant", "t": "tool"}


def exchanges(roles: str) -> Exchanges:
    return Exchanges.of([Message(ROLES[letter], "") for letter in roles])


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        ("u", Exchanges(0, 0, ())),
        ("suaua", Exchanges(3, 3, ((1, 2),))),
        ("uat", Exchanges(0, 1, ())),
        ("uatta", Exchanges(0, 1, ())),  # an answer begun after two results of one round
        ("uatat", Exchanges(0, 3, ((1, 2),))),
        ("uaatat", Exchanges(0, 4, ((1, 2, 3),))),
        ("uauatttatat", Exchanges(2, 9, ((0, 1), (3, 4, 5, 6), (7, 8)))),
        ("uatu", Exchanges(3, 3, ((0, 1, 2),))),
        ("auuau", Exchanges(4, 4, ((0,), (1, 2, 3)))),  # a greeting belongs to no question
        ("uastdt", Exchanges(0, 1, ())),  # system messages part nothing
        ("ut", Exchanges(0, 1, ())),
        ("at", Exchanges(1, 0, ())),
        ("atat", Exchanges(3, 2, ((0, 1),))),
        ("sa", Exchanges(1, 1, ())),
    ],
)
def test_cases(roles: str, expected: Exchanges) -> None:
    assert exchanges(roles) == expected


@given(st.text("sduat", min_size=1, max_size=14))
def test_every_message_has_one_place_and_no_result_is_parted_from_its_call(roles: str) -> None:
    found = exchanges(roles)
    head = {found.asking} | set(range(found.latest, len(roles)))
    units = [set(unit) for unit in found.earlier]
    places = [head, *units]
    spoken = {i for i, role in enumerate(roles) if role in "uat"}
    for i in spoken:
        assert sum(i in place for place in places) == 1
    assert set().union(*units) <= spoken
    assert "u" not in roles or roles[found.asking] == "u"
    for i in spoken:
        earlier = [j for j in spoken if j < i]
        if roles[i] == "t" and earlier and roles[max(earlier)] in "at":
            assert any({i, max(earlier)} <= place for place in places)
    assert [min(unit) for unit in units] == sorted(min(unit) for unit in units)


def test_no_messages() -> None:
    with pytest.raises(InvalidRequest):
        Exchanges.of(())
