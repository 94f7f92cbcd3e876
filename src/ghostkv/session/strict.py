"""`strict`: an answer that would not be exact is refused before any generation, rather than flushed or condensed.

What can be told from the request alone is refused when it is checked, the rest when its first prompt is assembled.
"""

from __future__ import annotations

from ghostkv.backends.base import Capabilities
from ghostkv.errors import InvalidRequest
from ghostkv.protocol.render import Assembled
from ghostkv.residency import Policy
from ghostkv.session.turn import LongPrompt, Turn

_PARAM = "ghostkv.strict"


def check_strict(turn: Turn, policy: Policy, capabilities: Capabilities) -> None:
    """Raises InvalidRequest for a strict turn that may flush, or is read in another form than it was sent."""
    if not turn.strict:
        return
    name = f"residency {policy.name!r}"
    if not capabilities.exact:
        raise InvalidRequest("strict: this backend's numbers are not exact", param=_PARAM)
    if turn.plan is not None:
        raise InvalidRequest("strict: the parts of a plan are not answers to the prompt as it was sent", param=_PARAM)
    if turn.long_prompt is LongPrompt.CONDENSE:
        raise InvalidRequest("strict: long_prompt 'condense' reads a shorter prompt", param=_PARAM)
    if policy.visible is not None:
        raise InvalidRequest(f"strict: {name} loses sight of tokens; choose 'full'", param=_PARAM)
    if policy.budget is not None and turn.grammar is None and turn.max_tokens > policy.budget.target:
        raise InvalidRequest(
            f"strict: {name} may flush after {policy.budget.target} tokens, and this answer may have "
            f"{turn.max_tokens}; choose 'full', or max_tokens of at most {policy.budget.target}",
            param=_PARAM,
        )


def check_shown(turn: Turn, assembled: Assembled, *, at_home: bool) -> None:
    """Raises InvalidRequest for a strict turn whose first prompt is not the client's, or another worker's to read."""
    if not turn.strict:
        return
    if assembled.dropped or assembled.lines:
        raise InvalidRequest(
            f"strict: residency {turn.residency!r} leaves {assembled.dropped} tokens of this prompt out; choose 'full'",
            param=_PARAM,
        )
    if not at_home:
        raise InvalidRequest("strict: another worker than the first would answer; choose 'full'", param=_PARAM)
