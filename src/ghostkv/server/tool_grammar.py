"""The grammar that makes an answer a text and then calls in the form of `text.tool_markup`.

    answer: text  |  text? call (gap call)*         auto
    answer: JSON  |  call (gap call)*               auto, with a JSON schema for what is said
    answer: call (gap call)*                        required, or one function named
    call: <tool_call> {"name": NAME, "arguments": OBJECT} </tool_call>

Text holds no opening tag, so a call is always read as one; where calls may not be parallel there is at most one. The
object follows the function's own schema. What no grammar can enforce of that is refused if the function says `strict`,
as OpenAI does, and else left to the model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ghostkv.errors import InvalidRequest
from ghostkv.request import Grammar, Tool
from ghostkv.server.structure import Structure, compiled_aside, grammar_of
from ghostkv.server.tools import Calling
from ghostkv.session.worker import Worker
from ghostkv.text.grammar import JSON_STYLE, Grammars
from ghostkv.text.tool_markup import CALL_CLOSES, CALL_OPENS

_LOOK_AROUND = re.compile(r"\(\?<?[=!]")
_WHERE = re.compile(r"at \d+\(\d+\): failed to compile JSON schema: ")
_NO_ARGUMENTS: Mapping[str, object] = {"type": "object", "properties": {}, "additionalProperties": False}


async def calling_grammar(
    worker: Worker, calling: Calling | None, said: Structure | None, domain: str
) -> Grammar | None:
    """The grammar of an answer that may call, or else say what `said` asks for; compiled off the event loop.

    None where it may do neither. Raises InvalidRequest, naming the schema that is at fault, and for calls beside a
    structure that is no JSON schema.
    """
    if calling is None:
        return await grammar_of(worker, said, domain)
    if said is not None and said.kind != "json_schema":
        raise InvalidRequest(
            f"{said.param} cannot be had with tools: what is said beside calls is text or follows a JSON schema",
            param=said.param,
        )
    written = ToolGrammar(calling, said)
    return await compiled_aside(worker, lambda grammars: written.compiled(grammars, domain))


@dataclass(frozen=True, slots=True)
class ToolGrammar:
    """A grammar as text, in llguidance's Lark."""

    calling: Calling
    said: Structure | None = None  # the JSON schema of what is said; None: any text

    @property
    def text(self) -> str:
        """All of it."""
        functions = [tool for tool in self.calling.tools if tool.name in self.calling.callable]
        any_call = " | ".join(f"call_{index}" for index in range(len(functions)))
        return "\n".join(
            (
                f"start: {' | '.join(self._answers())}",
                "GAP: /[ \\n]{0,2}/",
                f"call: GAP ({any_call}) GAP {_quoted('}')} GAP {_quoted(CALL_CLOSES)}",
                *(rule for index, tool in enumerate(functions) for rule in self._function(index, tool)),
                *self._content(),
            )
        )

    def compiled(self, grammars: Grammars, domain: str) -> Grammar:
        """For a model's vocabulary. Raises InvalidRequest, naming the schema that is at fault."""
        if self.said is not None:
            grammars.json_schema(self.said.given, self.said.param, domain=domain)
        try:
            return grammars.lark(self.text, "tools", domain=domain)
        except InvalidRequest as refusal:
            for index, tool in enumerate(self.calling.tools):
                where = f"tools[{index}].function.parameters"
                try:
                    if tool.name in self.calling.callable:
                        grammars.lark(f"start: %json {self._schema(tool)}", where, domain=domain)
                except InvalidRequest as error:
                    why = _WHERE.sub("", error.message.partition(" / 1 | ")[0])  # not where in our grammar
                    raise InvalidRequest(why, param="tools") from refusal
            raise

    def _answers(self) -> tuple[str, ...]:
        call = f"{_quoted(CALL_OPENS)} call"
        more = f" (GAP {call})*" if self.calling.parallel else ""
        if self.calling.required:
            return (f"{call}{more}",)
        return ("TEXT", f"until_call call{more}") if self.said is None else ("said", f"{call}{more}")

    def _content(self) -> tuple[str, ...]:
        if self.calling.required:
            return ()
        schema = None if self.said is None else self.said.given
        if isinstance(schema, Mapping):
            return (f"said: %json {json.dumps({**schema, 'x-guidance': dict(JSON_STYLE)})}",)
        return f"TEXT: /(?s:.*)/ & ~/(?s:.*){CALL_OPENS}(?s:.*)/", f"until_call[lazy]: /(?s:.*){CALL_OPENS}/"

    def _function(self, index: int, tool: Tool) -> tuple[str, str]:
        head = f'{{"name": {json.dumps(tool.name)}, "arguments": '
        return (
            f"call_{index}: {_quoted(head)} arguments_{index}",
            f"arguments_{index}: %json {self._schema(tool)}",
        )

    def _schema(self, tool: Tool) -> str:
        parameters: Mapping[str, Any] | None = json.loads(tool.definition)["function"].get("parameters")
        schema = _NO_ARGUMENTS if parameters is None else {"type": "object", **parameters}
        lenient = tool.name not in self.calling.strict
        style = {**JSON_STYLE, "lenient": lenient, "coerce_one_of": lenient}
        return json.dumps({**(_without_look_around(schema) if lenient else schema), "x-guidance": style})


def _without_look_around(schema: Any) -> Any:
    """Without patterns that no automaton can match, which `lenient` alone does not leave out."""
    if isinstance(schema, list):
        return [_without_look_around(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _without_look_around(value)
        for name, value in schema.items()
        if not (name == "pattern" and isinstance(value, str) and _LOOK_AROUND.search(value))
    }


def _quoted(text: str) -> str:
    return json.dumps(text)
