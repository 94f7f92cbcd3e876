"""The text half of a Hugging Face directory: tokenizer, its BOS and end-of-sequence ids, and the chat template."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ghostkv.errors import ModelError
from ghostkv.model.json_file import read_json, read_optional_json
from ghostkv.text.tokenizer import Tokenizer


def read_tokenizer(directory: Path, config: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer, with end ids from generation_config.json, else `config` (config.json), else tokenizer_config.json.

    Prompts start with BOS if tokenizer_config.json says so (`add_bos_token`), else if the tokenizer's post-processor
    puts that token first. Raises ModelError naming the file.
    """
    file = directory / "tokenizer.json"
    if not file.is_file():
        raise ModelError(f"{file}: no such file; a Hugging Face directory needs its tokenizer.json")
    content = read_json(file)
    settings = read_optional_json(directory / "tokenizer_config.json")
    generation = read_optional_json(directory / "generation_config.json")
    ids = _added_tokens(content, file)
    bos = next(iter(_ids(config, "bos_token_id", directory / "config.json")), None)
    if "bos_token" in settings:
        bos = ids.get(_text(settings["bos_token"]) or "")
    add_bos = settings.get("add_bos_token")
    if add_bos is None:
        first = _first_token(content.get("post_processor"))
        add_bos = first is not None and ids.get(first) == bos
    end = _ids(generation, "eos_token_id", directory / "generation_config.json")
    end = end or _ids(config, "eos_token_id", directory / "config.json")
    end = end or tuple(i for text, i in ids.items() if text == _text(settings.get("eos_token")))
    return Tokenizer.from_file(file, bos_id=bos, eos_ids=end, add_bos=bool(add_bos))


def read_template(directory: Path) -> str | None:
    """The chat template: chat_template.jinja, else tokenizer_config.json (of several, the one named "default")."""
    file = directory / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    settings_file = directory / "tokenizer_config.json"
    template = read_optional_json(settings_file).get("chat_template")
    if isinstance(template, list):
        template = {entry.get("name"): entry.get("template") for entry in template}.get("default")
    if template is not None and not isinstance(template, str):
        raise ModelError(f"{settings_file}: chat_template is {type(template).__name__}, not text")
    return template


def _ids(values: Mapping[str, Any], key: str, file: Path) -> tuple[int, ...]:
    """One id, a list of them, or none."""
    value = values.get(key)
    listed = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(item, int) and not isinstance(item, bool) for item in listed):
        raise ModelError(f"{file}: {key} is {value!r}, neither an id nor a list of ids")
    return tuple(listed)


def _added_tokens(content: Mapping[str, Any], file: Path) -> dict[str, int]:
    try:
        return {str(token["content"]): int(token["id"]) for token in content.get("added_tokens") or ()}
    except (TypeError, KeyError, ValueError) as error:
        raise ModelError(f"{file}: added_tokens is malformed") from error


def _text(token: object) -> str | None:
    """A special token in tokenizer_config.json is a string or an object with `content`."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _first_token(processor: object) -> str | None:
    """The special token that a tokenizer.json post-processor puts before a single text."""
    if not isinstance(processor, dict):
        return None
    if processor.get("type") == "Sequence":
        return next(filter(None, map(_first_token, processor.get("processors") or ())), None)
    pieces = processor.get("single") or () if processor.get("type") == "TemplateProcessing" else ()
    first = pieces[0].get("SpecialToken") if pieces else None
    return str(first["id"]) if first else None
