"""Refusals before any generation: a pool too small for a policy, a request too large for the model or the pool.

All numbers are tokens. What fits now may still have to wait its turn; that is the engine's business.
"""

from __future__ import annotations

from ghostkv.backends.base import Capabilities
from ghostkv.errors import ConfigError, ContextLengthExceeded, InvalidRequest
from ghostkv.kv.ring import Ring
from ghostkv.request import Window
from ghostkv.residency import Policy, SegmentBudget

_SPARE_BLOCKS = 2  # the least head: a system line and a short question


def pool_tokens(capabilities: Capabilities) -> int:
    """Token slots of the pool, whole blocks; as many as the context where the pool is somebody else's."""
    if not capabilities.kv_budget:
        return capabilities.max_context
    block = capabilities.block_tokens
    return capabilities.kv_budget // (capabilities.kv_bytes_per_token * block) * block


def check_pool(policy: Policy, capabilities: Capabilities) -> None:
    """At start-up: raises ConfigError if the pool cannot hold the policy's constants and two blocks, or its window."""
    if policy.visible is not None:
        try:
            _check_window(policy.visible, capabilities)
        except InvalidRequest as refusal:
            raise ConfigError(f"residency {policy.name!r}: {refusal.message}") from refusal
    budget = policy.budget
    if budget is None or not capabilities.kv_budget:
        return
    block = capabilities.block_tokens
    needed = -(-(budget.carried + budget.cap) // block) * block + _SPARE_BLOCKS * block
    held = pool_tokens(capabilities)
    if held < needed:
        raise ConfigError(
            f"the KV pool holds {held} tokens, but residency {policy.name!r} needs at least {needed}: "
            f"{_constants(budget)} + {_SPARE_BLOCKS} blocks of {capabilities.block_tokens} "
            f"(a KV budget of {needed * capabilities.kv_bytes_per_token} bytes)"
        )


def check_turn(
    policy: Policy, capabilities: Capabilities, *, prompt: int, head: int, max_tokens: int, param: str = "messages"
) -> None:
    """Raises ContextLengthExceeded if some segment of the turn could never run, InvalidRequest if a window cannot.

    `prompt` counts the client's whole prompt, `head` the part of it that stands in every segment; `param` is the
    request's field that holds it, "messages" or "prompt".
    """
    if policy.visible is not None:  # nothing else bounds it: neither pool nor context
        _check_window(policy.visible, capabilities)
        return
    # The last token of an answer is chosen but never fed back, so it needs no slot: hence 1 more than the pool holds.
    pool = pool_tokens(capabilities) + min(max_tokens, 1)
    budget = policy.budget
    if budget is None:
        _check_whole(capabilities.max_context, pool, prompt, max_tokens, param)
        return
    # A tail is never longer than what was generated, so a short answer never needs room for a whole tail beside it.
    least = head + min(max_tokens, budget.cap + budget.tail)
    largest = _largest_segment(budget, prompt, head, max_tokens)
    context = capabilities.max_context
    if least > context or min(largest, context) > pool:
        needed = least if least > context else min(largest, context)
        what = "its prompt" if param == "prompt" else "its head (system messages and the last message)"
        raise ContextLengthExceeded(
            f"This model's maximum context length is {context} tokens and the KV pool holds {pool - 1}, but a segment "
            f"of this request needs {needed}: {what} is {head}, to which "
            f"residency {policy.name!r} adds at most {_constants(budget)}, for an answer of {max_tokens}: "
            f"context_length_exceeded, it exceeds the available context size.",
            param=param,
        )


def check_structure(
    policy: Policy, capabilities: Capabilities, *, prompt: int, head: int, max_tokens: int, param: str = "messages"
) -> None:
    """`check_turn` for an answer that a grammar makes one segment: all of it must fit beside its prompt."""
    most = most_structure(policy, capabilities, prompt=prompt, head=head)
    if max_tokens <= most:
        return
    carried = 0 if policy.budget is None else min(policy.budget.carried, prompt - head)
    beside = prompt if policy.budget is None else head + carried
    pool = pool_tokens(capabilities)
    raise ContextLengthExceeded(
        f"This model's maximum context length is {min(capabilities.max_context, pool + 1)} tokens, but the request "
        f"needs {beside + max_tokens} ({beside} in the prompt, {max_tokens} for the answer): context_length_exceeded, "
        f"it exceeds the available context size. A structured answer is never cut into segments, so max_tokens "
        f"({max_tokens}) is reserved at once: the KV pool holds {pool} tokens and the model's context is "
        f"{capabilities.max_context}, so that max_tokens may be at most {max(0, most)}.",
        param=param if most < 1 else "max_tokens",
    )


def most_structure(policy: Policy, capabilities: Capabilities, *, prompt: int, head: int) -> int:
    """The most tokens that a structured answer may have; less than 1 where its prompt alone does not fit."""
    context, pool = capabilities.max_context, pool_tokens(capabilities) + 1
    if policy.budget is None:
        return min(context, pool) - prompt
    # Earlier exchanges and notes make room in the context for a long answer, but they never look at the pool.
    return context - head if pool >= context else pool - head - min(policy.budget.carried, prompt - head)


def whole_fits(budget: SegmentBudget, capabilities: Capabilities, *, prompt: int, max_tokens: int) -> bool:
    """Whether the client's whole prompt fits pool and context beside a segment."""
    needed = prompt + min(budget.cap, max_tokens)
    return needed <= min(capabilities.max_context, pool_tokens(capabilities) + min(max_tokens, 1))


def _check_window(window: Window, capabilities: Capabilities) -> None:
    ring = Ring(window, capabilities.block_tokens)
    blocks = pool_tokens(capabilities) // capabilities.block_tokens
    ring.check_fits(blocks, capabilities.max_context, capabilities.max_window)


def _constants(budget: SegmentBudget) -> str:
    return f"tail {budget.tail} + state {budget.state} + recall {budget.recall} + cap {budget.cap}"


def _check_whole(context: int, pool: int, prompt: int, max_tokens: int, param: str) -> None:
    if prompt + max_tokens > min(context, pool):
        limit = "" if pool >= context else f" The KV pool is the limit; the model's own is {context} tokens."
        raise ContextLengthExceeded(
            f"This model's maximum context length is {min(context, pool)} tokens, but the request needs "
            f"{prompt + max_tokens} ({prompt} in the prompt, {max_tokens} for the answer): context_length_exceeded, "
            f"it exceeds the available context size.{limit}",
            param=param,
        )


def _largest_segment(budget: SegmentBudget, prompt: int, head: int, max_tokens: int) -> int:
    """Prompt and reservation of the largest segment: the constants bound what is carried, and so does what there is.

    What there is: earlier exchanges and generated tokens. Notes stand only for what found no room among the first two,
    so they never make it more. The tail may take all that is carried, not only its own share.
    """
    by_constants = budget.carried + min(budget.cap, max_tokens)
    by_content = (prompt - head) + min(max_tokens, budget.cap + budget.carried)
    return head + min(by_constants, by_content)
