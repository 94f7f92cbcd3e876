"""The reference: every subject alone on an engine of its own, nothing cached, nothing guessed.

Under `auto` the pool decides, so its reference is made where it must: among others in a pool that is too small. What it
decided then is recorded, and every change below replays that record: decisions are an input, and all else must not be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ghostkv.session.replaying import flushes_of
from ghostkv.session.turn import Turn
from ghostkv.step import blocks_of
from ghostkv.verify.rig import Rig
from ghostkv.verify.seen import Seen

_CROWD = 6  # answers beside each subject under `auto`
_FITTING = (2.5, 2.0, 3.0, 1.5)  # answers that fit, tried until one of the subject's boundaries is flushed


@dataclass(frozen=True, slots=True)
class Reference:
    """A subject and what was seen of it."""

    turn: Turn  # with the record of its decisions, if it took any that depend on more than the request
    seen: Seen
    flushes: tuple[int, ...] | None = None  # output tokens before each; None under other residencies


def references(rig: Rig, tokens: int, announce: Callable[[str], None]) -> list[Reference]:
    """All of them."""
    found = []
    for turn in rig.subjects(tokens):
        announce(f"reference: {turn.id}")
        found.append(_pressed(rig, turn) if turn.residency == "auto" else _alone(rig, turn))
    return found


def _alone(rig: Rig, turn: Turn) -> Reference:
    with rig.opened() as engine:
        return Reference(turn, engine.seen(turn)[0])


def _pressed(rig: Rig, turn: Turn) -> Reference:
    with rig.opened() as engine:
        prompt = engine.worker.prompt_tokens(turn)
    one = blocks_of(prompt + turn.max_tokens)
    for fitting in _FITTING:
        found = _among_others(rig, turn, int(fitting * one))
        if found.flushes:
            break
    return found


def _among_others(rig: Rig, turn: Turn, blocks: int) -> Reference:
    with rig.opened(blocks=blocks, max_wait_s=0.0) as engine:
        crowd = rig.others(engine.worker, _CROWD, turn.max_tokens, "auto")
        events = engine.together([replace(turn, seeded=False), *crowd])[0]
        seen = Seen.of(events, [engine.sight.taken(turn.id)])
    flushes = flushes_of(events)
    return Reference(replace(turn, replay=flushes), seen, flushes)
