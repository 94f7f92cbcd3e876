"""What may enter: the limits of this engine, and the refusals that come before any generation."""

from __future__ import annotations

from dataclasses import dataclass

from ghostkv.config import EngineConfig
from ghostkv.errors import ConfigError, ContextLengthExceeded, InvalidRequest, Overloaded
from ghostkv.kv.pool import BlockPool
from ghostkv.kv.ring import Ring
from ghostkv.request import SegmentRequest


@dataclass(frozen=True, slots=True)
class Limits:
    """The numbers of a scheduler."""

    max_context: int  # tokens of prompt and output that the model can address
    max_sequences: int = 128  # requests that may run in one step
    step_tokens: int = 512  # tokens computed in one step
    max_waiting: int = 1024  # requests that may wait in line
    max_wait_s: float = 10.0  # then what runs makes room for what waits
    max_window: int | None = None  # tokens that the model's layer that sees fewest shows; None: all see everything

    def __post_init__(self) -> None:
        if self.max_context < 2 or self.max_sequences < 1 or self.max_waiting < 1:
            raise ConfigError(f"{self} lets no request run")
        if not self.max_wait_s >= 0:  # true for NaN as well
            raise ConfigError(f"max_wait_s must be at least 0 seconds, not {self.max_wait_s}")
        if (
            self.step_tokens < self.max_sequences
        ):  # else decodes alone could overfill a step and prefill would never start
            raise ConfigError(f"step_tokens ({self.step_tokens}) must be at least max_sequences ({self.max_sequences})")

    @classmethod
    def of(cls, config: EngineConfig, max_context: int, max_window: int | None = None) -> Limits:
        """The limits that a configuration and a model give."""
        own = config.max_sequences, config.step_tokens, config.max_waiting, config.max_wait_s
        return cls(max_context, *own, max_window)


def reservation(request: SegmentRequest) -> int:
    """Output tokens to reserve at admission: the policy's number, within what the session may still generate.

    0 for a prompt that is only read.
    """
    return min(max(request.residency.reserve(request.remaining), 1), request.remaining)


def check_fits(request: SegmentRequest, pool: BlockPool | None, limits: Limits) -> None:
    """Refuse a request that could not run even alone. No pool: it is somebody else's, and only the context counts.

    Raises InvalidRequest, ContextLengthExceeded among them.
    """
    if not request.prompt:
        raise InvalidRequest("the prompt is empty: at least one token is needed to continue", param="prompt")
    if request.remaining < 0:
        raise InvalidRequest(f"max_tokens must not be negative, as {request.remaining} is", param="max_tokens")
    if request.grammar is not None and (request.residency.visible or reservation(request) < request.remaining):
        raise InvalidRequest(
            f"residency {request.residency.name!r} may let go of tokens inside a structure: all of it is reserved, or "
            f"none of it runs",
            param="residency",
        )
    if (window := request.residency.visible) is not None:
        if pool is None:
            raise InvalidRequest(f"residency {request.residency.name!r} needs ghostkv's own engine", param="residency")
        Ring(window).check_fits(pool.num_blocks, limits.max_context, limits.max_window)
        return
    prompt, answer = len(request.prompt), reservation(request)
    context, beside = limits.max_context, ""
    if pool is not None:
        # The last output token is never an input, so the pool holds one token more than it has slots.
        context = min(context, pool.num_blocks * pool.block_tokens + min(answer, 1))
        beside = (
            f" (It needs {pool.blocks_for(prompt + max(answer, 1) - 1)} KV blocks of {pool.block_tokens} tokens; "
            f"the pool has {pool.num_blocks}, the model's own limit is {limits.max_context} tokens.)"
        )
    if prompt + answer > context:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {context} tokens, but the request needs {prompt + answer} "
            f"({prompt} in the prompt, {answer} for the answer): context_length_exceeded, "
            f"it exceeds the available context size.{beside}",
            param="prompt",
        )


def check_line(waiting: int, limits: Limits) -> None:
    """Refuse one more request than may wait."""
    if waiting >= limits.max_waiting:
        raise Overloaded(
            f"{waiting} requests are waiting, which is the most this server keeps in line; try again later"
        )
