"""Dates and times that were found in text, in a form that compares. Never relative to today.

What names no year keeps its gap (`--05-14`), since any default would be a guess. `dateutil` is the oracle in the tests
and not used here: loading it reads time zone files, and `patterns` finds only forms that are plain.
"""

from __future__ import annotations

import re
from datetime import date as calendar

_MONTHS = {name: i for i, name in enumerate("jan feb mar apr may jun jul aug sep oct nov dec".split(), 1)}  # noqa: SIM905
_ISO = re.compile(r"(\d{4}-\d\d-\d\d)(?:[ t](\d\d:\d\d(?::\d\d)?)(?:\.\d+)?(z|[+-]\d\d:?\d\d)?)?")
_NUMERIC = re.compile(r"(\d{1,2})[/.](\d{1,2})[/.](\d{4})")
_MONTH = re.compile(r"\b(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*")
_DAY = re.compile(r"(?<!\d)(\d{1,2})(?!\d)")
_YEAR = re.compile(r"\d{4}")
_CLOCK = re.compile(r"(\d{1,2})(?::(\d\d))?(?::(\d\d))?(?:\.\d+)?\s*([ap])?\.?(?:m\b)?\.?\s*([a-z]*)")


def date(text: str) -> str:
    """ISO where the text has it all; the folded text where it is no calendar date or cannot be told."""
    folded = " ".join(text.casefold().split())
    iso = _ISO.fullmatch(folded)
    if iso:
        clock = f"T{iso[2]}{':00' * (len(iso[2]) == 5)}{iso[3] or ''}" if iso[2] else ""
        return _checked(f"{iso[1]}{clock}", iso[1], folded)
    numeric = _NUMERIC.fullmatch(folded)
    if numeric:
        first, second, year = int(numeric[1]), int(numeric[2]), numeric[3]
        if first <= 12 and second <= 12 and first != second:
            return folded  # the 3rd of April or the 4th of March
        month, day = (first, second) if first <= 12 else (second, first)
        return _checked(f"{year}-{month:02}-{day:02}", f"{year}-{month:02}-{day:02}", folded)
    named = _MONTH.search(folded)
    if not named:
        return folded
    month = _MONTHS[named[1]]
    year_found, day_found = _YEAR.search(folded), _DAY.search(folded)
    if year_found and day_found:
        whole = f"{year_found[0]}-{month:02}-{int(day_found[1]):02}"
        return _checked(whole, whole, folded)
    if year_found:
        return f"{year_found[0]}-{month:02}"
    if day_found:
        yearly = f"{month:02}-{int(day_found[1]):02}"
        return _checked(f"--{yearly}", f"2000-{yearly}", folded)
    return folded


def time(text: str) -> str:
    """24-hour clock with the zone as written: "14:30", "09:00 utc"."""
    match = _CLOCK.match(text.casefold())
    if not match:
        return text.casefold()
    hour = int(match[1])
    if match[4]:
        hour = hour % 12 + (12 if match[4] == "p" else 0)
    clock = f"{hour:02}:{match[2] or '00'}" + (f":{match[3]}" if match[3] else "")
    return f"{clock} {match[5]}".strip()


def _checked(form: str, day: str, otherwise: str) -> str:
    """`form` if `day` is in the calendar."""
    try:
        calendar.fromisoformat(day)
    except ValueError:
        return otherwise
    return form
