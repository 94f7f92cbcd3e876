"""The digest of all that determines an answer besides the model: equal ones on one manifest give equal answers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ghostkv.session.turn import Turn


def turn_digest(turn: Turn, prompt: Sequence[int], flushes: tuple[int, ...] | None = None) -> str:
    """SHA-256, hexadecimal, of the prompt's ids and of what the turn asks for. `prompt` is the client's whole one.

    `flushes`: output tokens before each, where the policy decides by more than the request. A replay of them has the
    same digest.

    Who asks, how long they wait and what else they want to know of the prompt change no token, so they are left out.
    Messages are in it besides their ids, since a later segment is assembled from them.
    """
    described: dict[str, Any] = {
        "prompt": list(prompt),
        "messages": [asdict(message) for message in turn.messages],
        "tools": [tool.definition for tool in turn.tools],
        "sampling": asdict(turn.sampling),
        "max_tokens": turn.max_tokens,
        "stop": turn.stop,
        "stop_ids": turn.stop_ids,
        "ignore_eos": turn.ignore_eos,
        "residency": turn.residency,
        "steering": turn.steering.parts,
        "payload_budget": turn.payload_budget,
        "long_prompt": turn.long_prompt,
        "plan": turn.plan if turn.plan is None or isinstance(turn.plan, str) else asdict(turn.plan),
        "grammar": None if turn.grammar is None else turn.grammar.digest,
    }
    if flushes is not None:
        described["flushes"] = list(flushes)
    text = json.dumps(described, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
