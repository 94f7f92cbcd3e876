"""English words reduced to what their forms share, and the words that mean too little to search for.

Lighter than Porter's stemmer, which joins words that differ ("universe", "university"), and without a dictionary. What
it returns are keys, not words: "houses" and "house" become "hous". What it misses, `recall` finds by how words begin.
"""

from __future__ import annotations

import re

STOP_WORDS = frozenset(
    """
    a an the this that these those and or but nor so if then than as at by for from in into of off on onto out over
    to up with without within about after before between during under again once here there all any both each few
    more other some such no not only own same too very just also can could may might must shall should will would do
    does did done doing be is are was were been being am have has had having i me my mine we us our ours you your
    yours he him his she her hers it its they them their theirs who whom whose which what when where why how s t d m
    ll re ve don isn wasn tell please let get got gave give say said know anything something per via upon while
    because until since though although however still yet ever never now much many http https www com
    """.split()  # noqa: SIM905
)

_VOWEL = re.compile("[aeiouy]")
_DOUBLE = re.compile(r"([b-df-hj-np-tv-z])\1$")


def stem(word: str) -> str:
    """The key of a case-folded word. Words of other alphabets and of up to three letters are their own."""
    if len(word) <= 3 or not word.isascii():
        return word
    word = _singular(word)
    for ending in ("ingly", "edly", "ing", "ed", "ly"):
        rest = word.removesuffix(ending)
        if rest != word and len(rest) >= 3 and _VOWEL.search(rest) and not word.endswith("eed"):
            word = rest
            break
    word = _DOUBLE.sub(r"\1", word.removesuffix("e") if len(word) > 3 else word)
    return f"{word[:-1]}i" if word.endswith("y") and len(word) > 3 else word


def _singular(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return f"{word[:-3]}y"
    if word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word
