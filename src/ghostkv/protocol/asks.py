"""Reads which parts a prompt asks for, from explicit structure only.

Counted parts, "for each of", headings, lists of asks, "first ... then ... finally". It guesses nothing: where structure
is not plain, it finds none.

What stands in quotation marks, code or a quoted block is material and not an ask.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

from ghostkv.protocol.ask_words import (
    AFTER,
    ASK,
    CODE,
    CONSTRAINTS,
    COUNTED,
    COUNTS,
    COVER,
    DELIVERABLE,
    MATERIAL,
    NUMBERS,
    SPOKEN_OF,
)
from ghostkv.protocol.parts import Part, is_chain, linked, with_ends

_LIST_STOP = re.compile(
    r"[.?!:;\n(]|\s[-\u2013\u2014]\s|,?\s(?:with|using|that|which|so|including|as|each|please|but|where|while)\b"
    r"|,?\s(?:in|under|of)\s(?:about|at|\d)"
    rf"|,?\s(?:and\s|then\s)*(?:{ASK}|finish|end|conclude|close)\b",
    re.IGNORECASE,
)
_SPLIT = re.compile(r"\s*(?:,\s*(?:and|or|&)\s+|,\s*|\s+(?:and|or|&)\s+)\s*", re.IGNORECASE)
_QUOTED = re.compile(r'"[^"\n]*"|\u201c[^\u201d\n]*\u201d|\u00ab[^\u00bb\n]*\u00bb|`[^`\n]*`')
_FENCED = re.compile(r"^(```|~~~).*?(?:^\1[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
_QUOTED_LINE = re.compile(r"^[ \t]*>.*$|^(?: {4}|\t)(?![ \t]*(?:[-*\u2022]|\d+[.)])\s).*$", re.MULTILINE)
_ITEM = re.compile(r"^[ \t]*(?:[-*\u2022]|\(?\d{1,2}[.)])[ \t]+(\S.*?)[ \t]*$")
_ASKS = re.compile(rf"\b(?:{ASK})\b", re.IGNORECASE)
_ITEM_ASKS = re.compile(rf"(?:[^,]{{1,60}},\s+)?(?:please\s+)?(?:{ASK})\b|.*\?$", re.IGNORECASE)
_PAUSE = " \t\n.,;"
_AROUND = " \t\"'\u201c\u201d\u00ab\u00bb`"
_MOST_READ = 20_000  # characters of a prompt; what is longer is material to work on
_MOST_TITLE = 80  # characters
_MOST_WORDS = 8  # of an item in a line
_PERSON = re.compile(r"(?:my|our|me|us|you|your|him|her|them|his|their|it|its)\b", re.IGNORECASE)


def read_asks(prompt: str) -> tuple[Part, ...]:
    """The parts, in order; none where the prompt does not plainly ask for several."""
    if len(prompt) > _MOST_READ:
        return ()
    plain = _masked(prompt)
    readers: tuple[Callable[[str, str], Sequence[Part]], ...] = (_headings, _asks_list, _each, _counted, _steps)
    for read in readers:
        if len(parts := read(prompt, plain)) > 1:
            return tuple(parts)
    return ()


# --- the forms ---


def _headings(prompt: str, plain: str) -> Sequence[Part]:
    """As in "with the headings X, Y and Z", in a line or as a list below."""
    match = re.search(
        r"\b(?:with|under|using|use)\s+(?:exactly\s+)?(?:the\s+|these\s+)?(?:following\s+)?(?:\w+\s+)?"
        r"(?:section\s+)?headings?\b\s*(?:are\s+)?:?",
        plain,
        re.IGNORECASE,
    )
    if match is None or re.search(r"\b(?:without|no)\s+\w*\s*$", plain[: match.start()], re.IGNORECASE):
        return ()
    rest, shown = plain[match.end() :], prompt[match.end() :]
    titles = _inline(rest, shown) or [text for text, _ in _items(rest, shown)]
    parts = [Part(_title(title), heading=f"## {_title(title)}") for title in titles]
    return linked(parts, chain=is_chain(plain))


def _asks_list(prompt: str, plain: str) -> Sequence[Part]:
    """A numbered or bulleted list whose items are asks, or topics that the line before it asks to cover."""
    items = _items(plain, prompt)
    if len(items) < 2:
        return ()
    at = items[0][1]
    before = plain[:at].rstrip()
    lead = before[max(before.rfind("\n\n"), 0) :]
    lead_line = re.split(r"[.?!]\s|\n", lead.strip())[-1]
    program = lead_line.endswith(":") and CODE.search(lead_line)
    if MATERIAL.search(lead_line) or CONSTRAINTS.search(lead_line) or program:
        return ()
    asked = all(_ITEM_ASKS.match(text) for text, _ in items)
    if not asked and not COVER.search(lead_line):
        return ()
    parts = [Part(_title(text), text if len(text) > _MOST_TITLE else "") for text, _ in items]
    after = plain[items[-1][1] :].partition("\n")[2]
    return with_ends(parts, lead_line, after, chain=is_chain(plain))


def _each(prompt: str, plain: str) -> Sequence[Part]:
    """As in "for each of a, b and c", "each of the following: a, b, c", "a description for a, b and c"."""
    found = re.search(
        r"\beach\s+(?:one\s+)?of\s+(?:(?:the|these)\s+(?:following\s+)?(?:[\w-]+\s+){0,3}?[\w-]+\s*:)?\s*",
        plain,
        re.IGNORECASE,
    ) or re.search(
        rf"\b(?:an?|one|the|some)\s+(?:[\w-]+\s+){{0,3}}?(?:{DELIVERABLE})\s+(?:for|of)\s+", plain, re.IGNORECASE
    )
    if found is None or not _asking(plain, found.start()):
        return ()
    titles = _inline(plain[found.end() :], prompt[found.end() :])
    if any(_PERSON.match(title) or re.fullmatch(r"\w+ing(?:\s.*)?", title) for title in titles):
        return ()
    after = plain[_sentence(plain, found.start())[0] :]
    return with_ends([Part(_title(title)) for title in titles], "", after, chain=is_chain(plain))


def _counted(prompt: str, plain: str) -> Sequence[Part]:
    """As in "five chapters", with an introduction and a conclusion where they are asked for beside them."""
    for kind in COUNTED:
        for match in re.finditer(
            rf"(?P<before>(?:\b[\w'-]+[ \t]+)?)\b(?P<count>{COUNTS})[ \t-](?:[a-z]+[ \t-])?{kind}s?\b"
            r"(?P<after>[^.?!\n]*)",
            plain,
            re.IGNORECASE,
        ):
            count = NUMBERS.get(match["count"].lower()) or int(match["count"])
            if count < 2 or AFTER.match(match["after"]) or not _fresh(plain, match):
                continue
            parts = [Part(f"{kind} {n}") for n in range(1, count + 1)]
            start, _ = _sentence(plain, match.start())
            return with_ends(parts, plain[start : match.start()], plain[match.end("count") :], chain=True)
    return ()


def _steps(prompt: str, plain: str) -> Sequence[Part]:
    """As in "First, describe this. Then describe that. Finally, compare them."."""
    marks = list(
        re.finditer(
            rf"(?:^|(?<=[.?!;,:])\s)[ \t]*(?:and\s+)?(?P<word>first(?:ly)?|second(?:ly)?|third(?:ly)?|then|next|"
            rf"after\s+that|finally|lastly)\b,?\s+(?:please\s+)?(?=(?:{ASK})\b)",
            plain,
            re.IGNORECASE | re.MULTILINE,
        )
    )
    if len(marks) < 2 or not marks[0]["word"].lower().startswith("first"):
        return ()
    texts: list[str] = []
    for i, mark in enumerate(marks):
        end = marks[i + 1].start() if i + 1 < len(marks) else _sentence(plain, mark.end())[1]
        if re.search(r"\n\s*\n", plain[mark.end() : end]):
            return ()
        texts.append(prompt[mark.end() : end].rstrip(_PAUSE).removesuffix(" and").rstrip(_PAUSE))
    return linked([Part(_title(text), text if len(text) > _MOST_TITLE else "") for text in texts], chain=True)


# --- pieces ---


def _masked(prompt: str) -> str:
    """The prompt with quoted text and code blanked, every character at its place."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", "\u00b7", match[0])

    for material in (_FENCED, _QUOTED_LINE, _QUOTED):
        prompt = material.sub(blank, prompt)
    return prompt


def _inline(plain: str, prompt: str) -> list[str]:
    """The items of a list in a line, e.g. "a, b and c"; none where it is no list of short items."""
    match = _LIST_STOP.search(plain)
    end = match.start() if match else len(plain)
    marks = [(0, 0), *(mark.span() for mark in _SPLIT.finditer(plain, 0, end)), (end, end)]
    items = [prompt[a:b].strip(_AROUND) for (_, a), (b, _) in pairwise(marks)]
    return items if len(items) > 1 and all(0 < len(item.split()) <= _MOST_WORDS for item in items) else []


def _items(plain: str, prompt: str) -> list[tuple[str, int]]:
    """(text, offset) of the items of the first list of at least two; blank lines may stand between them."""
    found: list[tuple[str, int]] = []
    offset = 0
    for line in plain.splitlines(keepends=True):
        match = _ITEM.match(line.rstrip("\n"))
        if match is not None:
            found.append((prompt[offset + match.start(1) : offset + match.end(1)], offset))
        elif line.strip() and len(found) > 1:
            break
        elif line.strip():
            found = []
        offset += len(line)
    return found if len(found) > 1 else []


def _fresh(plain: str, match: re.Match[str]) -> bool:
    """Whether counted parts are asked for, and not spoken of: no "the", "my", "about" before, a verb that asks."""
    before = match["before"].strip().lower()
    return before not in COUNTED and not SPOKEN_OF.fullmatch(before) and _asking(plain, match.start("count"))


def _asking(plain: str, at: int) -> bool:
    """Whether the sentence around `at` asks for something."""
    start, end = _sentence(plain, at)
    return _ASKS.search(plain, start, end) is not None


def _sentence(plain: str, at: int) -> tuple[int, int]:
    """Where the sentence around `at` starts and ends."""
    starts = [match.end() for match in re.finditer(r"[.?!]\s+|\n", plain[:at])]
    end = re.search(r"[.?!](?:\s|$)|\n", plain[at:])
    return starts[-1] if starts else 0, at + end.start() if end else len(plain)


def _title(text: str) -> str:
    """One line of at most 80 characters, cut at a word."""
    line = " ".join(text.split()).strip("*_ ").rstrip(".,;:")
    if len(line) <= _MOST_TITLE:
        return line
    return line[: _MOST_TITLE - 1].rsplit(" ", 1)[0].rstrip(".,;:") + "\u2026"
