"""One name for one thing: initials, last names, other spellings. Names only; identifiers and numbers must be equal.

A short form that fits several known names stays as it is.
"""

from __future__ import annotations

import re
import unicodedata

from ghostkv.protocol.vocabulary import DETERMINERS, TITLES

_TITLES = frozenset(title.casefold() for title in TITLES)
_WORD = re.compile(r"[^\W_]+(?:[-.][^\W_]+)*")


def folded(name: str) -> str:
    """Case, accents, articles and punctuation taken off."""
    plain = name.casefold()
    if not plain.isascii():
        plain = "".join(c for c in unicodedata.normalize("NFKD", plain) if not unicodedata.combining(c))
    words = plain.split()
    while len(words) > 1 and words[0] in DETERMINERS:
        words = words[1:]
    plain = " ".join(words)
    return plain.strip(" .,'’*_`\"").removesuffix("'s").removesuffix("’s") or plain


class Aliases:
    """Folded name -> the folded form under which it is known. Persistent by copying."""

    def __init__(
        self, canonical: dict[str, str] | None = None, short: dict[str, tuple[str, ...]] | None = None
    ) -> None:
        self._canonical = canonical if canonical is not None else {}
        self._short = short if short is not None else {}

    def copy(self) -> Aliases:
        """An independent one."""
        return Aliases(self._canonical.copy(), self._short.copy())

    def get(self, name: str) -> str:
        """What `name` is known as; it need not be known."""
        plain = folded(name)
        return self._canonical.get(plain) or self._fitting(plain) or plain

    def add(self, name: str) -> str:
        """Make a name known; gives what it is known as."""
        plain = folded(name)
        canonical = self._canonical.get(plain)
        if canonical is None:
            canonical = self._fitting(plain) or plain
            self._canonical[plain] = canonical
            if canonical == plain:
                for short in _short_forms(plain):
                    self._short[short] = (*self._short.get(short, ()), plain)
        return canonical

    def _fitting(self, plain: str) -> str:
        """The only known name of which `plain` is a short form; "" if there is none or there are several."""
        found = self._short.get(plain, ())
        if not found and (bare := _untitled(plain)) != plain:
            known = self._canonical.get(bare)
            found = (known,) if known else self._short.get(bare, ())
        return found[0] if len(found) == 1 else ""


def _untitled(plain: str) -> str:
    words = plain.split()
    return " ".join(words[1:]) if words and words[0].rstrip(".") in _TITLES else plain


def _short_forms(plain: str) -> list[str]:
    """What a name of several words may be shortened to. One with a digit in it is never shortened."""
    words = _untitled(plain).split()
    forms = [" ".join(words)] if " ".join(words) != plain else []
    if len(words) < 2 or any(map(str.isdigit, plain)) or not all(map(_WORD.fullmatch, words)):
        return forms
    if len(words) == 2:
        forms += [words[1], f"{words[0][0]}. {words[1]}"]
    if len(words) > 2:
        forms.append("".join(word[0] for word in words if word not in ("of", "the", "for", "and", "de")))
    return forms
