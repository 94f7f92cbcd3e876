"""Cuts OpenAI's published OpenAPI description to the paths that this server has.

    python tests/server/cut_openai_spec.py openapi.yaml > tests/server/openai_spec.json

The input is `openapi.yaml` of https://github.com/openai/openai-openapi, gzipped or not. Descriptions and examples are
dropped, and schemas that nothing here is compared with become `{}`, which admits anything.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

PATHS = {
    "/chat/completions": ("post",),
    "/completions": ("post",),
    "/models": ("get",),
    "/models/{model}": ("get",),
    "/responses": ("post",),
    "/responses/{response_id}": ("get", "delete"),
}
EVENTS = (
    "ResponseCreatedEvent",
    "ResponseInProgressEvent",
    "ResponseOutputItemAddedEvent",
    "ResponseContentPartAddedEvent",
    "ResponseTextDeltaEvent",
    "ResponseTextDoneEvent",
    "ResponseContentPartDoneEvent",
    "ResponseOutputItemDoneEvent",
    "ResponseFunctionCallArgumentsDeltaEvent",
    "ResponseFunctionCallArgumentsDoneEvent",
    "ResponseCompletedEvent",
    "ResponseIncompleteEvent",
    "ResponseFailedEvent",
)
ALSO = ("CreateChatCompletionStreamResponse", "OutputMessage", "FunctionToolCall", *EVENTS)
UNCUT = frozenset({"InputItem", "OutputItem", "ResponseStreamEvent", "Tool", "ToolChoiceParam", "Annotation", "Prompt"})
DROPPED = frozenset({"description", "title", "example", "examples", "deprecated", "summary", "security", "tags"})


def refs(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "$ref":
                yield value.rpartition("/")[2]
            else:
                yield from refs(value)
    elif isinstance(node, list):
        for value in node:
            yield from refs(value)


def bare(node: Any, *, names: bool = False) -> Any:
    """`node` without what people read; `names`: its keys are names of fields, not words of the format."""
    if isinstance(node, dict):
        kept = {key: value for key, value in node.items() if names or not (key in DROPPED or key.startswith("x-"))}
        return {key: bare(value, names=key in ("properties", "schemas") and not names) for key, value in kept.items()}
    return [bare(value) for value in node] if isinstance(node, list) else node


def answered(operation: dict[str, Any]) -> dict[str, Any]:
    """What it says about errors is little; ours say more."""
    return operation | {"responses": {"200": operation["responses"]["200"]}}


def cut(description: dict[str, Any], digest: str) -> dict[str, Any]:
    schemas = description["components"]["schemas"]
    paths = {
        path: {method: answered(bare(description["paths"][path][method])) for method in methods}
        for path, methods in PATHS.items()
    }
    wanted, found = [*refs(paths), *ALSO], dict[str, Any]()
    while wanted:
        name = wanted.pop()
        if name not in found:
            found[name] = {} if name in UNCUT else bare(schemas[name])
            wanted += refs(found[name])
    info = {
        "title": description["info"]["title"],
        "version": description["info"]["version"],
        "x-source": "https://github.com/openai/openai-openapi",
        "x-sha256": digest,
        "x-cut-by": "tests/server/cut_openai_spec.py",
    }
    components = {"schemas": dict(sorted(found.items()))}
    return {"openapi": description["openapi"], "info": info, "paths": paths, "components": components}


def main() -> None:
    data = Path(sys.argv[1]).read_bytes()
    data = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
    found = cut(yaml.load(data, Loader=yaml.CSafeLoader), hashlib.sha256(data).hexdigest())
    schemas = found["components"].pop("schemas")
    del found["components"]
    head = json.dumps(found, default=str)[:-1]
    lines = (f"{json.dumps(name)}: {json.dumps(schema, default=str)}" for name, schema in schemas.items())
    print(head + ',\n"components": {"schemas": {\n' + ",\n".join(lines) + "\n}}}")


if __name__ == "__main__":
    main()
