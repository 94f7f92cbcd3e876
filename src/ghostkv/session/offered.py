"""What a backend does not offer is refused by field name, before anything is generated."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ghostkv.backends.base import Capabilities
from ghostkv.errors import Unsupported
from ghostkv.residency import Policy
from ghostkv.session.turn import Turn

_ASKED: Mapping[str, Callable[[Turn], object]] = {
    "top_k": lambda turn: turn.sampling.top_k,
    "min_p": lambda turn: turn.sampling.min_p,
    "repetition_penalty": lambda turn: turn.sampling.repetition_penalty != 1.0,
    "logit_bias": lambda turn: turn.sampling.logit_bias,
    "min_tokens": lambda turn: turn.sampling.min_tokens,
    "ignore_eos": lambda turn: turn.ignore_eos,
    "logprobs": lambda turn: turn.sampling.logprobs is not None,
    "top_logprobs": lambda turn: turn.sampling.logprobs,
}
"""Field that a backend may lack -> whether a turn asks for what it does."""
_PENALTIES = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


def check_offered(turn: Turn, policy: Policy, capabilities: Capabilities) -> None:
    """Raises Unsupported, naming the field, for what the backend would pass over."""
    for field, asked in _ASKED.items():
        if field in capabilities.lacks and asked(turn):
            raise Unsupported(f"{field}: the engine behind this server does not honour it", param=field)
    if policy.visible is not None and not capabilities.windows:
        raise Unsupported(
            f"residency {policy.name!r} works inside ghostkv's own engine, and another one serves this model",
            param="ghostkv.residency",
        )
    if capabilities.generation_state or policy.budget is None or not turn.sampling.penalised:
        return
    field = next(name for name, neutral in _PENALTIES.items() if getattr(turn.sampling, name) != neutral)
    raise Unsupported(
        f"{field}: the engine behind this server counts within one request, and residency {policy.name!r} may cut the "
        f"answer into several: send residency 'full' with it",
        param=field,
    )
