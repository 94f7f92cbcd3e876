"""Dates against dateutil, over the forms that `patterns` finds."""

from __future__ import annotations

from datetime import date as Date
from datetime import datetime

import pytest
from dateutil import parser
from hypothesis import given
from hypothesis import strategies as st

from ghostkv.protocol.dates import date, time
from ghostkv.protocol.items import find_items

FORMS = ["%Y-%m-%d", "%d %B %Y", "%B %d, %Y", "%d %b %Y", "%b. %d, %Y", "%A, %d %B %Y", "%dth of %B %Y"]


@given(st.dates(min_value=Date(1500, 1, 1), max_value=Date(2099, 12, 31)), st.sampled_from(FORMS))
def test_whole_dates(day: Date, form: str) -> None:
    text = f"{day:{form}}"
    assert date(text) == parser.parse(text, default=datetime(2000, 1, 1), ignoretz=True).date().isoformat()
    (item,) = find_items(f"It is due on {text}")
    assert item.normal == day.isoformat()


@given(st.datetimes(min_value=datetime(1500, 1, 1), max_value=datetime(2099, 12, 31)), st.sampled_from(["T", " "]))
def test_moments(moment: datetime, between: str) -> None:
    text = moment.replace(microsecond=0).isoformat(between)
    assert date(text) == parser.parse(text).isoformat()
    assert date(text + "Z") == parser.parse(text).isoformat() + "z"


@given(st.integers(1, 31), st.integers(1, 31))
def test_numeric_dates_only_where_they_can_be_told(first: int, second: int) -> None:
    text = f"{first}/{second}/2026"
    readings = {
        reading.date().isoformat()
        for dayfirst in (False, True)
        if (reading := _parsed(text, dayfirst=dayfirst)) is not None
    }
    assert date(text) == (readings.pop() if len(readings) == 1 else text)


def _parsed(text: str, *, dayfirst: bool) -> datetime | None:
    try:
        read: datetime = parser.parse(text, dayfirst=dayfirst)
    except ValueError:
        return None
    return read


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("14 May", "--05-14"),
        ("29 February", "--02-29"),
        ("March 2026", "2026-03"),
        ("May", "may"),
        ("Sol 42", "sol 42"),
        ("30 February 2026", "30 february 2026"),
        ("Friday", "friday"),
        ("1998", "1998"),
    ],
)
def test_partial_dates_keep_their_gaps(text: str, normal: str) -> None:
    assert date(text) == normal


@given(st.times())
def test_clock_times(moment: object) -> None:
    assert time(f"{moment:%I:%M:%S %p}") == f"{moment:%H:%M:%S}"
