"""What an answer may call. How it writes calls is `text.tool_markup`'s form, which `tool_grammar` holds it to."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from ghostkv.request import Tool


@dataclass(frozen=True, slots=True)
class Calling:
    """Tools, and how an answer may use them."""

    tools: tuple[Tool, ...]  # that the model is shown
    callable: tuple[str, ...]  # names of those that it may call
    strict: frozenset[str]  # names of those whose whole schema is enforced
    required: bool  # the answer begins with a call
    parallel: bool  # it may make more than one


def call_id(answer: str, choice: int, index: int) -> str:
    """Of call `index` of one choice of an answer: always the same."""
    return "call_" + hashlib.sha256(f"{answer} {choice} {index}".encode()).hexdigest()[:24]
