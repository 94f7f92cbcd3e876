"""Does a flushed answer lose its way? Scaffolding that leaks, openings that come back, poverty of words, false facts.

All of it is counted over real answers of many segments, beside the whole history. What a state block adds to a prompt
is found without knowing how it is rendered: it is what stands in the prompt and was said neither by the client nor by
the answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from ghostkv.evaluate.generations import Session, Tell, residency_figures, sessions
from ghostkv.evaluate.lab import Lab
from ghostkv.evaluate.statistics import wilson
from ghostkv.request import Message
from ghostkv.residency import Policy, SegmentBudget
from ghostkv.text.sentences import sentence_starts

_SCAFFOLD, _OPENING = 5, 8  # words
_STORY = (
    "Aster-7, an artificial intelligence, awakens on Sol 42 inside Habitation Module Eos, at 21.4 °C and 68.2 kPa. "
    "The commander is Ilse Varnholt."
)
_PROMPTS = (
    f"Write a very long science fiction story. {_STORY}",
    "Write a very long report about the building of a dam, with names, dates and numbers.",
    "Tell the whole history of an invented kingdom, ruler by ruler, with years and places.",
    "Write a long diary of a ship's doctor on a voyage around the world, with dates and places.",
)
_ITEM = re.compile(r"\d+(?:[.,:]\d+)*|\b[A-Z]\w+(?:-\d+)?(?: [A-Z]\w+)+|\b[A-Z]\w*-\d+")  # numbers, names, codes

Words = tuple[str, ...]


async def drift(
    lab: Lab, arms: Mapping[str, Policy], budget: SegmentBudget, segments: int, tell: Tell
) -> dict[str, Any]:
    """All figures for each arm."""
    asked = [[Message("user", prompt)] for prompt in _PROMPTS]
    found: dict[str, Any] = {}
    for name, residency in arms.items():
        tell(f"drift: {name}, {len(asked)} answers of {segments} segments")
        answered = await sessions(lab, asked, residency, budget, segments)
        prompts = [_prompts(lab, session, residency) for session in answered]
        found[name] = figures(answered, prompts) | residency_figures(answered)
    return {"segments": segments, "answers": len(asked), "arms": found}


def figures(answered: Sequence[Session], prompts: Sequence[Sequence[str]]) -> dict[str, Any]:
    """The figures of one arm; `prompts` are the texts of each session's segment prompts, in the same order."""
    leaks = [leak for session, texts in zip(answered, prompts, strict=True) for leak in scaffolding(session, texts)]
    opened = [again for session in answered for again in reopenings(session.segments)]
    true, all_items = 0, 0
    for session, texts in zip(answered, prompts, strict=True):
        right, seen = precision(session, texts)
        true, all_items = true + right, all_items + seen
    return {
        "scaffolding": asdict(wilson(sum(leaks), len(leaks))),
        "reopenings": asdict(wilson(sum(opened), len(opened))),
        "distinct": {str(n): fmean(distinct(session.segments, n) for session in answered) for n in (1, 2, 3)},
        "fact_precision": asdict(wilson(true, all_items)),
    }


def scaffolding(session: Session, prompts: Sequence[str]) -> list[bool]:
    """For each segment after the first: whether it repeats five words in a row of what was put into its prompt.

    Words that the client or the answer itself had said before do not count.
    """
    said = set(_grams(_client(session), _SCAFFOLD))
    found = []
    for index, (text, prompt) in enumerate(zip(session.segments, prompts, strict=False)):
        if index:
            said |= set(_grams(" ".join(session.segments[max(0, index - 2) : index]), _SCAFFOLD))
            added = set(_grams(prompt, _SCAFFOLD)) - said
            found.append(not added.isdisjoint(_grams(text, _SCAFFOLD)))
    return found


def reopenings(segments: Sequence[str]) -> list[bool]:
    """For each segment after the first: whether its opening has eight words in a row of an earlier one's opening."""
    seen: set[Words] = set()
    found = []
    for index, text in enumerate(segments):
        opening = set(_grams(_opening(text), _OPENING))
        if index:
            found.append(not opening.isdisjoint(seen))
        seen |= opening
    return found


def distinct(segments: Sequence[str], n: int) -> float:
    """Different n-grams of words over all of them, averaged over the segments (so that length does not matter)."""
    shares = [len(set(grams)) / len(grams) for text in segments if (grams := list(_grams(text, n)))]
    return fmean(shares) if shares else 0.0


def precision(session: Session, prompts: Sequence[str]) -> tuple[int, int]:
    """Exact items (numbers, names, codes) in the prompts that client or answer had said before; and all of them."""
    right = seen = 0
    source = _client(session)
    standing = set(_ITEM.findall(prompts[0])) if prompts else set()
    for text, prompt in zip(session.segments, prompts, strict=False):
        items = [item for item in _ITEM.findall(prompt) if item not in standing]
        right += sum(item in source for item in items)
        seen += len(items)
        source += text
    return right, seen


def _prompts(lab: Lab, session: Session, residency: Policy) -> list[str]:
    """What each segment was prompted with: the answer's ids forced through the same policy again."""
    return [lab.decode(segment.assembled.ids) for segment in lab.forced(session.asked, residency, session.ids)]


def _client(session: Session) -> str:
    return " ".join(message.content for message in session.asked)


def _opening(text: str) -> str:
    """The first two sentences: the first may be the end of one that the segment before began."""
    starts = sentence_starts(text)
    return text[: starts[2]] if len(starts) > 2 else text


def _grams(text: str, n: int) -> Iterable[Words]:
    words = re.findall(r"\w+", text.casefold())
    return zip(*(words[i:] for i in range(n)), strict=False)
