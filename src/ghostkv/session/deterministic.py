"""`deterministic`: an answer's bits depend on request and manifest alone, or it is refused.

Every residency is that on an exact backend. So this only chooses one where the request leaves it open.
"""

from __future__ import annotations

from dataclasses import replace

from ghostkv.backends.base import Capabilities
from ghostkv.errors import Unsupported
from ghostkv.session.fit import pool_tokens
from ghostkv.session.turn import Turn

OPEN = ""
"""The residency of a turn that leaves it open."""
_PARAM = "ghostkv.deterministic"


def check_deterministic(turn: Turn, capabilities: Capabilities, workers: int) -> None:
    """Raises Unsupported, with the reason, for a deterministic turn whose bits may depend on what else runs."""
    if not turn.deterministic:
        return
    if not capabilities.exact:
        reason = "this backend's numbers depend on what else it computes: the self-check of the products holds on a CPU"
        raise Unsupported(f"deterministic: {reason}", param=_PARAM)
    if workers > 1:
        reason = f"{workers} workers share the segments by what is free"
        raise Unsupported(f"deterministic: {reason}", param=_PARAM)


def with_residency(turn: Turn, capabilities: Capabilities, prompt_tokens: int) -> Turn:
    """An open turn under `full` where prompt and answer fit pool and context, else under `segment`."""
    most = min(capabilities.max_context, pool_tokens(capabilities) + 1)  # the last token of an answer needs no slot
    fits = prompt_tokens + max(turn.max_tokens, 1) <= most
    return replace(turn, residency="full" if fits else "segment")
