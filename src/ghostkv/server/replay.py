"""A recorded answer in the words of the endpoint that it was asked of."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from ghostkv.errors import InvariantViolation
from ghostkv.request import Grammar
from ghostkv.server.chat import CHAT, chat_envelope, chat_score
from ghostkv.server.completion_schema import CompletionRequest
from ghostkv.server.completions import COMPLETIONS, completion_envelope, completion_score
from ghostkv.server.schema import ChatRequest
from ghostkv.server.stream import Score
from ghostkv.server.structure import grammar_of
from ghostkv.server.tool_grammar import calling_grammar
from ghostkv.session.record import TurnRecord
from ghostkv.session.worker import Worker


def recorded_score(worker: Worker, record: TurnRecord) -> Score:
    """The score that an answer's own stream had, at its beginning: ids and time of creation are those of then."""
    if record.endpoint == CHAT:
        chat = ChatRequest.recorded(record.parameters)
        envelope = replace(chat_envelope(worker, record.id, chat), created=record.created)
        return chat_score(envelope, chat, chat.ghostkv.residency, lambda: record.prompt_tokens)
    if record.endpoint == COMPLETIONS:
        asked = _completion(record)
        envelope = replace(completion_envelope(worker, record.id, asked), created=record.created)
        return completion_score(envelope, asked, asked.ghostkv.residency, lambda: record.prompt_tokens)
    raise InvariantViolation(f"no stream of {record.endpoint!r} can be written")


async def recorded_grammar(worker: Worker, record: TurnRecord, domain: str) -> Grammar | None:
    """The grammar that a recorded request asks for, compiled again; None where it asks for none."""
    if record.endpoint == CHAT:
        chat = ChatRequest.recorded(record.parameters)
        return await calling_grammar(worker, chat.calling, chat.structure, domain)
    if record.endpoint == COMPLETIONS:
        return await grammar_of(worker, _completion(record).structure, domain)
    return None


def _completion(record: TurnRecord) -> CompletionRequest:
    parameters: dict[str, Any] = json.loads(record.parameters) | {"prompt": ""}
    return CompletionRequest.model_validate_json(json.dumps(parameters))
