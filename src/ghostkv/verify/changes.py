"""The changes, one at a time: each takes a reference's request through something that must not change its bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ghostkv.model.threads import available_threads
from ghostkv.session.turn import SegmentRecord
from ghostkv.step import BLOCK_TOKENS, blocks_of
from ghostkv.verify.child import other_process
from ghostkv.verify.moves import forked_off, moved, restarted
from ghostkv.verify.reference import Reference
from ghostkv.verify.rig import Open, Rig, first_segment
from ghostkv.verify.seen import Seen

_OTHERS = 9
_CHUNK = 7  # tokens


class Unavailable(Exception):
    """This change cannot be made; the message says why."""


@dataclass(frozen=True, slots=True)
class Changed:
    """What was seen, and what shows that the change took place."""

    seen: Seen
    evidence: str


Change = Callable[[Rig, Sequence[Reference]], list[Changed]]
"""Of the references of one residency, in order. Raises Unavailable."""


def _batch(rig: Rig, reference: Reference) -> Changed:
    with rig.opened() as engine:
        others = rig.others(engine.worker, _OTHERS, reference.turn.max_tokens, "segment")
        turns = [*others[:4], reference.turn, *others[4:]]
        events = engine.together(turns)[4]
        most = max(step.running for step in engine.steps)
        seen = Seen.of(events, [engine.sight.taken(reference.turn.id)])
    if most < _OTHERS:
        raise Unavailable(f"only {most} answers ran at a time")
    return Changed(seen, f"{_OTHERS} tenants beside it, up to {most} answers a step")


def _chunks(rig: Rig, reference: Reference) -> Changed:
    with rig.opened(step_tokens=_CHUNK, max_sequences=1) as engine:
        seen, events = engine.seen(reference.turn)
    prompt = first_segment(events).usage.prompt_tokens
    return Changed(seen, f"{prompt} prompt tokens in {math.ceil(prompt / _CHUNK)} steps")


def _hit(rig: Rig, reference: Reference) -> Changed:
    with rig.opened() as engine:
        engine.seen(replace(reference.turn, id="warm"))
        seen, events = engine.seen(reference.turn)
    cached = sum(event.usage.cached_tokens for event in events if isinstance(event, SegmentRecord))
    if not first_segment(events).usage.cached_tokens:
        raise Unavailable("the prompt fills no block")
    return Changed(seen, f"{cached} prompt tokens found in the index")


def _evicted(rig: Rig, reference: Reference) -> Changed:
    with rig.opened() as engine:
        prompt = engine.worker.prompt_tokens(reference.turn)
    blocks = blocks_of(prompt + reference.turn.max_tokens) + 2
    with rig.opened(blocks=blocks) as engine:
        engine.seen(replace(reference.turn, id="before"))
        worker = engine.worker
        context = worker.backend.capabilities().max_context
        length = min(blocks * BLOCK_TOKENS, context) - 2
        for turn in range(math.ceil(blocks * BLOCK_TOKENS / length) + 1):
            ids = tuple((7 * at + 131 * turn) % 200 + 20 for at in range(length))
            flood = replace(reference.turn, id=f"flood{turn}", messages=(), prompt=ids, max_tokens=1, replay=None)
            engine.seen(replace(flood, residency="full", tenant="flood"))
        seen, events = engine.seen(reference.turn)
    if first_segment(events).usage.cached_tokens:
        raise Unavailable("a block of it was left in the pool")
    return Changed(seen, f"computed, flooded out of {blocks} blocks, computed again")


def _pause(rig: Rig, reference: Reference) -> Changed:
    with rig.opened() as engine:
        engine.seen(replace(reference.turn, id="before", max_tokens=1, replay=None))
        call = engine.asked[-1]
        engine.worker.backend.pause(call, call.prompt)
        engine.together(rig.others(engine.worker, 2, reference.turn.max_tokens, "segment"))
        kept = _paused_blocks(engine)
        seen, events = engine.seen(reference.turn)
    if not kept or not first_segment(events).usage.cached_tokens:
        raise Unavailable("nothing was kept: the prompt fills no block")
    return Changed(seen, f"{kept} blocks kept while others were answered; dropped ones are computed again, as above")


def _paused_blocks(engine: Open) -> int:
    return engine.worker.stats().paused_blocks if engine.worker.stats else 0


def _threads(rig: Rig, references: Sequence[Reference]) -> list[Changed]:
    usual = rig.config.threads or available_threads()
    other = 1 if usual > 1 else 2
    if other > available_threads():
        raise Unavailable("there is one core")
    single = Rig(rig.path, replace(rig.config, threads=other), lambda _: None)
    found = []
    for reference in references:
        with single.opened() as engine:
            found.append(Changed(engine.seen(reference.turn)[0], f"{other} instead of {usual}, the model loaded again"))
    return found


def _retried(rig: Rig, reference: Reference) -> Changed:
    after = reference.turn.max_tokens // 2
    with rig.opened() as engine:
        engine.part(replace(reference.turn, id="first"), after)
        seen, _ = engine.seen(reference.turn)
    return Changed(seen, f"cancelled after {after} tokens, then asked again")


def _replayed(rig: Rig, reference: Reference) -> Changed:
    if reference.flushes is None:
        raise Unavailable(f"under {reference.turn.residency!r} nothing is decided by more than the request")
    if not reference.flushes:
        raise Unavailable("nothing was flushed although the pool was too small")
    with rig.opened() as engine:
        seen, _ = engine.seen(reference.turn)
    at = ", ".join(map(str, reference.flushes))
    return Changed(seen, f"alone in a roomy pool; flushed after {at} tokens, as among others")


def _guessed(rig: Rig, reference: Reference) -> Changed:
    with rig.opened(speculation="lookup") as engine:
        seen, _ = engine.seen(reference.turn)
        stats = engine.worker.stats() if engine.worker.stats else None
    accepted, drafted = (stats.accepted_tokens, stats.drafted_tokens) if stats else (0, 0)
    return Changed(seen, f"{drafted} tokens guessed, {accepted} of them used")


def _process(rig: Rig, references: Sequence[Reference]) -> list[Changed]:
    seen, said = other_process(rig, references)
    return [Changed(each, said) for each in seen]


def _each(change: Callable[[Rig, Reference], Changed | tuple[Seen, str]]) -> Change:
    def changed(rig: Rig, references: Sequence[Reference]) -> list[Changed]:
        found = [change(rig, reference) for reference in references]
        return [each if isinstance(each, Changed) else Changed(*each) for each in found]

    return changed


CHANGES: dict[str, Change] = {
    "batch and co-tenants": _each(_batch),
    "prefill chunking": _each(_chunks),
    "prefix hit": _each(_hit),
    "eviction and recompute": _each(_evicted),
    "tool pause": _each(_pause),
    "threads": _threads,
    "cancel and retry": _each(_retried),
    "restart from the store": _each(restarted),
    "migration": _each(moved),
    "fork": _each(forked_off),
    "replay of recorded decisions": _each(_replayed),
    "speculation": _each(_guessed),
    "another process and hash seed": _process,
}
"""By name, in the order of the table."""
