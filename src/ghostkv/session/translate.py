"""Carries an open answer from one vocabulary to another: text crosses, token ids do not.

Pure. Payload, index, reader and cursor are text and stay as they are. Rebuilt for the new ids are the archive, the
counts behind the penalties and what the boundary rule knows of the answer's structure. Stop strings look at text and
count the session's own tokens, so they go on unchanged, and so does what they hold back.
"""

from __future__ import annotations

import codecs
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ghostkv.protocol.render import Encode
from ghostkv.protocol.rules import BoundaryRule, StopStrings
from ghostkv.protocol.tail import TokenBytes
from ghostkv.request import Rule
from ghostkv.session.chain import Carried


def translated(
    now: Carried, left: Carried, segments: Sequence[str], encode: Encode, token_bytes: TokenBytes
) -> Carried:
    """`now` as a worker with another vocabulary takes it on, which must not be inside a character.

    `left` is what was carried when the answer last stood in that vocabulary (what the turn starts from there, if it
    never did); `segments` are the texts of the segments closed since then, and `encode` takes text that follows other
    text. So an answer that goes back and forth is encoded once, and a vocabulary's own ids stay as it generated them.
    """
    archive, counts, rules = left.memory.archive, Counter(dict(left.state.counts)), left.state.rules
    for text in segments:
        ids = tuple(encode(text))
        archive = archive.append(ids)
        counts.update(ids)
        rules = tuple(_replayed(rule, ids, token_bytes) if isinstance(rule, BoundaryRule) else rule for rule in rules)
    stops = next((rule for rule in now.state.rules if isinstance(rule, StopStrings)), None)
    return replace(
        now,
        state=replace(
            now.state,
            client_ids=left.state.client_ids,
            counts=tuple(sorted(counts.items())),
            rules=tuple(stops if stops and isinstance(rule, StopStrings) else rule for rule in rules),
        ),
        memory=replace(now.memory, archive=replace(archive, sentences=now.memory.archive.sentences)),
        block=left.block,  # what the prefix cache there may still know
    )


def _replayed(rule: BoundaryRule, ids: Sequence[int], token_bytes: TokenBytes) -> BoundaryRule:
    """The rule after a segment of these ids, whose own boundaries are past."""
    fed: Rule = rule
    for token_id, piece in _pieces(ids, token_bytes):
        fed, _ = fed.feed(token_id, piece)
    return fed.next_segment() if isinstance(fed, BoundaryRule) else rule


def _pieces(ids: Sequence[int], token_bytes: TokenBytes) -> Iterator[tuple[int, str]]:
    """Each id with the text that it completes."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for token_id in ids:
        yield token_id, decoder.decode(token_bytes(token_id))
