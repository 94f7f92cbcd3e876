"""An answer as a chain of segments, in token counts: the stand-in for the continuity loop.

Prompts have the lengths that the loop assembles by the policy's own constants: the head, and after a flush as much of
what was generated as the allowance holds. Nothing is read and nothing is chosen, for there is no text; a test compares
with the loop itself. Boundaries fall a little after the target, as sentences end.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from ghostkv.request import (
    CONTINUE,
    Boundary,
    Finish,
    FinishReason,
    GenerationState,
    Rule,
    Sampling,
    SegmentRequest,
    Stop,
    Token,
    Verdict,
)
from ghostkv.residency import Policy
from ghostkv.sim.workload import Job
from ghostkv.step import Row


@dataclass(frozen=True, slots=True)
class Course:
    """How one answer goes, whoever decodes it: where sentences end after a target, and where all ends."""

    seed: int
    end: int  # output tokens; where max_tokens is no more, that ends it
    target: int  # of a segment; 0: no boundaries
    cap: int
    at: int = 0  # output tokens
    boundary: int = 0  # output tokens at the next boundary

    @property
    def held(self) -> int:
        """None: there is no text."""
        return 0

    def feed(self, token_id: int, piece: str) -> tuple[Rule, Verdict]:
        """Count."""
        at = self.at + 1
        if at == self.end:
            return self, Stop(FinishReason.STOP)
        if at != self.boundary:
            return Course(self.seed, self.end, self.target, self.cap, at, self.boundary), CONTINUE
        return self.begun(at), Boundary("sentence")

    def begun(self, at: int) -> Course:
        """With a segment that begins after `at` tokens."""
        ahead = 0
        if self.target:
            ahead = min(self.cap, self.target + zlib.crc32(b"%d %d" % (self.seed, at)) % 31)
        return Course(self.seed, self.end, self.target, self.cap, at, at + ahead)


class SimSession:
    """One job under one policy."""

    def __init__(self, index: int, job: Job, policy: Policy, context: int, ids: Sequence[int] = ()) -> None:
        """`ids` are those of prompt and output; where none are given, all it says is `index`, and no prompts share."""
        self.job = job
        self.segments = 0
        self._policy = policy
        self._context = context
        base = 1_000_000 + index * 10_000
        self._ids = tuple(ids) or (*range(base, base + job.prompt), *(index,) * job.output)
        self._prompt = self._ids[: job.prompt]
        self._said = 0

    def first(self) -> SegmentRequest:
        """The first segment."""
        budget = self._policy.budget
        end = self.job.output if self.job.output < self.job.max_tokens else 0
        target, cap = (0, 0) if budget is None else (budget.target, budget.cap)
        course = Course(zlib.crc32(self.job.name.encode()), end, target, cap)
        return self._request(self._prompt, GenerationState(rules=(course.begun(0),)))

    def next(self, finish: Finish) -> SegmentRequest:
        """The segment after one that was flushed."""
        state = finish.state
        rules = tuple(rule.begun(rule.at) if isinstance(rule, Course) else rule for rule in state.rules)
        budget, carried = self._policy.budget, 0
        if budget is not None:
            left = self.job.max_tokens - state.emitted
            allowed = budget.allowance(head=self.job.prompt, remaining=left, context=self._context)
            carried = max(0, min(allowed - self.job.prompt, state.emitted))
        end = self.job.prompt + state.emitted
        prompt = self._prompt + self._ids[end - carried : end]
        return self._request(prompt, GenerationState(emitted=state.emitted, rules=rules))

    def choose(self, row: Row) -> tuple[Token, ...]:
        """What it says next; guesses are not made here, so a row draws one token."""
        at, self._said = self.job.prompt + self._said, self._said + len(row.draws)
        return tuple(map(Token, self._ids[at : at + len(row.draws)]))

    def _request(self, prompt: tuple[int, ...], state: GenerationState) -> SegmentRequest:
        budget, remaining = self._policy.budget, self.job.max_tokens - state.emitted
        flushed = 0
        if budget is not None and budget.whole:
            flushed = budget.flushed(
                head=self.job.prompt, emitted=state.emitted, remaining=remaining, context=self._context
            )
        self.segments += 1
        return SegmentRequest(
            id=f"{self.job.name}.{self.segments - 1}",
            prompt=prompt,
            sampling=Sampling(temperature=0.0),
            state=state,
            residency=self._policy,
            remaining=remaining,
            account=self.job.tenant,
            program=self.job.program,
            flushed_prompt=flushed,
            repeatable=self.job.repeatable,
        )
