"""The log of a session's tool calls: each is written down before its client is given it, and settled by its result.

A call asks somebody else for a side effect, which cannot be taken back. So after a crash it must be known which were
given out and which of those have come back; what is between may have happened or not, and only the client can find out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from ghostkv.errors import RecordRefused
from ghostkv.request import Message


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call of an answer."""

    id: str
    answer: str  # id of the answer that makes it
    name: str  # of the function
    arguments: str  # SHA-256 of their text, hexadecimal
    result: str = ""  # SHA-256 of what its client brought, hexadecimal; "" while it is not settled

    @property
    def settled(self) -> bool:
        """Whether its result was brought."""
        return bool(self.result)


def digest(text: str) -> str:
    """SHA-256, hexadecimal, of arguments or of a result."""
    return hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).hexdigest()


def intended(calls: tuple[CallRecord, ...], new: Iterable[CallRecord]) -> tuple[CallRecord, ...]:
    """With `new` ones, of which those are left out that were logged before a restart: they are the same.

    Raises RecordRefused for one that is not, which must not be given out under the id of the other.
    """
    known = {call.id: call for call in calls}
    for call in new:
        before = known.setdefault(call.id, call)
        if (before.name, before.arguments) != (call.name, call.arguments):
            raise RecordRefused(
                f"call {call.id} of {call.name!r} was given out with other arguments before a restart", param="session"
            )
    return calls if len(known) == len(calls) else tuple(known.values())


def settled(calls: tuple[CallRecord, ...], messages: Iterable[Message]) -> tuple[CallRecord, ...]:
    """Those settled whose results are among `messages`; a result that was brought before stays as it was."""
    results = {message.tool_call_id: message.content for message in messages if message.role == "tool"}
    return tuple(
        call if call.settled or call.id not in results else replace(call, result=digest(results[call.id]))
        for call in calls
    )


def of_answers(calls: Iterable[CallRecord], answers: Collection[str]) -> tuple[CallRecord, ...]:
    """The calls that these answers make."""
    return tuple(call for call in calls if call.answer in answers)
