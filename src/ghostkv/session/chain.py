"""The decisions of a turn without its I/O: what each segment asks for, and what is carried from one to the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from ghostkv.backends.base import Capabilities
from ghostkv.errors import InvariantViolation
from ghostkv.protocol.archive import Archive
from ghostkv.protocol.render import Assembled, Template, head, render, render_completion
from ghostkv.protocol.rules import BoundaryRule, EndOfSequence, StopStrings, next_segment, openings
from ghostkv.protocol.segmenter import SegmentBoundary
from ghostkv.protocol.tail import TokenBytes, choose_tail
from ghostkv.request import Finish, FinishReason, GenerationState, Message, Rule, SegmentRequest, SegmentUsage
from ghostkv.residency import Policy, policy
from ghostkv.session.fit import allowance, check_turn
from ghostkv.session.turn import Turn


@dataclass(frozen=True, slots=True)
class TurnContext:
    """What every turn on one model shares."""

    template: Template
    """The model's chat template."""
    token_bytes: TokenBytes
    """The exact bytes of a token."""
    eos_ids: tuple[int, ...]
    """Ids that end an answer. They never enter tail or archive, and under ignore_eos they do not end it."""
    clock: Callable[[], float]
    """Seconds, monotonic."""
    boundary: BoundaryRule | None = None
    """A boundary rule to use under every policy, in place of the policy's own."""
    policies: Callable[[str], Policy] = policy
    """Name -> residency policy."""


@dataclass(frozen=True, slots=True)
class Carried:
    """What outlives a segment."""

    state: GenerationState
    archive: Archive = field(default=Archive())
    tail: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Chain:
    """One turn, checked and ready to run."""

    turn: Turn
    context: TurnContext
    capabilities: Capabilities
    policy: Policy
    template: Template
    prompt: tuple[int, ...]  # the client's whole prompt
    head_tokens: int  # the part of it that stands in every segment

    @classmethod
    def of(cls, turn: Turn, context: TurnContext, capabilities: Capabilities) -> Chain:
        """Raises InvalidRequest, ContextLengthExceeded among them, for a turn that could not run to its end."""

        # A turn renders the same few selections of its messages at every boundary.
        @cache
        def memo(messages: tuple[Message, ...]) -> tuple[int, ...]:
            return tuple(context.template(messages))

        prompt = turn.prompt or memo(turn.messages)
        head_tokens = len(turn.prompt or memo(head(turn.messages)))
        chosen = context.policies(turn.residency)
        sizes = {"prompt": len(prompt), "head": head_tokens, "max_tokens": turn.max_tokens}
        check_turn(chosen, capabilities, **sizes, param="prompt" if turn.prompt else "messages")
        return cls(turn, context, capabilities, chosen, lambda messages: memo(tuple(messages)), prompt, head_tokens)

    def begin(self) -> Carried:
        """What the first segment starts from."""
        return Carried(GenerationState(client_ids=frozenset(self.prompt), rules=self._rules()))

    def assemble(self, carried: Carried) -> Assembled:
        """The prompt of the next segment."""
        if self.turn.prompt:
            return render_completion(self.turn.prompt, tail=carried.tail)
        budget, allowed = self.policy.budget, None
        if budget is not None:
            remaining = self.turn.max_tokens - carried.state.emitted
            allowed = allowance(budget, self.capabilities, head=self.head_tokens, remaining=remaining)
        return render(self.turn.messages, self.template, tail=carried.tail, allowance=allowed)

    def request(self, index: int, assembled: Assembled, carried: Carried) -> SegmentRequest:
        """Segment `index` as the engine sees it."""
        return SegmentRequest(
            id=f"{self.turn.id}.{index}",
            prompt=assembled.ids,
            sampling=replace(self.turn.sampling, terminators=self._terminators()),
            state=carried.state,
            residency=self.policy,
            remaining=self.turn.max_tokens - carried.state.emitted,
            tenant=self.turn.tenant,
        )

    def extract(self, carried: Carried, ids: Sequence[int], finish: Finish) -> Carried:
        """Close a segment that generated `ids`: archive them and, where the answer goes on, choose the tail."""
        ends = self.context.eos_ids
        archive = carried.archive.append([token_id for token_id in ids if token_id not in ends])
        if finish.reason is not FinishReason.FLUSH:
            return Carried(finish.state, archive)
        budget = self.policy.budget
        if budget is None:
            raise InvariantViolation(
                f"residency {self.policy.name!r} never flushes, but the engine flushed {self.turn.id}"
            )
        tail = choose_tail(archive.ids, self.context.token_bytes, budget.tail, openings(finish.state.rules))
        return Carried(replace(finish.state, rules=next_segment(finish.state.rules)), archive, tail)

    def live_kv_bytes(self, usage: SegmentUsage) -> int:
        """Bytes of the whole blocks that a segment's tokens filled at its end."""
        block = self.capabilities.block_tokens
        return -(-usage.resident_tokens // block) * block * self.capabilities.kv_bytes_per_token

    def _rules(self) -> tuple[Rule, ...]:
        turn, rules = self.turn, list[Rule]()
        if turn.stop:
            rules.append(StopStrings.of(turn.stop, turn.sampling.min_tokens))
        if terminators := self._terminators():
            rules.append(EndOfSequence(frozenset(terminators)))
        if (boundary := self.context.boundary or self._own_boundary()) is not None:
            rules.append(boundary)
        return tuple(rules)

    def _own_boundary(self) -> BoundaryRule | None:
        budget = self.policy.budget
        if budget is None:
            return None
        return SegmentBoundary(budget.target, budget.cap, ignored=frozenset(self.context.eos_ids))

    def _terminators(self) -> tuple[int, ...]:
        own = () if self.turn.ignore_eos else self.context.eos_ids
        return tuple(dict.fromkeys((*self.turn.stop_ids, *own)))
