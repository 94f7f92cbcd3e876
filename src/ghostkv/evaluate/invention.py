"""Invented values, names and filler prose from a seeded source. Nothing here exists, so nothing can be known before."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import cycle, pairwise

from ghostkv.errors import ConfigError
from ghostkv.text.sentences import sentence_starts

_ONSETS = ("B", "Br", "D", "Dr", "F", "G", "H", "K", "L", "M", "N", "P", "R", "S", "T", "Th", "V", "W", "Z")
_MIDDLES = ("a", "e", "i", "o", "u", "ai", "ea", "oa")
_CODAS = ("l", "ll", "m", "n", "nd", "r", "rn", "s", "st", "th", "v", "x")
_ENDS = ("a", "en", "er", "is", "o", "on", "um", "y", "ian", "ett")
_FIRST = tuple(
    "Ada Boris Clara Dmitri Elena Farid Greta Hugo Ines Jonas Kira Leon Marta Nils Olga Pavel Rosa Stefan Tilda Victor "  # noqa: SIM905
    "Wanda Yusuf Zora Anselm Beatrix Casper Delia Edgar Flora Gideon".split()
)
_LAND = ("Port {n}", "{n} Bay", "{n} Falls", "{n}ville", "Mount {n}", "{n} Harbor", "New {n}", "{n} Creek")
_MONTHS = tuple(
    "January February March April May June July August September October November December".split()  # noqa: SIM905
)

_OPENINGS = (
    "", "", "", "For a while ", "Once again ", "Near the door ", "Without a word ", "As so often ", "Little by little ",
)  # fmt: skip
_PEOPLE = (
    "the gardener", "a visitor", "the old clerk", "the night shift", "a group of students", "the neighbours",
    "the baker", "a tired driver", "the children", "the choir", "a stranger", "the librarian",
)  # fmt: skip
_DOINGS = (
    "walked along", "looked over", "talked about", "waited beside", "wrote a letter about", "cleaned", "painted",
    "sketched", "wondered about", "slowly crossed", "told a story about", "remembered",
)  # fmt: skip
_THINGS = (
    "the empty square", "a narrow bridge", "the long winter", "an unfinished wall", "the quiet garden", "the market",
    "a row of lamps", "the muddy path", "an old photograph", "the green hills", "the harvest", "a forgotten song",
)  # fmt: skip
_ENDINGS = (
    "while the rain fell softly on the roofs", "and nobody seemed to mind", "before the light was gone",
    "because there was nothing else to do", "as if time had stopped", "and the wind carried the smell of bread",
    "until the bells rang", "although the road was closed", "and then went home", "with great patience",
)  # fmt: skip

_UP, _DOWN = {"rose", "risen", "raised", "grown"}, {"lowered"}


class Inventor:
    """Values of every kind, from one seed. No two names of a document are equal."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        self._taken: set[str] = set()

    def value(self, kind: str) -> str:
        """A value of the kind; see `subjects.Attribute.kind`."""
        name, *limits = kind.split(":")
        if name == "quantity":
            return self._quantity(*limits)
        if name == "count":
            return str(self.random.randint(int(limits[0]), int(limits[1])))
        simple = {
            "code": self._code,
            "date": self._date,
            "time": self._time,
            "version": self._version,
            "person": self.person,
            "place": self.place,
        }
        return simple[name]()

    def change(self, kind: str, update: str) -> tuple[str, str]:
        """An old and a new value, such that a sentence which says that it rose or fell tells the truth."""
        old = self.value(kind)
        new = next(value for value in iter(lambda: self.value(kind), "") if value != old)
        words = set(update.split())
        if words & _UP or words & _DOWN:
            old, new = sorted((old, new), key=lambda value: float(value.split()[0]), reverse=bool(words & _DOWN))
        return old, new

    def subject(self, pattern: str) -> str:
        """A name after a pattern of `subjects.SubjectType`."""
        if pattern == "{p}":
            return self.person()
        return self._fresh(lambda: pattern.format(n=self._word(), c=self._label()))

    def person(self) -> str:
        """First and last name."""
        return self._fresh(lambda: f"{self.random.choice(_FIRST)} {self._word()}")

    def place(self) -> str:
        """A town."""
        return self._fresh(lambda: self.random.choice(_LAND).format(n=self._word()))

    def filler(self) -> str:
        """A sentence without names and numbers."""
        pick = self.random.choice
        text = f"{pick(_OPENINGS)}{pick(_PEOPLE)} {pick(_DOINGS)} {pick(_THINGS)} {pick(_ENDINGS)}."
        return text[0].upper() + text[1:]

    def _fresh(self, make: Callable[[], str]) -> str:
        made = next(text for text in iter(make, "") if text not in self._taken)
        self._taken.add(made)
        return made

    def _word(self) -> str:
        pick = self.random.choice
        return pick(_ONSETS) + pick(_MIDDLES) + pick(_CODAS) + pick(_ENDS)

    def _label(self) -> str:
        return f"{self.random.choice('ABCDEFGHKLMNPRSTUVWXYZ')}{self.random.randint(10, 99)}"

    def _quantity(self, unit: str, low: str, high: str) -> str:
        least, most = int(low), int(high)
        if most > 1000:
            return f"{self.random.randint(least, most)} {unit}"
        return f"{self.random.randint(10 * least, 10 * most) / 10:.1f} {unit}"

    def _code(self) -> str:
        letters = "".join(self.random.choices("ABCDEFGHKLMNPRSTUVWXYZ", k=2))
        return f"{letters}-{self.random.randint(1000, 9999)}"

    def _date(self) -> str:
        return f"{self.random.randint(1, 28)} {self.random.choice(_MONTHS)} {self.random.randint(2031, 2079)}"

    def _time(self) -> str:
        return f"{self.random.randint(0, 23):02}:{self.random.randint(0, 59):02}"

    def _version(self) -> str:
        return ".".join(str(self.random.randint(*limits)) for limits in ((1, 9), (0, 30), (0, 30)))


def prose(text: str, words: range | None = None) -> Iterator[str]:
    """The sentences of a text, over and over, each on one line; where `words` is given, those of so many words.

    Raises ConfigError for a text without any.
    """
    starts = sentence_starts(text)
    sentences = [text[start:stop].split() for start, stop in pairwise([*starts, len(text)])]
    kept = [" ".join(sentence) for sentence in sentences if words is None or len(sentence) in words]
    if not kept:
        raise ConfigError("the text for the filler has no sentence" + (f" of {words} words" if words else ""))
    return cycle(kept)
