"""What a segment left, folded again from its recorded tokens: no engine, and no re-reading of the client's messages.

The engine's own path through these tokens is `engine.sequence`; both feed the same gate and rules, so they agree to
the bit on one manifest. Where text and tokens of a record differ nothing is guessed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ghostkv.engine.text_gate import TextGate
from ghostkv.errors import RecordRefused
from ghostkv.request import Decision, Finish, FinishReason, GenerationState, Stop
from ghostkv.session.chain import Carried, Chain
from ghostkv.session.turn import Event, Output, SegmentRecord
from ghostkv.text.detokenizer import Detokenizer


def fed(state: GenerationState, output: Output, detokenizer: Detokenizer) -> GenerationState | None:
    """The state after an output; None if the answer ended in it, or if its text is not that of its tokens."""
    gate, counts, text = TextGate(detokenizer, state), Counter(dict(state.counts)), ""
    for token in output.tokens:
        if isinstance(gate.feed(token.id), Stop):
            return None
        text += gate.release()
        counts[token.id] += 1
    if text != output.text:
        return None
    return replace(
        state,
        emitted=state.emitted + len(output.tokens),
        counts=tuple(sorted(counts.items())),
        undecoded=gate.undecoded,
        held=gate.held,
        rules=gate.rules,
    )


def flushed(event: Event) -> bool:
    """Whether the event is the end of a segment after which everything was released."""
    mark = event.boundary if isinstance(event, SegmentRecord) else None
    return mark is not None and mark.decision is Decision.FLUSH


def carried_after(chain: Chain, events: Sequence[Event], detokenizer: Detokenizer) -> Carried | None:
    """What the last flushed boundary among an answer's first `events` left; None where nothing was flushed.

    Raises RecordRefused where events and rules do not fit together.
    """
    last = max((index for index, event in enumerate(events, 1) if flushed(event)), default=0)
    carried, outputs = chain.begin(), list[Output]()
    for event in events[:last]:
        if isinstance(event, Output):
            outputs.append(event)
        elif isinstance(event, SegmentRecord):
            carried = _closed(chain, carried, outputs, event, detokenizer)
            outputs = []
    return carried if last else None


def _closed(
    chain: Chain, carried: Carried, outputs: Iterable[Output], record: SegmentRecord, detokenizer: Detokenizer
) -> Carried:
    assembled, state, ids = chain.assemble(carried), carried.state, list[int]()
    for output in outputs:
        after = fed(state, output, detokenizer)
        if after is None:
            raise RecordRefused(f"segment {record.index} of the record does not have the text of its tokens")
        state = after
        ids += [token.id for token in output.tokens]
    finish = Finish(FinishReason.FLUSH, state, record.usage)
    return chain.merge(carried, chain.extract(carried, ids, finish), finish, assembled)
