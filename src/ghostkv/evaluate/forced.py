"""Drives a chain with answer ids that are given instead of decoded.

The engine's commit without an engine: rules, reservation, boundaries and generation state move exactly as if a model
had chosen these ids, so an answer of any length and any number of flushes exists without decoding it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ghostkv.engine.text_gate import Detokenizer, TextGate
from ghostkv.protocol.render import Assembled
from ghostkv.request import (
    Boundary,
    BoundaryView,
    Continue,
    Decision,
    Finish,
    FinishReason,
    GenerationState,
    SegmentUsage,
    Stop,
)
from ghostkv.session.chain import Carried, Chain


@dataclass(frozen=True, slots=True)
class ForcedSegment:
    """One segment of a forced answer."""

    assembled: Assembled  # its prompt
    ids: tuple[int, ...]  # what was "generated" in it; may be empty where nothing is left after a boundary
    carried: Carried  # what the next segment starts from; of an open segment, what this one started from
    reason: FinishReason | None  # None: the ids ended inside this segment, which is still open


def forced(chain: Chain, ids: Sequence[int], detokenizer: Detokenizer) -> Iterator[ForcedSegment]:
    """The segments of `chain` whose answer is `ids`. The last one is open, or ended by a rule or by max_tokens.

    A policy that looks at the pool or at the load sees an empty one.
    """
    carried = chain.begin()
    index = at = 0
    while True:
        segment = _segment(chain, index, carried, ids[at:], detokenizer)
        yield segment
        if segment.reason is not FinishReason.FLUSH:
            return
        carried = segment.carried
        at += len(segment.ids)
        index += 1


def _segment(chain: Chain, index: int, carried: Carried, ids: Sequence[int], detokenizer: Detokenizer) -> ForcedSegment:
    assembled = chain.assemble(carried)
    request = chain.request(index, assembled, carried)
    gate = TextGate(detokenizer, request.state)
    reserved = request.residency.reserve(request.remaining)
    for generated, token_id in enumerate(ids, 1):
        verdict = gate.feed(token_id)
        reason: FinishReason | None = None
        if isinstance(verdict, Stop):
            reason = verdict.reason
            gate.close(verdict.drop)
        elif generated == request.remaining:
            reason = FinishReason.LENGTH
            gate.close(0)
        else:
            gate.release()
            if not isinstance(verdict, Continue) or generated == reserved:
                kind = verdict.kind if isinstance(verdict, Boundary) else "cap"
                left = request.remaining - generated
                resident = len(request.prompt) + generated - 1
                view = BoundaryView(kind, resident, generated, left, free_blocks=0, waiting=0)
                if request.residency.at_boundary(view) is Decision.FLUSH:
                    reason = FinishReason.FLUSH
                elif generated == reserved:
                    reserved += request.residency.reserve(left)
        if reason is not None:
            taken = tuple(ids[:generated])
            usage = SegmentUsage(len(request.prompt), 0, generated, len(request.prompt) + generated - 1, 0.0, 0.0, 0.0)
            finish = Finish(reason, _state(request.state, taken, gate), usage)
            transition = chain.extract(carried, taken, finish)
            return ForcedSegment(assembled, taken, chain.merge(carried, transition, finish, assembled), reason)
    return ForcedSegment(assembled, tuple(ids), carried, None)


def _state(before: GenerationState, ids: Sequence[int], gate: TextGate) -> GenerationState:
    counts = Counter(dict(before.counts))
    counts.update(ids)
    return replace(
        before,
        emitted=before.emitted + len(ids),
        counts=tuple(sorted(counts.items())),
        undecoded=gate.undecoded,
        held=gate.held,
        rules=gate.rules,
    )
