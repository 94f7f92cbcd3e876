"""What a plan's node starts from: the carried states of the nodes it depends on, merged.

The order in which they ended, or are given, makes no difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from ghostkv.protocol.facts import Sentence
from ghostkv.protocol.payload import Cursor, merge
from ghostkv.protocol.transition import Memory
from ghostkv.session.chain import Carried


def merge_carried(states: Iterable[Carried], base: Carried, node: int, budget: int) -> Carried:
    """What node `node` starts from, given the final states of all nodes before it in the graph.

    `base` is what the turn starts from. Payloads are merged within `budget` bytes, sentences are united by their place
    in the document, and penalties count what each of those nodes generated once. The node's archive begins empty: token
    positions in it are the node's own.
    """
    by_node = {state.cursor.node: state for state in states}
    ordered = [by_node[index] for index in sorted(by_node)]
    payload = base.memory.payload
    if ordered:
        merged = merge((payload.payload, *(state.memory.payload.payload for state in ordered)))
        payload = replace(merged, openings=(), previous=payload.digest).within(budget)
    counts = Counter[int]()
    for state in ordered:
        counts.update(state.memory.archive.ids)
    return Carried(
        state=replace(base.state, counts=tuple(sorted(counts.items()))),
        memory=Memory(payload, base.memory.archive, base.memory.index.append(_generated(base, ordered))),
        open_text=replace(base.open_text, reader=replace(base.open_text.reader, node=node)),
        cursor=Cursor(base.cursor.message, node),
    )


def _generated(base: Carried, states: Iterable[Carried]) -> list[Sentence]:
    """Every sentence that the nodes wrote, once, in document order."""
    known = len(base.memory.index.sentences)
    found = {sentence.position: sentence for state in states for sentence in state.memory.index.sentences[known:]}
    return [found[position] for position in sorted(found)]
