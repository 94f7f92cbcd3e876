"""Reads the JSON files of a checkpoint, with errors that name the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ghostkv.errors import ModelError


def read_json(file: Path) -> dict[str, Any]:
    """The object in `file`. Raises ModelError if it is missing, not JSON, or not an object."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{file}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"{file}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{file}: holds {type(value).__name__}, not an object")
    return value


def read_optional_json(file: Path) -> dict[str, Any]:
    """As read_json, but empty where there is no such file."""
    return read_json(file) if file.exists() else {}
