"""Structured answers: how requests ask for one, and the grammar that follows.

`response_format` is OpenAI's; `regex`, `grammar` and `json_schema` are in the `ghostkv` object of both endpoints. One
request asks for one structure. What a grammar may be is `text.grammar`'s business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from ghostkv.errors import InvalidRequest
from ghostkv.request import Grammar
from ghostkv.server.fields import Schema
from ghostkv.session.worker import Worker

if TYPE_CHECKING:
    from ghostkv.text.grammar import Grammars

Kind = Literal["json_schema", "regex", "grammar"]


@dataclass(frozen=True, slots=True)
class Structure:
    """What the text of an answer must match."""

    kind: Kind
    given: Mapping[str, Any] | str
    param: str  # the field that asked for it


class NamedSchema(Schema):
    """A JSON schema with a name. Whether or not it is `strict`, the answer follows it."""

    model_config = ConfigDict(serialize_by_alias=True)
    name: Annotated[str, Field(pattern=r"\A[A-Za-z0-9_-]+\z", max_length=64)]
    description: str | None = None
    definition: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool = False


class ResponseFormat(Schema):
    """OpenAI's way to ask for a structure."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    @model_validator(mode="after")
    def _consistent(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema must be given with the type json_schema, and only with it")
        return self

    def structure(self, param: str = "response_format") -> Structure | None:
        """None for plain text."""
        if self.type == "text":
            return None
        if self.json_schema is None:
            return Structure("json_schema", {"type": "object"}, param)
        return Structure("json_schema", self.json_schema.definition, f"{param}.json_schema.schema")


class StructureExtension(Schema):
    """The part of the `ghostkv` object that asks for a structure."""

    regex: str | None = None
    grammar: str | None = None  # Lark
    json_schema: dict[str, Any] | None = None

    @property
    def structure(self) -> Structure | None:
        """Raises InvalidRequest for more than one."""
        asked: dict[Kind, dict[str, Any] | str | None] = {
            "regex": self.regex,
            "grammar": self.grammar,
            "json_schema": self.json_schema,
        }
        found = [Structure(kind, given, f"ghostkv.{kind}") for kind, given in asked.items() if given is not None]
        return only(*found)


def only(*asked: Structure | None) -> Structure | None:
    """The structure among `asked`. Raises InvalidRequest where there are several."""
    found = [structure for structure in asked if structure is not None]
    if len(found) > 1:
        names = " and ".join(structure.param for structure in found)
        raise InvalidRequest(f"an answer has one structure, but {names} ask for one each", param=found[1].param)
    return found[0] if found else None


async def grammar_of(worker: Worker, structure: Structure | None, domain: str) -> Grammar | None:
    """The grammar of a structure, compiled off the event loop; None without one. Raises InvalidRequest.

    Requests of different `domain`s share nothing.
    """
    if structure is None:
        return None

    def compiled(grammars: Grammars) -> Grammar:
        if structure.kind == "json_schema":
            return grammars.json_schema(structure.given, structure.param, domain=domain)
        compile_text = grammars.regex if structure.kind == "regex" else grammars.lark
        return compile_text(str(structure.given), structure.param, domain=domain)

    return await compiled_aside(worker, compiled)


async def compiled_aside(worker: Worker, compiled: Callable[[Grammars], Grammar]) -> Grammar:
    """What `compiled` makes, on the thread where grammars that take long delay only each other."""
    grammars = await asyncio.to_thread(lambda: worker.grammars)
    return await asyncio.get_running_loop().run_in_executor(grammars.threads, compiled, grammars)
