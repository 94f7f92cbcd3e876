"""Sessions as clients see them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict

from ghostkv.protocol.payload import Payload
from ghostkv.request import FinishReason
from ghostkv.server.envelope import Json, finish_reason
from ghostkv.server.reported import named
from ghostkv.session.calls import CallRecord
from ghostkv.session.record import SessionRecord, TurnRecord


def summary(record: SessionRecord, owner: str | None = None) -> Json:
    """A session in a list; `owner` is its tenant's alias, for admins."""
    return {
        "id": record.id,
        "object": "session",
        "created": record.created,
        "status": "running" if record.running else "idle",
        "model": record.model,
        "system_fingerprint": record.manifest,
        "residency": record.residency,
        "payload_budget": record.payload_budget,
        "metadata": dict(record.metadata),
        "messages": len(record.messages),
        "answers": len(record.turns),
        "output_tokens": record.tokens,
        "payload_bytes": len(record.payload),
        "memory_bytes": record.size,
        **({} if owner is None else {"tenant": owner}),
    }


def whole_session(record: SessionRecord, owner: str | None = None) -> Json:
    """All that is known of a session, but for the text of its messages, which are its client's own."""
    last = record.turns[-1] if record.turns else None
    plan = last.finished.plan if last is not None and last.finished is not None else None
    segments = [(turn.id, segment) for turn in record.turns for segment in turn.segments]
    return summary(record, owner) | {
        "payload_digest": hashlib.sha256(record.payload).hexdigest() if record.payload else None,
        "plan": None if plan is None else asdict(plan),
        "turns": [_turn(turn) for turn in record.turns],
        "segments": [{"turn": turn_id, **asdict(segment)} for turn_id, segment in segments],
        "decisions": [
            {"turn": turn_id, "segment": segment.index, "node": segment.node, **asdict(mark)}
            for turn_id, segment in segments
            for mark in segment.decisions
        ],
        "facts": list(_facts(record.payload)),
        "calls": [_call(call) for call in record.calls],
        "unsettled": named(record.unsettled),
    }


def _turn(turn: TurnRecord) -> Json:
    finished = turn.finished
    complete = finished is not None and finished.reason is not FinishReason.CANCELLED
    return {
        "id": turn.id,
        "endpoint": turn.endpoint,
        "created": turn.created,
        "status": turn.status.value,
        "error": turn.error or None,
        "finish_reason": finish_reason(finished.reason) if complete and finished is not None else None,
        "first_token": turn.first,
        "prompt_tokens": turn.prompt_tokens,
        "completion_tokens": turn.tokens,
        "seed": turn.seed,
        "max_tokens": turn.max_tokens,
        "forked_at": turn.forked,
        "request": json.loads(turn.parameters),
    }


def _call(call: CallRecord) -> Json:
    said = {"id": call.id, "turn": call.answer, "name": call.name, "arguments_sha256": call.arguments}
    return said | {"result_sha256": call.result or None, "settled": call.settled}


def _facts(payload: bytes) -> Iterator[Json]:
    """What holds by the payload, by first mention."""
    if not payload:
        return
    for standing in Payload.decode(payload).ledger.standings():
        if standing.current:
            fact = standing.fact
            yield {
                "kind": fact.kind.value,
                "subject": fact.subject,
                "attribute": fact.attribute,
                "value": fact.value,
                "said_by": fact.sentence.role,
                "sentence": fact.sentence.text,
                "mentions": standing.mentions,
            }
