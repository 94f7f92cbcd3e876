"""A recorded answer in the words of the endpoint that it was asked of."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from ghostkv.errors import InvariantViolation
from ghostkv.server.chat import CHAT, chat_envelope, chat_score
from ghostkv.server.completion_schema import CompletionRequest
from ghostkv.server.completions import COMPLETIONS, completion_envelope, completion_score
from ghostkv.server.schema import ChatRequest
from ghostkv.server.stream import Score
from ghostkv.session.record import TurnRecord
from ghostkv.session.worker import Worker


def recorded_score(worker: Worker, record: TurnRecord) -> Score:
    """The score that an answer's own stream had, at its beginning: ids and time of creation are those of then."""
    parameters: dict[str, Any] = json.loads(record.parameters)
    if record.endpoint == CHAT:
        # What was said to get the answer does not matter to how it is written.
        parameters |= {"messages": [{"role": "user", "content": ""}]}
        chat = ChatRequest.model_validate_json(json.dumps(parameters))
        envelope = replace(chat_envelope(worker, record.id, chat), created=record.created)
        return chat_score(envelope, chat, lambda: record.prompt_tokens)
    if record.endpoint == COMPLETIONS:
        asked = CompletionRequest.model_validate_json(json.dumps(parameters | {"prompt": ""}))
        envelope = replace(completion_envelope(worker, record.id, asked), created=record.created)
        return completion_score(envelope, asked, asked.ghostkv.residency, lambda: record.prompt_tokens)
    raise InvariantViolation(f"no stream of {record.endpoint!r} can be written")
