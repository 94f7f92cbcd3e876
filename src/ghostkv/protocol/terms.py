"""Text to index terms: stems, exact numbers and identifiers, concepts, pairs of characters of unspaced scripts.

    The captain of AX-4471 paid $1,250.50   ->   captain ~leader  ax4471 ax 4471  paid ~cost ~income  $ ~cost  1250.50
A word is case-folded, loses accents and English endings, and is left out if it is a stop word. A token with a digit
stays exact; what joins its parts is dropped, so "AX-4471" is "AX4471", and its parts are terms as well.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from ghostkv.protocol.concepts import concepts_of
from ghostkv.protocol.stems import STOP_WORDS, stem

# Scripts whose words are not spaced, or are compounds: kana, Han, Hangul, Thai, Lao, Burmese, Khmer.
_SOLID = (
    "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\U00020000-\U0003ffff"
)
_MARKS = "\u0900-\u0963\u0966-\u0dff"  # Indic scripts with their vowel signs, which \w leaves out
_SIGNS = "$€£¥%°"
_WORD = rf"(?:(?![{_SOLID}])[\w{_MARKS}])+"
_TOKEN = re.compile(rf"[{_SOLID}]+|{_WORD}(?:(?:[-/.:@+#]|,(?=\d)){_WORD})*|[{_SIGNS}]")
_IS_SOLID = re.compile(f"[{_SOLID}]")
_PART = re.compile(rf"(?:[^\W\d_]|[{_MARKS}])+|\d+(?:[.:]\d+)*")
_NUMBER = re.compile(r"\d+(?:[.:]\d+)*")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_ACCENTS = re.compile("[\u0300-\u036f]")
_LONGEST = 64  # characters of a token that count, so that a base64 block is one term and no more


def terms(text: str) -> list[str]:
    """The terms of `text` in order, with repetitions. A concept starts with "~", which no other term does."""
    found: list[str] = []
    for token in _TOKEN.findall(_plain(text)):
        found += _of_token(token)
    return found


def is_exact(term: str) -> bool:
    """Whether it is an identifier or a number of three digits or more: rare, and never meant approximately."""
    return len(term) > 2 and any(map(str.isdigit, term))


def _plain(text: str) -> str:
    """Compatibility forms unified and accents dropped; marks of other scripts stay."""
    if text.isascii():
        return text
    return unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFKD", text)))


@lru_cache(maxsize=1 << 14)
def _of_token(token: str) -> tuple[str, ...]:
    if _IS_SOLID.match(token):
        return tuple(token[i : i + 2] for i in range(len(token) - 1)) or (token,)
    token = token[:_LONGEST]
    if any(map(str.isdigit, token)):
        return _exact(token.casefold())
    if token in _SIGNS:
        return _word(token)
    return tuple(term for part in _PART.findall(_CAMEL.sub(" ", token)) for term in _word(part.casefold()))


def _exact(token: str) -> tuple[str, ...]:
    """A number without thousands separators; else the identifier and those parts that mean something alone."""
    number = token.replace(",", "")
    if _NUMBER.fullmatch(number):
        return (number,)
    parts = _PART.findall(token)
    whole = "".join(parts)
    alone = [part for part in parts if part != whole and (part[0].isalpha() or len(part) > 2)]
    return (whole, *(term for part in alone for term in _word(part)))


def _word(word: str) -> tuple[str, ...]:
    if word in STOP_WORDS:
        return ()
    return (stem(word), *(f"~{concept}" for concept in concepts_of(word)))
