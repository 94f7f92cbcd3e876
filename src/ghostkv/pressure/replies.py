"""What one client got: read from the bytes of a stream after the run is over."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ghostkv.pressure.cells import Job
from ghostkv.pressure.prompts import Count
from ghostkv.pressure.wire import Received

COMPLETE, SHORT, TIMEOUT, REFUSED, BROKEN, STOPPED = "complete", "short", "timeout", "refused", "broken", "stopped"
"""How a reply ended: as asked; with fewer tokens or text than asked; its client left; 4xx or 5xx before any token;
an error or a closed socket in mid-answer; stopped by this program because its load was no longer needed."""

_NO_END = "the stream has no end"
_LEAST_TEXT = 0.5
"""Text with fewer tokens than this share of what the engine says it chose is no answer of that length."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request and all that came of it. Seconds since the cell's start."""

    job: Job
    at: float  # when its user wanted it
    ended: float
    received: Received
    left: str = ""  # TIMEOUT or STOPPED where the client left, BROKEN where the socket did


@dataclass(frozen=True, slots=True)
class Reply:
    """A request's outcome. Times are seconds since the cell's start."""

    job: Job
    asked: float
    ended: float
    outcome: str
    arrivals: tuple[tuple[float, int], ...]  # (when, tokens of output by then), one for each event that brought some
    prompt_tokens: int  # as the engine says; 0: it did not
    text_tokens: int  # of the text, by the model's own tokenizer
    reason: str = ""  # of a refusal or an error

    @property
    def tokens(self) -> int:
        """Output tokens that came."""
        return self.arrivals[-1][1] if self.arrivals else 0

    @property
    def first_s(self) -> float | None:
        """Seconds to its first token."""
        return self.arrivals[0][0] - self.asked if self.arrivals else None

    @property
    def whole_s(self) -> float:
        """Seconds to its end."""
        return self.ended - self.asked

    @property
    def gaps(self) -> list[float]:
        """Seconds between tokens after the first event that brought some: 0 for those that came with another."""
        found: list[float] = []
        for (before, had), (at, tokens) in zip(self.arrivals, self.arrivals[1:]):
            found += [at - before, *[0.0] * (tokens - had - 1)]
        return found

    def segments(self, size: int) -> list[float]:
        """Seconds for each `size` tokens, the first from the request on; a shorter answer is one segment."""
        marks = list(range(size, self.tokens + 1, size)) or [self.tokens]
        found, last, mark = [], self.asked, 0
        for at, tokens in self.arrivals:
            while mark < len(marks) and tokens >= marks[mark]:
                found.append(at - last)
                last, mark = at, mark + 1
        return found


def read(asked: Asked, count: Count) -> Reply:
    """Read one reply. An engine's count of its own tokens is checked against its text."""
    arrivals, text, prompt_tokens, error = _stream(asked)
    status = asked.received.status
    if asked.left in (TIMEOUT, STOPPED):
        outcome = asked.left
    elif status != 200:
        outcome = REFUSED if status else BROKEN
        error = f"HTTP {status}: {_message(asked.received.body())}" if status else "no reply"
    elif error or asked.left:
        outcome = BROKEN if arrivals else REFUSED
    else:
        outcome = COMPLETE
    text_tokens = count(text) if text else 0
    if outcome == COMPLETE:
        outcome, error = _checked(asked.job.output, arrivals, text_tokens)
    return Reply(asked.job, asked.at, asked.ended, outcome, tuple(arrivals), prompt_tokens, text_tokens, error)


def _checked(asked: int, arrivals: Sequence[tuple[float, int]], text_tokens: int) -> tuple[str, str]:
    got = arrivals[-1][1] if arrivals else 0
    if got != asked:
        return SHORT, f"{got} of {asked} tokens"
    if text_tokens < _LEAST_TEXT * asked:
        return SHORT, f"the text of {asked} tokens has only {text_tokens}"
    return COMPLETE, ""


def _stream(asked: Asked) -> tuple[list[tuple[float, int]], str, int, str]:
    """(arrivals, text, prompt tokens, error) of an event stream."""
    arrivals: list[tuple[float, int]] = []
    pieces: list[str] = []
    had = prompt_tokens = 0
    error = "" if asked.left else _NO_END
    if asked.received.status != 200:
        return [], "", 0, ""
    for at, data in asked.received.events():
        if data == b"[DONE]":
            error = "" if error == _NO_END else error
            break
        event = json.loads(data)
        if "error" in event:
            error = _message(data)
            continue
        piece = "".join(choice.get("text") or "" for choice in event.get("choices", ()))
        pieces.append(piece)
        usage: dict[str, Any] = event.get("usage") or {}
        prompt_tokens = usage.get("prompt_tokens", prompt_tokens)
        now = usage.get("completion_tokens", had + bool(piece))
        if now > had:
            arrivals.append((at, now))
            had = now
    return arrivals, "".join(pieces), prompt_tokens, error


def _message(body: bytes) -> str:
    try:
        found = json.loads(body)
    except ValueError:
        return body[:200].decode(errors="replace")
    error = found.get("error", found) if isinstance(found, dict) else found
    return str(error.get("message", error) if isinstance(error, dict) else error)[:200]
