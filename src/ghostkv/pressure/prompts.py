"""Prompts of an exact number of tokens, equal for every engine: plain sentences with names and numbers, from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from ghostkv.errors import ConfigError
from ghostkv.pressure.cells import Cell, Job

Count = Callable[[str], int]
"""Tokens of a text, as a server counts those of a raw prompt."""

_NAMES = ("Ada", "Boris", "Carla", "Dmitri", "Elena", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Karin", "Leo")
_ROLES = ("captain", "doctor", "farmer", "judge", "miner", "painter", "pilot", "smith", "teacher", "writer")
_PLACES = ("bridge", "castle", "forest", "garden", "harbor", "library", "market", "mill", "station", "valley")
_THINGS = ("apples", "books", "coins", "keys", "lamps", "letters", "maps", "ropes", "stones", "wheels")
_NEAR = 64  # tokens
_FILLERS = (" and", " the", " so", " a", "a", ".")


def with_prompts(cell: Cell, count: Count) -> list[str]:
    """The prompt of each job. Raises ConfigError for a tokenizer in which no text has just so many tokens."""
    rng = random.Random(cell.seed)
    return [job.text or made(rng, job.prompt, count) for job in cell.jobs]


def counted(cell: Cell, count: Count) -> Cell:
    """The cell with the lengths of given texts."""
    jobs = tuple(replace(job, prompt=count(job.text)) if job.text else job for job in cell.jobs)
    return replace(cell, jobs=jobs)


def made(rng: random.Random, tokens: int, count: Count) -> str:
    """A text of just so many tokens."""
    text = "Story:"
    about = count(text)
    while about < tokens - _NEAR:  # far away sentences are counted one by one, since a long text takes long
        sentence = _sentence(rng)
        text, about = text + sentence, about + count(sentence)
    while count(longer := text + _sentence(rng)) < tokens:
        text = longer
    for word in longer[len(text) :].split(" ")[1:]:
        if count(text + " " + word) > tokens:
            break
        text += " " + word
    while (missing := tokens - count(text)) > 0:
        text = _filled(text, missing, count)
    if count(text) != tokens:
        raise ConfigError(f"a prompt of {tokens} tokens is too short for this model's tokenizer")
    return text


def _filled(text: str, missing: int, count: Count) -> str:
    before = count(text)
    for filler in _FILLERS:
        if before < count(text + filler) <= before + missing:
            return text + filler
    raise ConfigError("this model's tokenizer has no short tokens to fill a prompt with")


def _sentence(rng: random.Random) -> str:
    name, role, place, thing = (_one(rng, words) for words in (_NAMES, _ROLES, _PLACES, _THINGS))
    return f" {name} the {role} went to the {place} on day {rng.randint(1, 90)} and found {rng.randint(2, 99)} {thing}."


def _one(rng: random.Random, words: Sequence[str]) -> str:
    return words[rng.randrange(len(words))]


def lengths(jobs: Sequence[Job]) -> tuple[int, int]:
    """(mean prompt, mean output) in tokens, rounded."""
    return round(sum(job.prompt for job in jobs) / len(jobs)), round(sum(job.output for job in jobs) / len(jobs))
