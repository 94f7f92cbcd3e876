"""A model's chat template: messages to prompt ids. Jinja2 in a sandbox; it does not know what the text means.

The ids equal those of transformers' `apply_chat_template`, except where content spells a special token: content is
data, so it is encoded as the ordinary bytes it is. A message that knows the ids it was generated as is rendered with
those, where the template writes its content as it is; a prompt then goes on as the generation went.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ghostkv.errors import InvalidRequest, ModelError
from ghostkv.request import Message
from ghostkv.text.guard import Guard, Swap, strings_of, swap_strings
from ghostkv.text.splice import Places, find_contents
from ghostkv.text.tokenizer import Tokenizer
from ghostkv.text.tool_markup import arguments_value

_TOJSON = "ghostkv_tojson"  # the template variable that carries this rendering's JSON writer to the filter
_Pieces = list[tuple[int, int, int]]  # (token id, start, end) over the rendered text
_Span = tuple[int, int, tuple[int, ...]]  # (start, end, token ids) likewise


class ChatTemplate:
    """Renders conversations for one model. Deterministic: no clock, no locale; safe to use from several threads."""

    def __init__(
        self,
        source: str,
        tokenizer: Tokenizer,
        *,
        variables: Mapping[str, object] | None = None,
        name: str = "chat template",
    ) -> None:
        """Compile `source`; `name` is what errors name.

        The template sees bos_token and eos_token of `tokenizer`, and `variables`, which win over them.
        Raises ModelError if the source is not valid.
        """
        self._tokenizer = tokenizer
        self._name = name
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise ModelError(f"{name}: {error}") from error
        self._variables: dict[str, object] = {"documents": None}
        if tokenizer.bos_id is not None:
            self._variables["bos_token"] = tokenizer.token_text(tokenizer.bos_id)
        if tokenizer.eos_ids:
            self._variables["eos_token"] = tokenizer.token_text(tokenizer.eos_ids[0])
        self._variables |= variables or {}
        self._source = source

    def render_ids(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
    ) -> list[int]:
        """Prompt ids of a conversation, with exactly one BOS at the start if the model's prompts have one.

        `tools` are JSON-like tool definitions; every string in messages and tools is content. Raises InvalidRequest
        (param "messages") if the template refuses the conversation or cannot render it, and ModelError if it reaches
        for Python internals.
        """
        scope: dict[str, object] = {
            "messages": [_entry(message) for message in messages],
            "tools": None if tools is None else list(tools),
            "add_generation_prompt": add_generation_prompt,
        }
        guard = Guard(self._tokenizer.control, [self._source, *strings_of(scope)])
        text, pieces, swap = self._guarded(scope, guard)
        spans = [
            (start, stop, messages[index].ids)
            for index, (start, stop) in sorted(self._generated(messages, scope, guard, swap, text).items())
        ]
        plain = self._ids(text, pieces, guard, ())
        ids = self._ids(text, pieces, guard, spans) if spans else plain
        if spans and self._tokenizer.decode(ids) != self._tokenizer.decode(plain):
            ids = plain  # this tokenizer puts a space before all that it encodes, or its markup swallows some
        prefix = list(self._tokenizer.prefix)
        return ids if ids[: len(prefix)] == prefix else prefix + ids

    def _generated(
        self, messages: Sequence[Message], scope: dict[str, object], guard: Guard, swap: Swap, text: str
    ) -> Places:
        """Where the contents stand whose ids are known."""
        known = {i: swap(message.content) for i, message in enumerate(messages) if message.ids}

        def marked(marks: Mapping[int, str]) -> str:
            other = [replace(message, content=marks.get(i, message.content)) for i, message in enumerate(messages)]
            return self._render(scope | {"messages": [_entry(message) for message in other]}, guard, swap)

        return find_contents(text, known, guard.marks(len(known)), marked)

    def _guarded(self, scope: dict[str, object], guard: Guard) -> tuple[str, _Pieces, Swap]:
        """Render so that every control string of the result is the template's own; also how content was swapped.

        The light guard is right unless the template itself joined pieces of content into a control string. The strict
        one cannot be wrong about that, so where the two disagree on the control tokens, the strict rendering counts.
        """
        text = self._render(scope, guard, guard.light)
        pieces = self._tokenizer.encode_markup(text)
        if all(guard.light(part) == guard.strict(part) for part in strings_of(scope)):
            return text, pieces, guard.light
        safe_text = self._render(scope, guard, guard.strict)
        safe_pieces = self._tokenizer.encode_markup(safe_text)
        if self._control(pieces) == self._control(safe_pieces):
            return text, pieces, guard.light
        return safe_text, safe_pieces, guard.strict

    def _control(self, pieces: _Pieces) -> list[int]:
        return [token_id for token_id, _, _ in pieces if token_id in self._tokenizer.control_ids]

    def _render(self, scope: dict[str, object], guard: Guard, swap: Swap) -> str:
        def tojson(value: object, **options: Any) -> str:
            # Escaping must see the real characters: a swapped one could come out as \uXXXX and never be restored.
            return swap(_tojson(swap_strings(value, guard.restore), **options))

        swapped = {name: swap_strings(value, swap) for name, value in scope.items()}
        try:
            return self._template.render({**self._variables, **swapped, _TOJSON: tojson})
        except _Refused as error:
            raise InvalidRequest(f"the chat template refuses these messages: {error}", param="messages") from error
        except SecurityError as error:
            raise ModelError(f"{self._name}: stopped in the sandbox: {error}") from error
        except (OverflowError, RecursionError, MemoryError) as error:
            raise ModelError(f"{self._name}: the template asks for too much: {error}") from error
        except Exception as error:  # the template is foreign code and may fail in any way
            raise InvalidRequest(
                f"the chat template cannot render these messages: {error}", param="messages"
            ) from error

    def _ids(self, text: str, pieces: _Pieces, guard: Guard, spans: Sequence[_Span]) -> list[int]:
        """Ids of the text; a run between control tokens that holds swapped content is encoded as plain text.

        Characters that `spans` know by their ids are not encoded at all, nor together with what is around them.
        """
        if not spans and not guard.guards(text):
            return [token_id for token_id, _, _ in pieces]
        ids: list[int] = []
        run: list[int] = []
        begin, rest = 0, list(reversed(spans))
        for token_id, start, end in [*pieces, (None, len(text), len(text))]:
            if token_id is not None and token_id not in self._tokenizer.control_ids:
                run.append(token_id)
                continue
            cut = begin
            while rest and rest[-1][0] < start:
                first, last, known = rest.pop()
                ids += [*self._plain(text, cut, first, guard), *known]
                cut = max(cut, last)
            ids += self._plain(text, cut, start, guard) if cut > begin or guard.guards(text[begin:start]) else run
            ids += [] if token_id is None else [token_id]
            run, begin = [], end
        return ids

    def _plain(self, text: str, start: int, stop: int, guard: Guard) -> list[int]:
        """Ids of part of a rendered text that holds no control token."""
        return self._tokenizer.encode(guard.restore(text[start:stop]), opening=start == 0) if start < stop else []


def _entry(message: Message) -> dict[str, object]:
    """A message as templates see it."""
    called = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments_value(call)}}
        for call in message.tool_calls
    ]
    optional = {"name": message.name, "tool_call_id": message.tool_call_id, "tool_calls": called}
    return {"role": message.role, "content": message.content} | {name: it for name, it in optional.items() if it}


class _Refused(Exception):
    """The template called raise_exception."""


class _Environment(ImmutableSandboxedEnvironment):
    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        raise SecurityError(f"access to attribute {attribute!r} of a {type(obj).__name__}")


class _GenerationTag(Extension):
    """`{% generation %}` marks an answer for training masks; here it means its content."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    # The settings, names and filters that model authors rely on are those of transformers, but for strftime_now:
    # prompts do not depend on the clock, and templates that know it test whether it is defined.
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
    environment.filters["tojson"] = _tojson_filter
    environment.globals["raise_exception"] = _raise_exception
    return environment


def _raise_exception(message: str) -> NoReturn:
    raise _Refused(message)


@jinja2.pass_context
def _tojson_filter(context: jinja2.runtime.Context, value: object, **options: Any) -> str:
    write: Callable[..., str] = context[_TOJSON]
    return write(value, **options)


def _tojson(
    value: object,
    *,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter as transformers defines it: unlike Jinja's own it escapes neither HTML nor characters beyond ASCII."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
