"""Who or what a value is said of: shallow reading of English clauses, by word lists and positions.

It prefers no answer to a wrong one: where a clause has no shape that it knows, subject and attribute stay unknown.
"""

from __future__ import annotations

from ghostkv.protocol.facts import Kind
from ghostkv.protocol.phrases import (
    AUX,
    BREAKS,
    CLAUSE_STARTS,
    LEADING,
    NOTHING,
    REACH,
    Relation,
    Token,
    attribute_noun,
    noun_phrase,
    subject_phrase,
)
from ghostkv.protocol.vocabulary import (
    ATTRIBUTES,
    BECOMES,
    COPULAS,
    DETERMINERS,
    FILLERS,
    MOVES,
    NOW,
    PREPOSITIONS,
    PRONOUNS,
    SCHEDULES,
    STATIVES,
)

_ARRIVALS = frozenset(("to", "into", "with", "as"))
_HEDGES = NOW | {"about", "around", "approximately", "roughly", "nearly", "almost", "only", "exactly", "just", "over"}
_TO = frozenset(("to", "into", "at", "with", "as", "by", "on", "from", "of"))
_NEVER_NOUN = FILLERS | STATIVES | MOVES | PREPOSITIONS | DETERMINERS | PRONOUNS
_BEFORE_NUMBER = frozenset(("of", "is", "at", "about", "no", "number", "#", "=", "around", "nearly"))
_ENDS = BREAKS | {".", "since", "and", "but", "who", "which", "after", "as", "until", "again"}
_STATING = COPULAS | SCHEDULES | MOVES
_VERBS = STATIVES | MOVES
_SKIPPED = FILLERS | DETERMINERS | {","}
_BEING = COPULAS | BECOMES | NOW | {"has", "have"}
_IS = COPULAS | BECOMES
_TURNING = NOW | BECOMES


def relation(tokens: list[Token], index: int) -> Relation:
    """How tokens[index], an item, is tied to what stands before it in its clause."""
    item = tokens[index].item
    if item is not None and item.kind is Kind.NAME and (inverse := _inverse(tokens, index)) is not NOTHING:
        return inverse
    anchor, between, first = _anchor(tokens, index)
    if anchor < 0:
        return _beside(tokens, index)
    word = tokens[anchor].word
    moves = word in MOVES
    if moves and between:
        preposition = next((i for i in range(first, anchor, -1) if tokens[i].word in _TO), -1)
        governor = _governor(tokens, anchor, index)
        if preposition < 0 or governor not in _ARRIVALS | {"from"}:
            return _beside(tokens, index)
        phrase = noun_phrase(tokens, anchor + 1, _object_end(tokens, anchor, preposition))
        return Relation(phrase.subject, phrase.attribute, moved=governor in _ARRIVALS, stated=True)
    if between:
        return _beside(tokens, index)
    governor = _governor(tokens, anchor, index)
    arrives = (
        governor in _ARRIVALS or (word in BECOMES and index - anchor < 4) or (word == "replaced" and governor == "by")
    )
    if moves and not arrives and governor != "from":
        return NOTHING  # "rose by 10%", "fell 3 points": not a value of the subject
    phrase = subject_phrase(tokens, anchor)
    now = any(token.word in NOW for token in (*tokens[max(0, anchor - 1) : index], *tokens[: anchor < REACH]))
    return Relation(phrase.subject, phrase.attribute, moved=(moves and arrives) or now, stated=True)


def _governor(tokens: list[Token], anchor: int, index: int) -> str:
    """The preposition that a value follows, or the verb itself."""
    i = index - 1
    while i > anchor and (tokens[i].word in DETERMINERS or tokens[i].word in _HEDGES):
        i -= 1
    return tokens[i].word


def leading_phrase(tokens: list[Token]) -> tuple[int, bool]:
    """Tokens before the first verb that is known, and whether that verb only says what the subject is."""
    for i, token in enumerate(tokens[:REACH]):
        if token.word in BREAKS:
            return 0, False
        if token.word in _VERBS:
            return i, token.word in _STATING
    return 0, False


def _anchor(tokens: list[Token], index: int) -> tuple[int, bool, int]:
    """The verb before an item, whether other words stand between them, and the last of those that may govern it."""
    between = False
    first = index - 1
    for i in range(index - 1, max(-1, index - REACH), -1):
        token = tokens[i]
        word = token.word
        if word in _VERBS:
            if word in AUX and i and tokens[i - 1].word in MOVES:
                continue
            return i, between, first
        if word in CLAUSE_STARTS or word in (";", ":", "?", "!", ".") or (word == "," and not _listed(tokens, i)):
            return -1, between, first
        if word and word not in _SKIPPED:
            between = True
    return -1, between, first


def _listed(tokens: list[Token], comma: int) -> bool:
    """Whether a comma stands between the items of a list."""
    return comma > 0 and tokens[comma - 1].item is not None


def _object_end(tokens: list[Token], anchor: int, preposition: int) -> int:
    """Where the object of a verb of change ends: before "from A to B" it ends at "from"."""
    for i in range(anchor + 2, preposition):
        if tokens[i].word == "from":
            return i
    return preposition


def _beside(tokens: list[Token], index: int) -> Relation:
    """Attribute noun right before the value: "a speed of 12 knots", "port 8080", "captain Mira Voss"."""
    item = tokens[index].item
    counts = item is not None and item.kind is Kind.QUANTITY
    i = index - 1
    while counts and i >= 0 and index - i < 4 and tokens[i].word in _BEFORE_NUMBER:
        i -= 1
    attribute = attribute_noun(tokens[i].word) if i >= 0 else ""
    return Relation("", attribute) if attribute else NOTHING


def _inverse(tokens: list[Token], index: int) -> Relation:
    """A name that begins its clause and is said to be something: "Mira Voss is now the captain of the Kestrel"."""
    if index and tokens[index - 1].word not in LEADING | {",", ";", "now", "today"}:
        return NOTHING
    i = index + 1
    while i < len(tokens) and tokens[i].word in _BEING:
        i += 1
    words = [token.word for token in tokens[index + 1 : i]]
    if _IS.isdisjoint(words) or "be" in words or i >= len(tokens) - 1 or tokens[i].word != "the":
        return NOTHING
    end = i + 1
    while end < len(tokens) and end - i < 8 and (tokens[end].item or tokens[end].word not in _ENDS):
        end += 1
    phrase = noun_phrase(tokens, i, end)
    moved = not _TURNING.isdisjoint(words)
    return (
        Relation(phrase.subject, phrase.attribute, moved=moved, stated=True)
        if phrase.attribute in ATTRIBUTES
        else NOTHING
    )


def counted(tokens: list[Token], index: int) -> str:
    """The noun that a bare number counts: "12 sealed crates" -> "crate"; "" if there is none."""
    for token in tokens[index + 1 : index + 4]:
        word = token.word
        if not word.isalpha() or word in _NEVER_NOUN:
            return ""
        if word.endswith("s") and not word.endswith("ss") and len(word) > 3:
            return word[:-1]
    return ""
