"""How something is said: whether it is asked, denied, planned, supposed or past, and what is said to replace what."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ghostkv.protocol.vocabulary import BECOMES, DENIALS, DOUBTS, MOVES

_SUPPOSED = re.compile(
    r"\b(?:if|unless|whether|suppose|supposing|assuming|imagine|in case|provided|would|could|might|(?-i:may)|should"
    r"|shall|must|will|"
    r"won['’]t|let['’]s|going to|plans?|planned|planning|intends?|intended|proposed?|proposes|proposal|expects?"
    r"|expected|"
    r"hopes?|hoped|wants?|wanted|wish(?:es|ed)?|claim(?:s|ed)?|believed?|rumou?rs?|pretend(?:ed)?|as though|as if|"
    r"until|^starting|in order to|try to|trying to|request(?:s|ed)?|please)\b",
    re.IGNORECASE,
)
_WHOLE = frozenset(("if", "unless", "suppose", "supposing", "assuming", "imagine", "in case", "provided"))
_DENIED = re.compile(
    r"\b(?:not(?! only)|never|neither|nor|without|instead of|rather than|nobody|no one|cannot|nothing|\w+n['’]t"
    r"|no longer|"
    r"formerly|previously|originally|used to|once|earlier|at first|had been|ex-)\b",
    re.IGNORECASE,
)
_WORD = re.compile(r"[^\W\d_]+")
_PAST = re.compile(r"(?:Back )?[Ii]n (?:1[5-9]|20)\d\d,?\s[^,;]{0,160}\b(?:was|were|had)\b")
_ENDED = re.compile(r"\bno longer\b|\bisn['’]t \w+ any ?more\b|\bceased to be\b", re.IGNORECASE)
_CLAUSE = re.compile(r"[,;:?!()]\s|\sbut\s|\swhile\s|\swhereas\s|\.\s")
_MOVED = re.compile(rf"\b(?:{'|'.join(sorted(MOVES - BECOMES))}|renamed)\b", re.IGNORECASE)
_FROM = re.compile(r"\bfrom\s+(?:about\s+|around\s+|the\s+)?[`\"“]?$")
_TO = re.compile(r"[`\"”]?\s+(?:up\s+|down\s+|over\s+)?to\s+(?:about\s+|around\s+|the\s+|only\s+)?[`\"“]?$")
_REACH = 120


@dataclass(frozen=True, slots=True)
class Moods:
    """The cues of one sentence."""

    text: str
    whole: bool  # all of it is asked, supposed or of a past year
    supposed: tuple[tuple[int, int], ...]
    denied: tuple[int, ...]
    moves: bool  # "from" or "to" stands in it

    @classmethod
    def of(cls, text: str) -> Moods:
        """Find the cues."""
        words = set(_WORD.findall(text.casefold()))
        doubtful = not DOUBTS.isdisjoint(words)
        supposed = (
            ()
            if not doubtful
            else tuple(
                _scope(text, match.start(), conditional=match[0].casefold() in _WHOLE)
                for match in _SUPPOSED.finditer(text)
            )
        )
        head = _SUPPOSED.match(text) if doubtful else None
        past = "in" in words and _PAST.match(text) is not None and not _MOVED.search(text)
        whole = past or text.rstrip("\"'”’*_ ").endswith("?") or (head is not None and head[0].casefold() in _WHOLE)
        return cls(
            text,
            whole,
            supposed,
            () if DENIALS.isdisjoint(words) else tuple(match.start() for match in _DENIED.finditer(text)),
            "to" in words,
        )

    def hypothetical(self, start: int, end: int) -> bool:
        """Whether what stands at text[start:end] is not asserted."""
        if self.whole or any(first <= start < last for first, last in self.supposed):
            return True
        near = [cue for cue in self.denied if cue < start]
        return bool(near) and not _CLAUSE.search(self.text, near[-1], start)

    def ended(self, start: int) -> bool:
        """Whether the value is said to hold no longer."""
        if not self.denied or self.whole or any(first <= start < last for first, last in self.supposed):
            return False
        found = list(_ENDED.finditer(self.text, max(0, start - _REACH), start))[-1:]
        return bool(found) and self.text[found[0].end() : start].strip().casefold() in _AFTER_NO_LONGER

    def replaced(self, start: int, end: int) -> str:
        """For B or A in "from A to B" that a verb of change governs: "new" or "old"; else ""."""
        if not self.moves:
            return ""
        before = self.text[max(0, start - _REACH) : start]
        following = self.text[end : end + _REACH]
        if _FROM.search(before):
            governed = _MOVED.search(before)
            turns = re.match(r"[`\"”]?\s+(?:up\s+|down\s+)?to\s", following) or re.search(
                r"\bto\s\S+[^,;]{0,40}from\s", before
            )
            return "old" if governed and turns else ""
        if _TO.search(before):
            source = before.rfind("from ")
            return (
                "new"
                if source >= 0 and _MOVED.search(before, 0, source) and "," not in before[source:].replace(",0", "")
                else ""
            )
        return ""


_AFTER_NO_LONGER = frozenset(("", "with", "at", "in", "the", "by", "held by", "led by", "called", "named"))


def _scope(text: str, cue: int, *, conditional: bool) -> tuple[int, int]:
    """From the start of the cue's clause to its end; what follows a condition depends on it too."""
    start = 0
    for match in _CLAUSE.finditer(text, 0, cue):
        start = match.end()
    if conditional:
        return start, len(text)
    after = _CLAUSE.search(text, cue)
    return start, after.start() if after else len(text)
