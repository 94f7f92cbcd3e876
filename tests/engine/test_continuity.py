"""A boundary leaves no trace: the same ids, draws and text with and without it, against an oracle without an engine."""

from __future__ import annotations

import codecs
from collections import Counter
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import (
    BoundaryRule,
    ByteDetokenizer,
    EndRule,
    FixedResidency,
    ScriptedRunner,
    StringRule,
    VirtualClock,
    history_script,
)
from ghostkv.engine.admission import Limits
from ghostkv.engine.engine import Engine
from ghostkv.engine.randomness import uniform
from ghostkv.engine.scheduler import Scheduler
from ghostkv.kv.pool import BlockPool
from ghostkv.request import Decision, FinishReason, GenerationState, Rule, Sampling, SegmentRequest
from ghostkv.step import Draw

EMOJI = "🌋".encode()
# Single bytes of an emoji, words that straddle the stop string "abca" in several ways, and an end token (7).
WORDS = {0: b"a", 1: b"b", 2: b"ca", 3: b"ab", 4: EMOJI[:1], 5: EMOJI[1:3], 6: EMOJI[3:], 7: b""}
STOP, END = "abca", 7
SCRIPT = history_script(len(WORDS))


@dataclass(frozen=True)
class Outcome:
    ids: tuple[int, ...]
    text: str
    reason: FinishReason
    draws: tuple[tuple[float, tuple[int, ...], tuple[tuple[int, int], ...] | None], ...]


def show(draw: Draw) -> tuple[float, tuple[int, ...], tuple[tuple[int, int], ...] | None]:
    return draw.uniform, draw.masked, None if draw.counts is None else tuple(sorted(draw.counts.items()))


def oracle(prompt: tuple[int, ...], sampling: Sampling, client_ids: frozenset[int], limit: int) -> Outcome:
    """Generate with everything recomputed from scratch at each token."""
    ids: list[int] = []
    draws = []
    while True:
        draw = Draw(
            sampling,
            0.0 if sampling.temperature == 0 else uniform(sampling.seed, sampling.choice, sampling.node, len(ids)),
            sampling.terminators if len(ids) < sampling.min_tokens else (),
            client_ids,
            Counter(ids) if sampling.penalised else None,
        )
        draws.append(show(draw))
        ids.append(SCRIPT((*prompt, *ids), draw))
        data = b"".join(WORDS[token] for token in ids)
        complete = codecs.getincrementaldecoder("utf-8")("replace").decode(data)
        if STOP in complete:
            return Outcome(tuple(ids), complete[: complete.index(STOP)], FinishReason.STOP, tuple(draws))
        if ids[-1] == END or len(ids) == limit:
            reason = FinishReason.STOP if ids[-1] == END else FinishReason.LENGTH
            return Outcome(tuple(ids), data.decode("utf-8", "replace"), reason, tuple(draws))


def through_engine(
    prompt: tuple[int, ...],
    sampling: Sampling,
    client_ids: frozenset[int],
    limit: int,
    residency: FixedResidency,
    boundaries: frozenset[int],
    step_tokens: int,
) -> tuple[Outcome, int]:
    """Run as a chain of requests, each one's prompt the whole history; returns (outcome, number of flushes)."""
    clock, pool = VirtualClock(), BlockPool(16)
    draws = []

    def script(history: tuple[int, ...], draw: Draw) -> int:
        draws.append(show(draw))
        return SCRIPT(history, draw)

    limits = Limits(max_context=256, max_sequences=1, step_tokens=step_tokens)
    engine = Engine(Scheduler(pool, limits, ByteDetokenizer(WORDS)), ScriptedRunner(16, script, clock), clock)
    rules: tuple[Rule, ...] = (EndRule(END), BoundaryRule(boundaries), StringRule(STOP))
    state = GenerationState(client_ids=client_ids, rules=rules)
    ids: list[int] = []
    text, flushes = "", 0
    while True:
        remaining = limit - len(ids)
        engine.add(SegmentRequest("r", (*prompt, *ids), sampling, state, residency, remaining))
        while not engine.idle:
            for delta in engine.step():
                ids += [token.id for token in delta.tokens]
                text += delta.text
        engine.step()
        assert delta.finish is not None and pool.referenced == 0
        if delta.finish.reason is not FinishReason.FLUSH:
            return Outcome(tuple(ids), text, delta.finish.reason, tuple(draws)), flushes
        state = delta.finish.state
        flushes += 1


@settings(max_examples=400, deadline=None)
@given(
    prompt=st.lists(st.integers(0, 3), min_size=1, max_size=40).map(tuple),
    limit=st.integers(1, 60),
    seed=st.integers(0, 2**32),
    temperature=st.sampled_from([0.0, 1.0]),
    penalty=st.sampled_from([0.0, 0.5]),
    min_tokens=st.integers(0, 30),
    boundaries=st.frozensets(st.integers(1, 60), max_size=12),
    decision=st.sampled_from(Decision),
    block=st.one_of(st.none(), st.integers(1, 20)),
    step_tokens=st.integers(1, 40),
)
def test_boundaries_are_invisible(
    prompt: tuple[int, ...],
    limit: int,
    seed: int,
    temperature: float,
    penalty: float,
    min_tokens: int,
    boundaries: frozenset[int],
    decision: Decision,
    block: int | None,
    step_tokens: int,
) -> None:
    sampling = Sampling(
        temperature=temperature, presence_penalty=penalty, min_tokens=min_tokens, terminators=(END,), seed=seed
    )
    client_ids = frozenset(prompt[:2])
    expected = oracle(prompt, sampling, client_ids, limit)
    residency = FixedResidency(decision, block)
    outcome, _ = through_engine(prompt, sampling, client_ids, limit, residency, boundaries, step_tokens)
    assert outcome == expected


def test_the_property_meets_what_it_is_about() -> None:
    """Stop strings, half characters and min_tokens do straddle boundaries in runs like those above."""
    every = frozenset(range(1, 61))
    stops = halves = masked = flushes = 0
    for seed in range(300):
        sampling = Sampling(seed=seed, min_tokens=10, terminators=(END,))
        outcome, flushed = through_engine(
            (0, 1), sampling, frozenset(), 30, FixedResidency(Decision.FLUSH), every, step_tokens=8
        )
        assert outcome == oracle((0, 1), sampling, frozenset(), 30)
        stops += outcome.reason is FinishReason.STOP and outcome.ids[-1] != END
        halves += "🌋" in outcome.text
        masked += len(outcome.ids) > 10
        flushes += flushed
    assert stops > 10 and halves > 5 and masked > 10 and flushes > 1000
