"""The OpenAPI description is of this server: its routes, its schemas, and no answer outside it, whatever is sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jsonschema_rs
import pytest
import schemathesis
from fastapi.routing import APIRoute
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from ghostkv.server.app import build_app
from ghostkv.server.description import OPERATIONS, describe
from ghostkv.server.serving import Serving
from ghostkv.session.worker import Worker
from server.openai_spec import spec
from services import Service

EXAMPLES = 8  # of each operation and kind of data
OWN = sorted(OPERATIONS)
SHORT = {"max_tokens": 3, "max_completion_tokens": 3, "max_output_tokens": 3}
ARRIVING = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def test_it_has_every_route_and_no_other(small_worker: Worker) -> None:
    app = build_app(Serving(small_worker))
    routers = [getattr(route, "original_router", None) for route in app.routes]
    routes = [route for router in routers if router for route in router.routes if isinstance(route, APIRoute)]
    found = {(method.lower(), route.path.replace(":path", "")) for route in routes for method in route.methods or ()}
    assert found - {("get", "/openapi.json")} - set(OPERATIONS) == set()
    assert set(OPERATIONS) - found == set()


def test_it_is_a_valid_description(small: Service) -> None:
    found = small.http.get("/openapi.json").json()
    assert found == describe("small")
    for name, schema in found["components"]["schemas"].items():
        jsonschema_rs.meta.validate(schema)
        jsonschema_rs.Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": found["components"]})
    refs = set(_refs(found))
    assert {ref.rpartition("/")[2] for ref in refs} <= found["components"]["schemas"].keys()


def _refs(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [ref for value in node.values() for ref in _refs(value)]
    return [ref for value in node for ref in _refs(value)] if isinstance(node, list) else []


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": "hi"}]},
        {
            "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
            "stop": "x",
            "user": 3,
            "audio": None,
        },
        {"messages": [{"role": "user", "content": "hi"}], "logit_bias": {"5": 1}, "ghostkv": {"plan": "auto"}},
    ],
)
def test_what_is_accepted_is_described(small: Service, body: dict[str, Any]) -> None:
    sent = {"model": "small", "max_tokens": 2, **body}
    assert small.http.post("/v1/chat/completions", json=sent).status_code == 200
    schemas = describe("small")["components"]
    jsonschema_rs.validate({"$ref": "#/components/schemas/ChatRequest", "components": schemas}, sent)


def thinned(body: Any, turn: int) -> Any:
    """Of the optional fields some, others each turn: with all of them hardly a request is free of refusals."""
    if not isinstance(body, dict):
        return body
    needed = ("model", "messages", "prompt", "input", "tokens")
    if "messages" in body and turn % 2:
        body = body | {"messages": [{"role": "user", "content": "hi"}]}
    return {name: value for at, (name, value) in enumerate(body.items()) if name in needed or (at + turn) % 5 == 0}


def shortened(body: Any) -> Any:
    """Short answers, so that the run is; everything else stays."""
    if not isinstance(body, dict):
        return body
    cut = {name: SHORT[name] for name in SHORT if isinstance(body.get(name), int) and body[name] > SHORT[name]}
    if isinstance(body.get("n"), int) and body["n"] > 2:
        cut["n"] = 2
    return body | cut


def run(service: Service, description: Mapping[str, Any], method: str, path: str, mode: GenerationMode) -> int:
    """Send generated requests to one operation; the number of replies that were no refusals."""
    schema = schemathesis.openapi.from_dict(dict(description))
    operation = schema[path][method.upper()]
    accepted = sent = 0
    checks: list[Any] = [
        not_a_server_error,
        status_code_conformance,
        content_type_conformance,
        response_schema_conformance,
    ]
    if mode is GenerationMode.NEGATIVE:
        checks.append(negative_data_rejection)

    @given(case=operation.as_strategy(generation_mode=mode))
    @ARRIVING
    def send(case: Case[Any]) -> None:
        nonlocal accepted, sent
        sent += 1
        case.body = shortened(thinned(case.body, sent) if mode is GenerationMode.POSITIVE else case.body)
        response = case.call(base_url=service.url)
        case.validate_response(response, checks=checks)
        accepted += response.status_code < 300

    send()
    return accepted


@pytest.mark.parametrize(("method", "path"), OWN, ids=[f"{method} {path}" for method, path in OWN])
def test_no_answer_outside_our_description(small: Service, method: str, path: str) -> None:
    accepted = run(small, describe("small"), method, path, GenerationMode.POSITIVE)
    unknown = "{" in path or (method, path) == ("post", "/v1/admin/drain")
    assert accepted or unknown  # nothing is stored under a name that was made up, and there is no such peer
    operation = OPERATIONS[method, path]
    if operation.request is not None and not operation.optional_body:  # no body at all would count as wrong
        run(small, describe("small"), method, path, GenerationMode.NEGATIVE)
    assert small.http.get("/health").status_code == 200


def openais(model: str) -> dict[str, Any]:
    """OpenAI's description, with our paths, our model and our errors."""
    own, theirs = describe(model), spec()
    errors = {status: own["paths"]["/v1/chat/completions"]["post"]["responses"][status] for status in ("400", "404")}
    paths = {}
    for path, methods in theirs["paths"].items():
        paths[f"/v1{path}"] = {
            method: operation | {"responses": operation["responses"] | errors} for method, operation in methods.items()
        }
    schemas = {**theirs["components"]["schemas"], "Error": own["components"]["schemas"]["Error"]}
    schemas |= {name: {"enum": [model]} for name in ("ModelIdsShared", "ModelIdsResponses")}
    return {**theirs, "paths": paths, "components": {"schemas": schemas}}


THEIRS = [(method, f"/v1{path}") for path, methods in spec()["paths"].items() for method in methods]


@pytest.mark.parametrize(("method", "path"), THEIRS, ids=[f"{method} {path}" for method, path in THEIRS])
def test_no_answer_outside_openais_description(small: Service, method: str, path: str) -> None:
    run(small, openais("small"), method, path, GenerationMode.POSITIVE)
    assert small.http.get("/health").status_code == 200
