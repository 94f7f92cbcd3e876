"""Grammars of answers, compiled by llguidance for one vocabulary: JSON schemas, regular expressions, Lark.

A compiled grammar is checked: it has a text, and its compilation was bounded (see `grammar_trial`). What llguidance
does not know is refused by name, never ignored. Here is also what no grammar may allow: control tokens, but for the
end of the answer where the text so far matches. Not here: what requests call these things, and when they apply.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits

from ghostkv.errors import InvalidRequest, Unsupported
from ghostkv.request import Bitmask
from ghostkv.text.grammar_trial import Trial
from ghostkv.text.grammar_vocabulary import Vocabulary
from ghostkv.text.tokenizer import Tokenizer

JSON_STYLE: Mapping[str, Any] = {
    "whitespace_flexible": True,
    "whitespace_pattern": r"[ ]|\n[ ]{0,24}",
    "coerce_one_of": False,
    "lenient": False,
}
"""How JSON is written, as a schema's own "x-guidance": between two symbols one space, or one line break and
indentation, so that no model can go on in white space for ever; `oneOf` and unknown keywords are not approximated."""

_LEAST_VERSION = (1, 9)
"""Of llguidance. 1.7, which vLLM 0.32 asks for, has no `~n..m` in Lark and does not bound white space in JSON."""
_MOST_BYTES = 256 * 2**10  # of a grammar as JSON, in which other characters than ASCII are escaped
_MOST_KEPT = 64  # compiled grammars
_SHOWN = 400  # characters of a compiler's message
# Chosen so that an ambiguous grammar costs at most some 15 ms a token, which everybody's next token waits for, and one
# grammar at most some 100 MiB. Schemas of 1,000 properties and grammars of programming languages stay far below.
_LIMITS: dict[str, Any] = {
    "max_items_in_row": 200,
    "step_max_items": 10_000,
    "step_lexer_fuel": 100_000,
    "initial_lexer_fuel": 1_000_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 100_000,
    "verbose_errors": False,
}
# Text that a grammar forces is chosen token by token like any other: tokens of the model's own choice, and no time
# that grows with its length.
_AROUND = {"lark_grammar": '%llguidance {"no_forcing": true}\nstart: @answer'}


@dataclass(frozen=True, slots=True, eq=False)
class CompiledGrammar:
    """`request.Grammar` for one tokenizer."""

    prototype: LLMatcher  # never fed
    usable: Bitmask  # ids that have text
    ends: Bitmask  # end-of-sequence ids
    spent: Callable[[], None]
    """Told when a matcher has run into a limit: some are shared by all that were started from one prototype."""
    digest: str = ""
    """SHA-256 of its text, hexadecimal."""

    def start(self) -> GrammarMatcher:
        """A matcher at the beginning of an answer."""
        return GrammarMatcher(self, self.prototype)


class GrammarMatcher:
    """`request.Matcher`: how far one answer has come."""

    __slots__ = ("_grammar", "_inner", "complete", "failure")

    def __init__(self, grammar: CompiledGrammar, inner: LLMatcher) -> None:
        self._grammar = grammar
        self._inner = inner.deep_copy()
        self.complete = False
        self.failure = ""

    def allowed(self) -> Bitmask:
        """The ids that may come next, [ceil(vocabulary / 32)]; nothing once `complete` or failed."""
        usable = self._grammar.usable
        bits = np.frombuffer(self._inner.compute_bitmask(), dtype="<u4")[: len(usable)] & usable
        self._settle()
        if self.complete or self.failure:
            return np.zeros_like(usable)
        matches = self._inner.is_accepting()
        if not bits.any():
            self.complete = matches
            self.failure = "" if matches else "no token of the vocabulary can go on"
        elif matches:
            bits |= self._grammar.ends
        return bits

    def accept(self, token_id: int) -> None:
        """Take the next token. Of one that is not allowed comes `failure`."""
        self._inner.consume_token(token_id)
        self._settle()

    def fork(self) -> GrammarMatcher:
        """Another one that has come as far. Takes about a microsecond."""
        made = GrammarMatcher(self._grammar, self._inner)
        made.complete, made.failure = self.complete, self.failure
        return made

    def _settle(self) -> None:
        inner = self._inner
        if self.complete or self.failure or not inner.is_stopped():
            return
        if inner.is_error():
            self.failure = _said(inner.get_error())
            self._grammar.spent()
        elif inner.is_accepting():
            self.complete = True
        else:
            self.failure = f"nothing can follow ({inner.stop_reason()})"


class Grammars:
    """Compiles grammars for one tokenizer and keeps the latest. Safe to use from several threads; may take seconds.

    To make one is cheap: the vocabulary is laid out when it is first needed.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._trial = Trial(_LIMITS)
        self._gate = threading.Lock()
        self._kept: OrderedDict[tuple[str, str], CompiledGrammar | str] = OrderedDict()  # or why there is none
        self.threads = ThreadPoolExecutor(1, thread_name_prefix="ghostkv-grammar")
        """For callers that must not block: on it, grammars that take long to compile delay only each other."""

    def json_schema(self, schema: object, param: str = "schema", *, domain: str = "") -> CompiledGrammar:
        """JSON that is valid under a JSON schema, which must be an object.

        `param` is the field that errors name. Callers of different domains share nothing, so that no time tells one
        what the other has sent. Raises InvalidRequest for what is no schema, has no instance, uses a keyword that
        cannot be enforced, or is too large or too hard to compile.
        """
        if not isinstance(schema, dict):
            raise InvalidRequest(f"{param}: a JSON schema is an object, not {_kind(schema)}", param=param)
        return self._compiled({"json_schema": {**schema, "x-guidance": dict(JSON_STYLE)}}, param, domain)

    def json_object(self, *, domain: str = "") -> CompiledGrammar:
        """Any JSON object."""
        return self.json_schema({"type": "object"}, "response_format", domain=domain)

    def regex(self, pattern: str, param: str = "regex", *, domain: str = "") -> CompiledGrammar:
        """Text that a regular expression matches from beginning to end: Rust's syntax, without look-around.

        Raises InvalidRequest as `json_schema` does.
        """
        _check_size(pattern, param)
        (inner,) = json.loads(LLMatcher.grammar_from_regex(_whole(pattern, param)))["grammars"]
        return self._compiled(inner, param, domain)

    def lark(self, text: str, param: str = "grammar", *, domain: str = "") -> CompiledGrammar:
        """Text of the language of a grammar in llguidance's dialect of Lark. Raises InvalidRequest as above."""
        return self._compiled({"lark_grammar": text}, param, domain)

    def _compiled(self, inner: Mapping[str, Any], param: str, domain: str) -> CompiledGrammar:
        _check_version(metadata.version("llguidance"), param)
        try:
            source = json.dumps({"grammars": [_AROUND, {**inner, "name": "answer"}]}, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequest(f"{param}: this is not JSON: {str(error)[:_SHOWN]}", param=param) from None
        _check_size(source, param)
        key = domain, source
        with self._gate:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
        if found is None:
            found = self._tried(source, key)
            with self._gate:
                self._kept[key] = found
                while len(self._kept) > _MOST_KEPT:
                    self._kept.popitem(last=False)
        if isinstance(found, str):
            raise InvalidRequest(f"{param}: {found}", param=param)
        return found

    def _tried(self, source: str, key: tuple[str, str]) -> CompiledGrammar | str:
        if error := self._trial.error(source):
            return _said(error)
        known = self._vocabulary
        prototype = LLMatcher(known.tokenizer, source, log_level=0, limits=LLParserLimits(**_LIMITS))
        if prototype.is_error():
            return _said(prototype.get_error())
        digest = hashlib.sha256(source.encode()).hexdigest()
        grammar = CompiledGrammar(prototype, known.usable, known.ends, lambda: self._forget(key), digest)
        first = grammar.start()
        first.allowed()
        if first.failure:
            return f"no text matches: {first.failure}"
        return "only the empty text matches" if first.complete else grammar

    def _forget(self, key: tuple[str, str]) -> None:
        with self._gate:
            self._kept.pop(key, None)

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return Vocabulary.of(self._tokenizer)


def _check_version(found: str, param: str) -> None:
    if tuple(map(int, found.split(".")[:2])) < _LEAST_VERSION:
        least = ".".join(map(str, _LEAST_VERSION))
        raise Unsupported(f"{param}: grammars need llguidance {least}, and here is {found}", param=param)


def _check_size(text: str, param: str) -> None:
    if len(text) > _MOST_BYTES:
        raise InvalidRequest(f"{param}: {len(text)} bytes are more than a grammar may have, {_MOST_BYTES}", param=param)


def _whole(text: str, param: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{param}: a lone surrogate is not a character", param=param) from None
    return text


def _kind(value: object) -> str:
    names = {str: "a string", list: "a list", bool: "a boolean", int: "a number", float: "a number"}
    return "null" if value is None else names.get(type(value), f"a {type(value).__name__}")


def _said(error: str) -> str:
    """A compiler's message without its internals."""
    if error.startswith("panic"):
        return "the compiler cannot handle it"
    lines = error.replace("<non-verbose/>", "").partition("; following special tokens")[0].split("\n")
    return " / ".join(line.strip() for line in lines if line.strip())[:_SHOWN]
