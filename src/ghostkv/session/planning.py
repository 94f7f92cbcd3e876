"""Before a planned answer begins: which plan it follows, what each node's prompt is, and whether every node fits.

Asking a model for its outline is the only thing here that generates.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Literal

from ghostkv.backends.base import Backend, Capabilities
from ghostkv.errors import ContextLengthExceeded, InvalidRequest
from ghostkv.protocol.node_prompt import joint, node_note, noted
from ghostkv.protocol.outline import OUTLINE_ASK, OUTLINE_TOKENS, read_outline
from ghostkv.protocol.plan import OPEN, Plan, topological_segment
from ghostkv.protocol.render import Conversation
from ghostkv.request import Message, Sampling
from ghostkv.session.context import TurnContext, residency_of
from ghostkv.session.fit import check_turn
from ghostkv.session.loop import run
from ghostkv.session.shares import Shares
from ghostkv.session.turn import NodeRecord, Output, PlanRecord, Turn

_OUTLINE_ROOM = 192  # prompt tokens that the notes of a plan that is not known yet may need


@dataclass(frozen=True, slots=True)
class Planned:
    """A turn with the plan that it follows."""

    turn: Turn
    plan: Plan
    messages: tuple[tuple[Message, ...], ...]  # of each node's prompt
    record: PlanRecord


def check_plan(turn: Turn, answers: int = 1) -> None:
    """The one place that refuses what cannot go with a plan; does nothing without one. Raises InvalidRequest."""
    if turn.plan is None:
        return
    if not turn.messages:
        raise InvalidRequest("a plan needs messages: a raw prompt asks for nothing", param="ghostkv.plan")
    if turn.sampling.logprobs is not None:
        raise InvalidRequest(
            "logprobs cannot be had with a plan: its nodes have prompts of their own", param="logprobs"
        )
    if turn.tools:
        raise InvalidRequest("tools cannot be called by a plan: its nodes are written apart", param="tools")
    if turn.grammar is not None:
        raise InvalidRequest(
            "a structured answer has no plan: a grammar is that of one text, and nodes are written apart",
            param="ghostkv.plan",
        )
    if answers > 1:
        raise InvalidRequest(f"n must be 1 with a plan, not {answers}", param="n")
    if turn.sampling.min_tokens:
        raise InvalidRequest(
            "min_tokens cannot be had with a plan: each of its nodes ends by itself", param="min_tokens"
        )


async def planned(backend: Backend, turn: Turn, context: TurnContext) -> Planned:
    """The turn with its plan settled.

    Raises InvalidRequest for what `check_plan` refuses, and ContextLengthExceeded where some node could never run; an
    outline of the model's own that does not fit, or cannot be had, becomes one open node instead.
    """
    check_plan(turn)
    started = context.clock()
    found = await _chosen(backend, turn, context)
    return replace(found, record=replace(found.record, seconds=context.clock() - started))


async def _chosen(backend: Backend, turn: Turn, context: TurnContext) -> Planned:
    capabilities = backend.capabilities()
    if turn.plan != "model":
        found = _settled(turn, context, known_plan(turn, context), PlanRecord(_source(turn), ()))
        _check_fits(found, context, capabilities)
        return found
    try:
        outline, tokens = await _outline(backend, turn, context)
    except ContextLengthExceeded:
        return _settled(turn, context, OPEN, PlanRecord("model", (), said="an outline does not fit the context"))
    plan = read_outline(Conversation.of(turn.messages, context.template).question, outline)
    said = "no outline was found in what the model said" if plan.open else ""
    record = PlanRecord("model", (), outline, tokens, said)
    try:
        found = _settled(turn, context, plan, record)
        _check_fits(found, context, capabilities)
    except ContextLengthExceeded:
        return _settled(turn, context, OPEN, replace(record, said="the parts of the outline do not fit the context"))
    return found


def asked_plan(given: object) -> Plan | Literal["auto", "model"] | None:
    """What a client says about a plan: nothing, "auto", "model", or a list of parts. Raises InvalidRequest."""
    if given is None or isinstance(given, Plan):
        return given
    if given == "auto":
        return "auto"
    if given == "model":
        return "model"
    if not isinstance(given, list | tuple):
        raise InvalidRequest('a plan is "auto", "model" or a list of parts', param="ghostkv.plan")
    return topological_segment("", given)


def known_plan(turn: Turn, context: TurnContext) -> Plan:
    """The plan as far as no model is asked."""
    if isinstance(turn.plan, Plan):
        return turn.plan
    if turn.plan != "auto":
        return OPEN
    return topological_segment(Conversation.of(turn.messages, context.template).question, "auto")


def plan_overhead(turn: Turn, context: TurnContext) -> int:
    """Prompt tokens that the plan may add to what stands in a segment's prompt without it; 0 without a plan."""
    if turn.plan is None or not turn.messages:
        return 0
    if turn.plan == "model":
        return _OUTLINE_ROOM
    plan = known_plan(turn, context)
    conversation = Conversation.of(turn.messages, context.template)
    prompts = [len(context.template(noted(conversation, node_note(plan, node.index)))) for node in plan.nodes]
    return max(prompts) - len(context.template(turn.messages)) + joint_tokens(plan, context)


def joint_tokens(plan: Plan, context: TurnContext) -> int:
    """The most tokens of all that stands between nodes and of their headings."""
    return sum(len(context.encode(joint("-", node.heading))) for node in plan.nodes) if len(plan.nodes) > 1 else 0


def _source(turn: Turn) -> str:
    return turn.plan if isinstance(turn.plan, str) else "given"


def _settled(turn: Turn, context: TurnContext, plan: Plan, record: PlanRecord) -> Planned:
    conversation = Conversation.of(turn.messages, context.template)
    notes = [node_note(plan, node.index) for node in plan.nodes]
    messages = tuple(noted(conversation, note) for note in notes)
    prompts = [context.template(each) for each in messages]
    shares = Shares(plan, turn.max_tokens)
    nodes = tuple(
        NodeRecord(node, note, len(ids), _digest(ids), shares.of(node.index))
        for node, note, ids in zip(plan.nodes, notes, prompts, strict=True)
    )
    return Planned(turn, plan, messages, replace(record, nodes=nodes))


def _check_fits(found: Planned, context: TurnContext, capabilities: Capabilities) -> None:
    """Raises ContextLengthExceeded if some segment of some node could never run."""
    turn, plan = found.turn, found.plan
    policy, shares, joints = (
        residency_of(turn, context),
        Shares(plan, turn.max_tokens),
        joint_tokens(plan, context),
    )
    # Beside a lead no longer than the tail, notes may stand for the rest of what earlier nodes wrote.
    notes = 0 if policy.budget is None else policy.budget.carried - policy.budget.tail
    for node, messages in zip(plan.nodes, found.messages, strict=True):
        head = Conversation.of(messages, context.template).head
        check_turn(
            policy,
            capabilities,
            prompt=len(context.template(messages)),
            head=len(context.template(head)),
            max_tokens=shares.at_most(node.index) + joints + (notes if node.depends_on else 0),
        )


async def _outline(backend: Backend, turn: Turn, context: TurnContext) -> tuple[str, int]:
    """What the model answers when it is asked for an outline, and in how many tokens. Greedy: it needs no chance."""
    conversation = Conversation.of(turn.messages, context.template)
    asked = Turn(
        id=f"{turn.id}.outline",
        sampling=Sampling(temperature=0.0),
        max_tokens=OUTLINE_TOKENS,
        messages=noted(conversation, OUTLINE_ASK),
        residency=turn.residency,
        tenant=turn.tenant,
        share_group=turn.share_group,
        steering=turn.steering,
    )
    text, tokens = "", 0
    async with aclosing(run(backend, asked, context)) as events:
        async for event in events:
            if isinstance(event, Output):
                text += event.text
                tokens += len(event.tokens)
    return text, tokens


def _digest(ids: Sequence[int]) -> str:
    """BLAKE2b of token ids as 32-bit integers, hexadecimal."""
    values = array("I", ids)
    return hashlib.blake2b(b"".join(value.to_bytes(4, "little") for value in values), digest_size=16).hexdigest()
