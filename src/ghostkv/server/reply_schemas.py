"""JSON Schemas of replies, for the description. Requests have schemas that parse them; replies are written by code.

Tests hold real replies against them. Objects may have more fields than are named here.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

_STRING: Json = {"type": "string"}
_INTEGER: Json = {"type": "integer"}
_COUNT: Json = {"type": "integer", "minimum": 0}
_YES: Json = {"const": True}
_TEXT_OR_NULL: Json = {"type": ["string", "null"]}
_OBJECT: Json = {"type": "object"}
_EXTENSION: Json = {"$ref": "#/components/schemas/ReplyExtension"}


def _object(required: Json, **optional: Json) -> Json:
    return {"type": "object", "properties": {**required, **optional}, "required": list(required)}


def _list(items: Json, **more: Any) -> Json:
    return {"type": "array", "items": items, **more}


def _one(value: object) -> Json:
    return {"const": value}


def _nullable(schema: Json) -> Json:
    return {"anyOf": [schema, {"type": "null"}]}


_USAGE = _object(
    {"prompt_tokens": _COUNT, "completion_tokens": _COUNT, "total_tokens": _COUNT},
    prompt_tokens_details=_object({"cached_tokens": _COUNT}),
)
_HEAD: Json = {"id": _STRING, "created": _INTEGER, "model": _STRING, "system_fingerprint": _STRING}
_CALL = _object({"id": _STRING, "type": _one("function"), "function": _object({"name": _STRING, "arguments": _STRING})})
_CHAT_CHOICE = _object(
    {
        "index": _COUNT,
        "message": _object({"role": _one("assistant"), "content": _TEXT_OR_NULL}, tool_calls=_list(_CALL)),
        "logprobs": _nullable(_object({"content": _list(_OBJECT)})),
        "finish_reason": {"enum": ["stop", "length", "tool_calls"]},
    }
)
_COMPLETION_LOGPROBS = _object(
    {
        "tokens": _list(_STRING),
        "token_logprobs": _list({"type": ["number", "null"], "maximum": 0}),
        "top_logprobs": _list(_nullable({"type": "object", "additionalProperties": {"type": "number"}})),
        "text_offset": _list(_COUNT),
    }
)
_COMPLETION_CHOICE = _object(
    {
        "index": _COUNT,
        "text": _STRING,
        "logprobs": _nullable(_COMPLETION_LOGPROBS),
        "finish_reason": {"enum": ["stop", "length"]},
    }
)
_OUTPUT = _object({"id": _STRING, "type": {"enum": ["message", "function_call"]}, "status": _STRING})
_MODEL = _object({"id": _STRING, "object": _one("model"), "created": _INTEGER, "max_model_len": _COUNT})
_SESSION = _object({"id": _STRING, "object": _one("session"), "created": _INTEGER, "status": _STRING, "model": _STRING})

_BOUNDARY = _object({"index": _COUNT, "kind": _STRING, "tokens": _COUNT, "answer": _INTEGER, "events": _COUNT})

REPLIES: dict[str, Json] = {
    "Error": _object(
        {
            "error": _object(
                {
                    "message": _STRING,
                    "type": {"enum": ["invalid_request_error", "rate_limit_error", "server_error"]},
                    "param": _TEXT_OR_NULL,
                    "code": _STRING,
                }
            )
        }
    ),
    "Chat": _object(
        {
            **_HEAD,
            "object": _one("chat.completion"),
            "choices": _list(_CHAT_CHOICE, minItems=1),
            "usage": _USAGE,
            "ghostkv": _EXTENSION,
        }
    ),
    "Completion": _object(
        {
            **_HEAD,
            "object": _one("text_completion"),
            "choices": _list(_COMPLETION_CHOICE, minItems=1),
            "usage": _USAGE,
            "ghostkv": _EXTENSION,
        }
    ),
    "Response": _object(
        {
            "id": _STRING,
            "object": _one("response"),
            "created_at": _INTEGER,
            "status": {"enum": ["completed", "incomplete"]},
            "model": _STRING,
            "output": _list(_OUTPUT, minItems=1),
            "error": {"type": "null"},
            "usage": _object({"input_tokens": _COUNT, "output_tokens": _COUNT, "total_tokens": _COUNT}),
            "metadata": _OBJECT,
            "ghostkv": _EXTENSION,
        }
    ),
    "Events": {"type": "string", "description": "Server-sent events; an error after the first is one of them."},
    "Deleted": _object({"id": _STRING, "object": _STRING, "deleted": _YES}),
    "Models": _object({"object": _one("list"), "data": _list(_MODEL, minItems=1)}),
    "Model": _MODEL,
    "Session": _SESSION,
    "Sessions": _object({"object": _one("list"), "data": _list(_SESSION)}),
    "Boundaries": _object({"object": _one("list"), "data": _list(_BOUNDARY, minItems=1)}),
    "Fork": {"allOf": [_SESSION, _object({"forked_from": _STRING, "at": _COUNT})]},
    "Drain": _object({"object": _one("drain"), "to": _STRING, "moved": _list(_OBJECT), "left": _COUNT}),
    "Tokenized": _object(
        {
            "count": _COUNT,
            "max_model_len": _COUNT,
            "tokens": _list(_COUNT),
            "token_strs": _nullable(_list(_STRING)),
        }
    ),
    "Detokenized": _object({"prompt": _STRING}),
    "TokenizerInfo": _object(
        {
            "tokenizer_class": _STRING,
            "bos_token": _TEXT_OR_NULL,
            "eos_token": _TEXT_OR_NULL,
            "pad_token": _TEXT_OR_NULL,
            "vocab_size": _COUNT,
            "model_max_length": _COUNT,
            "chat_template": _TEXT_OR_NULL,
        }
    ),
    "Status": _object(
        {"status": _one("ok")},
        upstreams=_list(
            _object({"healthy": {"type": "boolean"}, "since": _STRING, "running": _COUNT, "failovers": _COUNT})
        ),
    ),
    "Plain": _STRING,
}
