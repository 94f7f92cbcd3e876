"""How request schemas treat fields: honoured, accepted without effect, or refused by name.

Each field of OpenAI's API is in exactly one of the three lists of its schema. A field that nobody knows is refused.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from ghostkv.errors import Unsupported

_NEUTRAL: dict[str, tuple[object, ...]] = {  # asks for nothing; so do false, empty strings, lists and objects
    "function_call": ("none",),
    "modalities": (["text"],),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "text": ({"format": {"type": "text"}},),
    "tool_choice": ("none",),
    "truncation": ("disabled",),
    "verbosity": ("medium",),
}
_NOTHING: tuple[object, ...] = (None, False, 0, "", [])
_MEANT_WHEN_EMPTY = frozenset({"web_search_options"})  # an empty object asks for its defaults


class Schema(BaseModel):
    """A request, or an object inside one. `null` for an optional field means absent.

    Fields are honoured; names in `without_effect` are accepted whatever their value, names in `unsupported` are refused
    unless their value asks for nothing.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
    unsupported: ClassVar[frozenset[str]] = frozenset()
    without_effect: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _only_what_is_asked(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        asked = {name: value for name, value in data.items() if value is not None and name not in cls.without_effect}
        for name in sorted(cls.unsupported & asked.keys()):
            value = asked.pop(name)
            asks = value or (value == {} and name in _MEANT_WHEN_EMPTY)
            if asks and (isinstance(value, bool) or value not in _NEUTRAL.get(name, ())):
                raise Unsupported(f"{name} is not supported by this server", param=name)
        return asked

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The schema as clients may use it: optional fields may be null, fields without effect may be anything."""
        written = handler.resolve_ref_schema(handler(core))
        required = written.get("required", [])
        properties: dict[str, Any] = written.setdefault("properties", {})
        for name, of in properties.items():
            if name not in required:
                properties[name] = _nullable(of)
        for name in cls.without_effect:
            properties[name] = {"description": "Accepted, without effect here."}
        for name in cls.unsupported:
            nothing = [*_NOTHING, *_NEUTRAL.get(name, ()), *([] if name in _MEANT_WHEN_EMPTY else [{}])]
            properties[name] = {"description": "Not supported: only what asks for nothing.", "enum": nothing}
        written["properties"] = dict(sorted(properties.items()))
        return written


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    branches = schema.get("anyOf", ())
    if {"type": "null"} in branches:
        return schema
    kept = {name: schema[name] for name in ("default", "description", "title") if name in schema}
    rest = {name: value for name, value in schema.items() if name not in kept}
    nullable: dict[str, Any] = {"anyOf": [*branches, {"type": "null"}] if branches else [rest, {"type": "null"}]}
    return nullable | kept
