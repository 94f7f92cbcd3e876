"""OpenAI's published description of the API, cut to the paths of this server (see `cut_openai_spec.py`)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs


@cache
def spec() -> dict[str, Any]:
    description: dict[str, Any] = json.loads(Path(__file__).with_name("openai_spec.json").read_text(encoding="utf-8"))
    return description


def fields(name: str) -> dict[str, Any]:
    """Field -> schema, of a request schema with all that it is put together from."""
    return _fields(spec()["components"]["schemas"][name])


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """`schema`, or what it refers to."""
    name = schema.get("$ref", "").rpartition("/")[2]
    return spec()["components"]["schemas"][name] if name else schema


def check(name: str, instance: object) -> None:
    """Raises ValueError unless `instance` is what the schema called `name` describes."""
    _validator(name).validate(instance)


@cache
def _validator(name: str) -> jsonschema_rs.Draft202012Validator:
    schema = {"$ref": f"#/components/schemas/{name}", "components": _nullable(spec()["components"])}
    return jsonschema_rs.Draft202012Validator(schema)


def _fields(schema: dict[str, Any]) -> dict[str, Any]:
    schema = resolved(schema)
    parts = [_fields(part) for part in schema.get("allOf", ())]
    return {name: field for part in [*parts, schema.get("properties", {})] for name, field in part.items()}


def _nullable(node: Any) -> Any:
    """OpenAPI 3.0's `nullable`, which the description uses beside the type "null", in the words of JSON Schema."""
    if isinstance(node, list):
        return [_nullable(value) for value in node]
    if not isinstance(node, dict):
        return node
    written = {key: _nullable(value) for key, value in node.items()}
    return {"anyOf": [written, {"type": "null"}]} if node.get("nullable") is True else written
