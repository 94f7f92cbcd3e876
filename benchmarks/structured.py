"""Long structured answers of the real model: a JSON document under a schema and a Python file under a grammar.

Each is asked for at a KV budget that cannot hold it whole, where it must be refused before any generation, and at one
that can, where it must be one segment and valid. Then every token is fed to a fresh matcher, which times the masks.
Appends to results/structured.jsonl.
"""

from __future__ import annotations

import argparse
import ast
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

import jsonschema_rs
import numpy as np
from record import append

from ghostkv.errors import ContextLengthExceeded
from ghostkv.launch import engine_config, open_worker
from ghostkv.llm import LLM
from ghostkv.model.sampler import adjust
from ghostkv.request import Grammar, Sampling
from ghostkv.step import Draw
from ghostkv.text.grammar import Grammars

ENTRY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "day": {"type": "integer", "minimum": 1, "maximum": 99},
        "place": {"type": "string", "minLength": 3, "maxLength": 40},
        "weather": {"enum": ["clear", "fog", "rain", "storm"]},
        "wind_knots": {"type": "number", "minimum": 0, "maximum": 70},
        "crew": {"type": "array", "items": {"type": "string", "maxLength": 20}, "minItems": 1, "maxItems": 3},
        "note": {"type": "string", "minLength": 30, "maxLength": 200},
    },
    "required": ["day", "place", "weather", "wind_knots", "crew", "note"],
    "additionalProperties": False,
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "ship": {"type": "string", "maxLength": 30},
        "entries": {"type": "array", "items": ENTRY, "minItems": 24, "maxItems": 24},
    },
    "required": ["ship", "entries"],
    "additionalProperties": False,
}
PYTHON = r"""
start: HEAD function{18,22}
HEAD: "\"\"\"" /[A-Za-z ,.]{10,60}/ "\"\"\"\n"
function: "\n\ndef " NAME "(" NAME (", " NAME){0,2} "):\n" statement{2,4} "    return " expression "\n"
statement: "    " NAME " = " expression "\n"
         | "    if " expression ":\n        " NAME " = " expression "\n"
         | "    # " /[A-Za-z ,.]{5,60}/ "\n"
expression: term (" " OPERATOR " " term){0,3}
term: NAME | NUMBER | STRING | "(" expression ")" | "[" expression (", " expression){0,3} "]"
NAME: "x" | "y" | "total" | "count" | "name" | /[a-z]{2,12}_[a-z]{2,12}/
NUMBER: /0|[1-9][0-9]{0,4}/
STRING: "\"" /[A-Za-z ,.]{0,30}/ "\""
OPERATOR: "+" | "-" | "*" | "==" | "<" | "and" | "or"
"""


@dataclass(frozen=True)
class Wanted:
    """A document to ask for."""

    name: str
    prompt: str
    grammar: Callable[[Grammars], Grammar]
    check: Callable[[str], object]


def valid_json(text: str) -> object:
    jsonschema_rs.validate(SCHEMA, json.loads(text))
    return None


WANTED = (
    Wanted("json", "Write the log of the ship Argos as JSON.", lambda made: made.json_schema(SCHEMA), valid_json),
    Wanted("python", "Write a Python file with many small functions.", lambda made: made.lark(PYTHON), ast.parse),
)


def mask_times(llm: LLM, grammar: Grammar, ids: list[int]) -> dict[str, float]:
    """Processor milliseconds a token: the matcher, and applying its mask to a row of logits."""
    matcher, matching, applying = grammar.start(), [], []
    scores = np.zeros(llm.worker.tokenizer.vocab_size, dtype=np.float32)
    for token_id in ids:
        begun = time.thread_time()
        allowed = matcher.allowed()
        masked = time.thread_time()
        adjust(scores, Draw(Sampling(), 0.5, allowed=allowed))
        applied = time.thread_time()
        matcher.accept(token_id)
        matching.append((masked - begun + time.thread_time() - applied) * 1e3)
        applying.append((applied - masked) * 1e3)
    return {
        "mask_ms_median": median(matching),
        "mask_ms_mean": mean(matching),
        "mask_ms_p99": float(np.quantile(matching, 0.99)),
        "mask_ms_max": max(matching),
        "apply_ms_mean": mean(applying),
    }


def ask(llm: LLM, wanted: Wanted, tokens: int, residency: str, seed: int) -> dict[str, object]:
    begun = time.perf_counter()
    grammar = wanted.grammar(llm.grammars)
    compiled = time.perf_counter() - begun
    begun = time.perf_counter()
    try:
        answer = llm.generate(
            wanted.prompt, grammar=grammar, max_tokens=tokens, residency=residency, seed=seed, temperature=0.7
        )
    except ContextLengthExceeded as refusal:
        return {"refused": refusal.message, "param": refusal.param, "seconds": time.perf_counter() - begun}
    seconds = time.perf_counter() - begun
    if answer.finish_reason != "stop" or len(answer.segments) != 1:
        raise SystemExit(f"{wanted.name}: {answer.finish_reason} after {len(answer.segments)} segments")
    wanted.check(answer.text)
    return {
        "tokens": answer.completion_tokens,
        "segments": len(answer.segments),
        "exact": answer.exact,
        "valid": True,
        "resident_tokens": answer.segments[0].usage.resident_tokens,
        "seconds": seconds,
        "compile_s": compiled,
        "text": answer.text,
        **mask_times(llm, grammar, [token.id for token in answer.tokens]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tokens", type=int, default=3500, help="max_tokens")
    parser.add_argument("--residency", default="segment")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", action="store_true", help="print the documents")
    asked = parser.parse_args()
    rows: list[dict[str, object]] = []
    for budget in ("12MiB", "128MiB"):
        worker = open_worker(asked.model, engine_config(kv_budget=budget, dtype=asked.dtype), announce=print)
        with LLM(worker) as llm:
            for wanted in WANTED:
                found = ask(llm, wanted, asked.tokens, asked.residency, asked.seed)
                text = found.pop("text", "")
                row = {"document": wanted.name, "kv_budget": budget, "residency": asked.residency, **found}
                print(json.dumps(row), f"\n{text}" if asked.show else "", flush=True)
                rows.append(row)
    print(append("structured", rows))


if __name__ == "__main__":
    main()
