"""The OpenAPI description of the server, at /openapi.json.

Bodies are parsed by the routes, so it is written from the same schemas here instead of guessed from signatures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any, Literal

from fastapi import APIRouter
from pydantic.json_schema import models_json_schema

from ghostkv.server.completion_schema import CompletionRequest
from ghostkv.server.envelope import Json
from ghostkv.server.extension import ReplyExtension
from ghostkv.server.fields import Schema
from ghostkv.server.forks import ForkRequest
from ghostkv.server.moving import DrainRequest
from ghostkv.server.reply_schemas import REPLIES
from ghostkv.server.response_schema import ResponseRequest
from ghostkv.server.schema import ChatRequest
from ghostkv.server.serving import Serving
from ghostkv.server.sessions import SessionRequest
from ghostkv.server.tokenization import DetokenizeRequest, TokenizeRequest
from ghostkv.session.limits import RANGES

_ERRORS = {
    400: "The request is wrong; `param` names the field.",
    401: "No API key, or an unknown one.",
    403: "The key may not do this.",
    404: "There is no such thing.",
    405: "The path has no such method.",
    408: "The deadline passed.",
    409: "There is one already, or it is busy.",
    413: "The body is too large.",
    422: "The Idempotency-Key was used for another request.",
    429: "Too much at once; `retry-after` says when to try again.",
    500: "A bug.",
    503: "The server is shutting down, or its engine has stopped; `retry-after` may say when to try again.",
}
_ALWAYS = (401, 403, 405, 429, 500, 503)
_BODY = (400, 413)
_READ: Literal["validation"] = "validation"
_WRITTEN: Literal["serialization"] = "serialization"
_JSON = "application/json"
_EVENTS = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path."""

    summary: str
    replies: Mapping[str, str]  # content type -> name of a schema
    request: type[Schema] | None = None
    errors: tuple[int, ...] = ()
    status: int = 200
    optional_body: bool = False
    query: Mapping[str, Json] | None = None


_ANSWERING = (404, 408, 409, 422)
OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("post", "/v1/chat/completions"): Operation(
        "Answer a conversation.", {_JSON: "Chat", _EVENTS: "Events"}, ChatRequest, _ANSWERING
    ),
    ("post", "/v1/completions"): Operation(
        "Continue raw prompts.", {_JSON: "Completion", _EVENTS: "Events"}, CompletionRequest, _ANSWERING
    ),
    ("post", "/v1/responses"): Operation(
        "Answer a conversation, by items.", {_JSON: "Response", _EVENTS: "Events"}, ResponseRequest, _ANSWERING
    ),
    ("get", "/v1/responses/{response_id}"): Operation(
        "A stored response.", {_JSON: "Response"}, errors=(400, 404), query={"stream": {"enum": ["false"]}}
    ),
    ("delete", "/v1/responses/{response_id}"): Operation(
        "Forget a stored response.", {_JSON: "Deleted"}, errors=(404,)
    ),
    ("get", "/v1/models"): Operation("The models.", {_JSON: "Models"}),
    ("get", "/v1/models/{name}"): Operation("One model.", {_JSON: "Model"}, errors=(404,)),
    ("post", "/v1/sessions"): Operation(
        "Make a session.", {_JSON: "Session"}, SessionRequest, (404, 409), status=201, optional_body=True
    ),
    ("get", "/v1/sessions"): Operation("The sessions.", {_JSON: "Sessions"}),
    ("get", "/v1/sessions/{session_id}"): Operation("One session.", {_JSON: "Session"}, errors=(404,)),
    ("delete", "/v1/sessions/{session_id}"): Operation("Forget a session.", {_JSON: "Deleted"}, errors=(404,)),
    ("get", "/v1/sessions/{session_id}/stream"): Operation(
        "Its output from a token on.",
        {_EVENTS: "Events"},
        errors=(400, 404),
        query={"from": {"type": "integer", "minimum": 0}},
    ),
    ("get", "/v1/sessions/{session_id}/boundaries"): Operation(
        "Where it may be forked.", {_JSON: "Boundaries"}, errors=(400, 404, 409)
    ),
    ("post", "/v1/sessions/{session_id}/fork"): Operation(
        "Another session that goes on from one of its boundaries.",
        {_JSON: "Fork"},
        ForkRequest,
        (404, 409),
        status=201,
        optional_body=True,
    ),
    ("post", "/v1/admin/drain"): Operation(
        "Hand every session over to a peer.", {_JSON: "Drain"}, DrainRequest, status=202
    ),
    ("get", "/v1/admin/drain"): Operation("How far that has come.", {_JSON: "Drain"}),
    ("post", "/tokenize"): Operation("Text to token ids.", {_JSON: "Tokenized"}, TokenizeRequest, (404,)),
    ("post", "/detokenize"): Operation("Token ids to text.", {_JSON: "Detokenized"}, DetokenizeRequest, (404,)),
    ("get", "/tokenizer_info"): Operation("What the tokenizer is.", {_JSON: "TokenizerInfo"}),
    ("get", "/health"): Operation("Whether requests are served.", {_JSON: "Status"}),
    ("get", "/ready"): Operation("Whether requests are served.", {_JSON: "Status"}),
    ("get", "/live"): Operation("Whether the process answers.", {_JSON: "Status"}),
    ("get", "/metrics"): Operation(
        "Prometheus metrics.", {"text/plain": "Plain", "application/openmetrics-text": "Plain"}
    ),
}


def description_routes(serving: Serving) -> APIRouter:
    """The route. The description is made when it is first asked for."""
    router = APIRouter()
    made = cache(lambda: describe(serving.worker.name))

    @router.get("/openapi.json")
    async def openapi() -> Json:
        """The description."""
        return await asyncio.to_thread(made)

    return router


def describe(model: str) -> Json:
    """The whole description; `model` is the name of the one that is served."""
    requests = {operation.request for operation in OPERATIONS.values() if operation.request is not None}
    inputs = sorted(requests, key=lambda schema: schema.__name__)
    _, made = models_json_schema(
        [*((schema, _READ) for schema in inputs), (ReplyExtension, _WRITTEN)],
        ref_template="#/components/schemas/{model}",
    )
    schemas = {name: _published(schema, model) for name, schema in made["$defs"].items()}
    paths: dict[str, Json] = {}
    for (method, path), operation in OPERATIONS.items():
        paths.setdefault(path, {})[method] = _operation(method, path, operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "ghostkv", "version": version("ghostkv")},
        "paths": paths,
        "components": {
            "schemas": {**schemas, **REPLIES},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _operation(method: str, path: str, operation: Operation) -> Json:
    refused = (*_ALWAYS, *operation.errors, *(_BODY if operation.request else ()))
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    inputs: list[Json] = [{"name": n, "in": "path", "required": True, "schema": {"type": "string"}} for n in names]
    inputs += [{"name": n, "in": "query", "schema": schema} for n, schema in (operation.query or {}).items()]
    error = {"content": {_JSON: {"schema": _ref("Error")}}}
    written: Json = {
        "operationId": f"{method}{''.join(part.strip('{}').title() for part in path.split('/'))}",
        "summary": operation.summary,
        "parameters": inputs,
        "responses": {
            str(operation.status): {
                "description": operation.summary,
                "content": {kind: {"schema": _ref(name)} for kind, name in operation.replies.items()},
            },
            **{str(status): {"description": _ERRORS[status], **error} for status in sorted(refused)},
        },
    }
    if operation.request is not None:
        body = {_JSON: {"schema": _ref(operation.request.__name__)}}
        written["requestBody"] = {"required": not operation.optional_body, "content": body}
    return written


def _published(schema: Json, model: str) -> Json:
    """A request schema with the ranges that are checked later, and patterns as JSON Schema writes them."""
    properties = schema.get("properties", {})
    for name, of in properties.items():
        if name in RANGES:
            least, most = RANGES[name]
            properties[name] = {**of, "minimum": -1 if name == "top_k" else least, "maximum": most}
    if "model" in schema.get("required", ()):
        properties["model"] = {"enum": [model]}
    published: Json = _portable(schema)
    return published


def _portable(node: Any) -> Any:
    if isinstance(node, list):
        return [_portable(value) for value in node]
    if not isinstance(node, dict):
        return node
    written = {key: _portable(value) for key, value in node.items()}
    if isinstance(pattern := written.get("pattern"), str):
        written["pattern"] = pattern.replace(r"\A", "^").replace(r"\z", "$")
    return written


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}
