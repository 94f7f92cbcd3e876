"""Where an answer that broke off goes on. It generates nothing; `loop` starts from what this says.

That is after its last flushed boundary: what a segment had generated since is generated again, which gives the same
tokens. A segment that is kept can be long, so there the tokens that were committed are prefilled again instead, and the
state after them is folded anew. A planned answer starts over: its nodes run side by side and share no boundary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ghostkv.errors import RecordRefused
from ghostkv.request import GenerationState, Grammar
from ghostkv.session.capsule import Capsule
from ghostkv.session.chain import Carried, Chain
from ghostkv.session.folding import fed, flushed
from ghostkv.session.record import SessionRecord
from ghostkv.session.start import FROM_THE_START, Start
from ghostkv.session.turn import Event, Output, SegmentRecord, Turn
from ghostkv.session.worker import Worker
from ghostkv.text.detokenizer import Detokenizer


@dataclass(frozen=True, slots=True)
class Resumed:
    """An answer that can go on."""

    turn: Turn
    record: SessionRecord  # its events up to there; what else was committed is generated again
    start: Start


def resumed(capsule: Capsule, worker: Worker, grammar: Grammar | None) -> Resumed:
    """How the capsule's answer goes on. Its deadline was another client's.

    `grammar` is compiled from its recorded request. Raises RecordRefused where capsule and model do not fit, and what
    `Chain.of` does.
    """
    answering = capsule.answering
    if answering is None or not capsule.record.running:
        raise RecordRefused("no answer was under way")
    if (grammar.digest if grammar else "") != answering.grammar:
        raise RecordRefused("the recorded request asks for another grammar")
    turn = replace(answering.turn, grammar=grammar, deadline_s=None)
    chain = Chain.of(replace(turn, plan=None), worker.context, worker.backend.capabilities())
    if chain.prompt != answering.prompt:
        raise RecordRefused("the recorded prompt is another")
    if capsule.carried is None and chain.begins_whole != answering.whole:
        held = "all" if answering.whole else "part"
        raise RecordRefused(f"it began with {held} of its prompt in a pool of another size")
    if turn.plan is not None:
        return Resumed(turn, _with_events(capsule.record, ()), FROM_THE_START)
    closed, known = _divided(capsule.record.turns[-1].events)
    records = tuple(event for event in closed if isinstance(event, SegmentRecord))
    _check(capsule.carried, records, closed)
    start = Start(capsule.carried, records)
    budget = chain.policy.budget
    if (budget is None or budget.whole) and grammar is None:
        state = capsule.carried.state if capsule.carried else chain.begin().state
        known, start = _folded(start, state, known, turn.max_tokens, Detokenizer(worker.tokenizer))
    else:
        known = ()
    return Resumed(turn, _with_events(capsule.record, (*closed, *known)), start)


def _divided(events: Sequence[Event]) -> tuple[tuple[Event, ...], tuple[Output, ...]]:
    """What came up to the last flushed boundary, and the outputs after it."""
    last = 0
    for index, event in enumerate(events, 1):
        last = index if flushed(event) else last
    return tuple(events[:last]), tuple(event for event in events[last:] if isinstance(event, Output))


def _check(carried: Carried | None, records: Sequence[SegmentRecord], closed: Sequence[Event]) -> None:
    tokens = sum(len(event.tokens) for event in closed if isinstance(event, Output))
    segments, emitted = (carried.cursor.segment, carried.state.emitted) if carried else (0, 0)
    if (segments, emitted) != (len(records), tokens):
        raise RecordRefused(
            f"its state is that after {segments} segments and {emitted} tokens, its log has {len(records)} and {tokens}"
        )


def _folded(
    start: Start, state: GenerationState, known: Sequence[Output], most: int, detokenizer: Detokenizer
) -> tuple[tuple[Output, ...], Start]:
    """The longest beginning of `known` after which something can follow, and the start after it."""
    taken: list[Output] = []
    ids: list[int] = []
    for output in known:
        after = fed(state, output, detokenizer)
        if after is None or after.emitted >= most:
            break
        state = after
        taken.append(output)
        ids += [token.id for token in output.tokens]
    kept = tuple(output.kept for output in taken if output.kept is not None)
    return tuple(taken), replace(start, ids=tuple(ids), kept=kept, state=state) if ids else start


def _with_events(record: SessionRecord, events: Sequence[Event]) -> SessionRecord:
    return record.with_last(record.turns[-1].refilled(events))
