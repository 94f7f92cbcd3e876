"""What replies say in their `ghostkv` object, and the schema of that object in requests and replies.

`extension.schema.json` is generated from here: `python -m ghostkv.server.extension`. A test checks that it is current.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ghostkv.request import BoundaryMark
from ghostkv.server.schema import Extension
from ghostkv.session.turn import Finished, SegmentRecord

VERSION = 1
"""Grows with every change after which a reader of the older form could misread the newer one."""
SCHEMA = Path(__file__).with_name("extension.schema.json")


class BoundaryDecision(BaseModel):
    """One boundary that was decided."""

    kind: str = Field(description="where the text stood: paragraph, sentence, item, line, cap, fixed")
    decision: Literal["keep", "flush"]
    at: int = Field(description="output tokens before it")
    reason: str = Field(description="of a flush: policy; memory or context, which ran out; prompt, which is too long")
    gain: float = Field(description="that a flush was predicted to give, per token until the next boundary")
    waited_s: float = Field(description="seconds that the request longest in line had waited")
    waiting: int = Field(description="requests in line")


class UnsettledCall(BaseModel):
    """A tool call that was given out and whose result nobody has brought: it may have had its effect or not."""

    id: str
    name: str = Field(description="of the function")


class ReplyExtension(BaseModel):
    """What ghostkv says about answers.

    Token counts add up over segments and answers, but for `resident_tokens`, the most that one segment held.
    """

    model_config = ConfigDict(extra="forbid")
    version: int = Field(description="of this object's form")
    exact: bool = Field(description="no flush, condensing or approximation: the answer is that of the whole prompt")
    residency: str
    request_digest: str = Field(
        description="SHA-256 of all that determines the answers: prompt ids, sampling with its seed, limits, "
        "residency, manifest. Equal digests give equal answers"
    )
    segments: int
    decisions: list[BoundaryDecision] = Field(
        description="at boundaries, in order. Sent as `replay` with the same request, they give the same answer"
    )
    unseen_tokens: int = Field(description="of the prompts, not seen by an answer's last segment")
    condensed_tokens: int = Field(description="of those, left to the ledger because a question was too long")
    resident_tokens: int
    carried_tokens: int = Field(description="shown again after a flush: the tail and the state block")
    archived_tokens: int = Field(description="generated in segments that were flushed")
    recalled_tokens: int = Field(description="of earlier sentences that were brought back")
    rehydrated_tokens: int = Field(description="prefilled because a boundary was flushed")
    payload_bytes: int = Field(description="the most that crossed a boundary")
    payload_dropped: int = Field(description="facts let go for the payload's byte budget")
    discarded_tokens: int | None = Field(default=None, description="generated for parts of a plan that were not needed")
    plan: dict[str, Any] | None = Field(default=None, description="the plan that was followed, and where it came from")
    unsettled: list[UnsettledCall] | None = Field(
        default=None,
        description="in a session: tool calls of earlier answers, or given out before a restart, whose results nobody "
        "has brought. A stream says it in its first event",
    )


def reply_extension(ends: Sequence[Finished], residency: str, manifest: str) -> dict[str, Any]:
    """The object, for answers that have ended."""
    segments = [segment for end in ends for segment in end.segments]
    planned = next((end for end in reversed(ends) if end.plan is not None), None)
    return ReplyExtension(
        version=VERSION,
        exact=all(end.exact for end in ends),
        residency=residency,
        request_digest=_digest(ends, manifest),
        segments=len(segments),
        decisions=[_decision(mark) for segment in segments for mark in segment.decisions],
        unseen_tokens=sum(end.unseen_tokens for end in ends),
        condensed_tokens=sum(end.condensed_tokens for end in ends),
        resident_tokens=max((segment.usage.resident_tokens for segment in segments), default=0),
        carried_tokens=sum(segment.tail + segment.state for segment in segments),
        archived_tokens=sum(map(_archived, segments)),
        recalled_tokens=sum(segment.recalled for segment in segments),
        rehydrated_tokens=sum(segment.rehydrated for segment in segments),
        payload_bytes=max((segment.payload_bytes for segment in segments), default=0),
        payload_dropped=sum(end.segments[-1].payload_dropped for end in ends if end.segments),
        discarded_tokens=None if planned is None else planned.discarded_tokens,
        plan=None if planned is None or planned.plan is None else asdict(planned.plan),
    ).model_dump(exclude_none=True)


def extension_schema() -> dict[str, Any]:
    """JSON Schema of the object, in requests and in replies."""
    sides = {
        "request": Extension.model_json_schema(mode="validation"),
        "reply": ReplyExtension.model_json_schema(mode="serialization"),
    }
    defs = {name: schema for side in sides.values() for name, schema in side.pop("$defs", {}).items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The `ghostkv` object in requests and replies",
        "version": VERSION,
        "$defs": {**defs, **sides},
    }


def _digest(ends: Sequence[Finished], manifest: str) -> str:
    return hashlib.sha256("\n".join([manifest, *(end.digest for end in ends)]).encode()).hexdigest()


def _decision(mark: BoundaryMark) -> BoundaryDecision:
    return BoundaryDecision(
        kind=mark.kind,
        decision=mark.decision.value,
        at=mark.at,
        reason=mark.reason,
        gain=round(mark.gain, 4),
        waited_s=round(mark.waited_s, 3),
        waiting=mark.waiting,
    )


def _archived(segment: SegmentRecord) -> int:
    return 0 if segment.boundary is None else segment.usage.generated_tokens


if __name__ == "__main__":
    SCHEMA.write_text(json.dumps(extension_schema(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
