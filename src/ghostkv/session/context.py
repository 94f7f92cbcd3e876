"""What every turn on one model shares, and the rules that follow from it for one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ghostkv.errors import InvalidRequest, Unsupported
from ghostkv.protocol.render import Encode, Renderer, Template, notes
from ghostkv.protocol.rules import BoundaryRule, EndOfSequence, StopStrings
from ghostkv.protocol.segmenter import SegmentBoundary
from ghostkv.protocol.tail import TokenBytes
from ghostkv.request import Message, Rule, Tool
from ghostkv.residency import Policy, SegmentBudget, policy
from ghostkv.residency.recorded import Recorded
from ghostkv.residency.unbroken import Unbroken
from ghostkv.session.histories import Histories
from ghostkv.session.turn import Turn

Rendering = Callable[[Sequence[Message], tuple[Tool, ...]], Sequence[int]]
"""Messages and tool definitions -> prompt ids."""


@dataclass(frozen=True, slots=True)
class TurnContext:
    """What every turn on one model shares."""

    template: Template
    """The model's chat template."""
    encode: Encode
    """Ordinary text to ids."""
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
    renderer: Renderer = notes
    """How a question shows what is carried."""
    histories: Histories = field(default_factory=Histories)
    """What earlier messages left behind."""
    tool_template: Rendering | None = None
    """The chat template with tool definitions; None: it has no place for them."""

    def template_of(self, tools: tuple[Tool, ...]) -> Template:
        """The template of a conversation that may call `tools`. Raises Unsupported where it cannot."""
        if not tools:
            return self.template
        rendering = self.tool_template
        if rendering is None:
            raise Unsupported("this model's prompts have no place for tools", param="tools")
        return lambda messages: rendering(messages, tools)


def residency_of(turn: Turn, context: TurnContext) -> Policy:
    """The policy that a turn asks for. Raises InvalidRequest for an unknown one.

    One that decides by pool and load is `full` where a flush is forbidden, and `segment` in a node of a plan, whose
    text depends on the request alone.
    """
    chosen = context.policies(turn.residency)
    if chosen.budget is None or not chosen.budget.whole:
        return chosen
    if turn.strict:
        return context.policies("full")
    return context.policies("segment") if turn.part else chosen


def policy_of(turn: Turn, context: TurnContext) -> Policy:
    """The residency of a turn: a structured answer is one segment, and a record is followed.

    Raises InvalidRequest, Unsupported among them.
    """
    chosen = residency_of(turn, context)
    if turn.replay is not None:
        return _recorded(turn, chosen, turn.replay)
    if turn.grammar is None:
        return chosen
    if chosen.visible is not None:
        raise Unsupported(
            f"residency {chosen.name!r} lets go of the beginning of a structure while it is written: choose another",
            param="ghostkv.residency",
        )
    return chosen if chosen.budget is None else Unbroken(chosen.name, replace(chosen.budget, cap=turn.max_tokens))


def _recorded(turn: Turn, chosen: Policy, flushes: tuple[int, ...]) -> Policy:
    """`chosen` with the flushes of a record. Raises InvalidRequest where there can be no such record."""
    param = "ghostkv.replay"
    if chosen.budget is None or not chosen.budget.whole:
        said = f"{turn.residency!r} under strict" if turn.strict else repr(turn.residency)
        raise InvalidRequest(
            f"replay: residency {said} takes no decisions that depend on more than the request", param=param
        )
    if turn.plan is not None or turn.grammar is not None:
        raise InvalidRequest("replay: a plan's answer and a structured one have no such decisions", param=param)
    if list(flushes) != sorted(set(flushes)) or any(not 0 <= at < max(1, turn.max_tokens) for at in flushes):
        raise InvalidRequest(
            f"replay: flushes come after 0 to {turn.max_tokens - 1} output tokens (max_tokens - 1), each once and in "
            f"order, not after {', '.join(map(str, flushes[:20]))}",
            param=param,
        )
    return Recorded(chosen.name, chosen.budget, turn.max_tokens, flushes)


def rules_of(turn: Turn, context: TurnContext, budget: SegmentBudget | None) -> tuple[Rule, ...]:
    """The rules of a turn's first segment: its stop strings, its end, and boundaries where `budget` has segments."""
    rules: list[Rule] = []
    if turn.stop:
        rules.append(StopStrings.of(turn.stop, turn.sampling.min_tokens))
    if ends := terminators(turn, context):
        rules.append(EndOfSequence(frozenset(ends)))
    if context.boundary is not None:
        rules.append(context.boundary)
    elif budget is not None and turn.grammar is None:
        rules.append(SegmentBoundary(budget.target, budget.cap, ignored=frozenset(context.eos_ids)))
    return tuple(rules)


def terminators(turn: Turn, context: TurnContext) -> tuple[int, ...]:
    """Ids that end the turn's answer."""
    own = () if turn.ignore_eos else context.eos_ids
    return tuple(dict.fromkeys((*turn.stop_ids, *own)))
