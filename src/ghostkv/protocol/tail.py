"""Chooses the tail: the end of the open answer that the next segment's prompt repeats, so that it goes on from there.

It works on ids and their bytes; nothing is tokenised. It does not decide what else is carried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ghostkv.protocol.lines import Opening
from ghostkv.text.sentences import sentence_starts

TokenBytes = Callable[[int], bytes]
"""Id -> the exact bytes it stands for; empty for special tokens."""


def choose_tail(
    ids: Sequence[int], token_bytes: TokenBytes, limit: int, openings: Sequence[Opening] = ()
) -> tuple[int, ...]:
    """At most `limit` ids: the opening lines of what is open, then the last of `ids` from a good place on.

    `ids` is the answer so far, `openings` what is open at its end (indices into `ids`, outermost first). The tail
    starts at a sentence, else a line, else a word, of which the first counts that leaves at least half of the room: a
    start near the end would throw away what continues best. Code has no sentences. It always starts at a whole
    character. Opening lines before the start are repeated; one with which they would take more than half of `limit` is
    left out.
    """
    kept = _affordable(openings, limit // 2)
    code = any(opening.kind == "fence" for opening in openings)
    lead: tuple[int, ...] = ()
    while True:
        start = _start(ids, token_bytes, limit - len(lead), code=code)
        needed = _lines_before(ids, kept, start)
        # A shorter tail can leave more lines behind, so room is made until it suffices; it grows to limit // 2 at most.
        if len(needed) <= len(lead) or len(needed) + len(ids) - start <= limit:
            return (*needed, *ids[start:])
        lead = needed


def _affordable(openings: Sequence[Opening], room: int) -> list[Opening]:
    kept = []
    for opening in openings:
        size = opening.last + 1 - opening.first
        if size <= room:
            kept.append(opening)
            room -= size
    return kept


def _lines_before(ids: Sequence[int], openings: Sequence[Opening], start: int) -> tuple[int, ...]:
    """The ids before `start` of the opening lines; one line can open two structures and comes once."""
    lead: list[int] = []
    done = 0
    for opening in openings:
        stop = min(opening.last + 1, start)
        lead += ids[max(opening.first, done) : stop]
        done = max(done, stop)
    return tuple(lead)


def _start(ids: Sequence[int], token_bytes: TokenBytes, room: int, *, code: bool) -> int:
    """Index of the first tail token."""
    if len(ids) <= room:
        return 0
    # As many tokens again before the window tell whether a sentence starts at its edge.
    begin = max(0, len(ids) - 2 * room)
    pieces = [token_bytes(token_id) for token_id in ids[begin:]]
    first, last = len(ids) - room - begin, len(pieces) - (room + 1) // 2
    whole = [i for i in range(first, len(pieces)) if not pieces[i] or not 0x80 <= pieces[i][0] < 0xC0]
    early = [i for i in whole if i <= last]
    sentences = [] if code else _sentences(pieces, early)
    for starts in (sentences, _lines(pieces, early), _words(pieces, early), whole):
        if starts:
            return begin + starts[0]
    return len(ids)


def _sentences(pieces: Sequence[bytes], candidates: Sequence[int]) -> list[int]:
    """Candidates whose token, white space at its start aside, begins a sentence."""
    text = _text(pieces)
    starts = set(sentence_starts(text))
    found = []
    for i in candidates:
        offset = len(_text(pieces[:i]))
        blank = len(text[offset:]) - len(text[offset:].lstrip())
        # The white space must be this token's own: a token that is all white space leaves the start to the next.
        if offset + blank in starts and blank < max(1, len(_text(pieces[i : i + 1]))):
            found.append(i)
    return found


def _lines(pieces: Sequence[bytes], candidates: Sequence[int]) -> list[int]:
    return [i for i in candidates if pieces[i - 1].endswith(b"\n")]


def _words(pieces: Sequence[bytes], candidates: Sequence[int]) -> list[int]:
    return [i for i in candidates if pieces[i][:1].isspace() or pieces[i - 1][-1:].isspace()]


def _text(pieces: Sequence[bytes]) -> str:
    return b"".join(pieces).decode("utf-8", errors="replace")
