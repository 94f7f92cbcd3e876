"""Rows of a comparison on disk: one JSON line for each cell and engine. A run that was killed goes on from them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ghostkv.errors import ConfigError

Row = Mapping[str, Any]


def key_of(configuration: Mapping[str, Any]) -> str:
    """Equal for equal configurations, whatever the order of their fields."""
    text = json.dumps(configuration, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Rows:
    """A file of rows. A last line that was cut off by a kill is dropped; any other that is no row is an error."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError."""
        self.path = path
        self.rows, whole = _read(path)
        if path.exists() and whole < path.stat().st_size:
            with path.open("r+b") as file:
                file.truncate(whole)

    def done(self, key: str) -> Row | None:
        """The latest row of a configuration that ran."""
        return next((row for row in reversed(self.rows) if row["key"] == key and "failed" not in row), None)

    def keep_log(self, key: str, log: str) -> None:
        """What a server wrote that did not start, in a file beside the rows."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.with_suffix(f".{key}.log").write_text(log, encoding="utf-8")

    def append(self, row: Row) -> None:
        """On disk when this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.rows.append(row)


def read_rows(path: Path) -> list[Row]:
    """Of each configuration the latest row, in the order of the file. Raises ConfigError."""
    if not path.exists():
        raise ConfigError(f"{path}: no such file of rows")
    latest: dict[str, Row] = {}
    for row in _read(path)[0]:
        if "failed" not in row or row["key"] not in latest:
            latest[row["key"]] = row
    return list(latest.values())


def _read(path: Path) -> tuple[list[Row], int]:
    """Rows, and the bytes of whole lines."""
    if not path.exists():
        return [], 0
    *lines, rest = path.read_bytes().split(b"\n")
    rows: list[Row] = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            row["key"], row["cell"], row["engine"]
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}, line {number}: not a row of this comparison: {error!r}") from error
        rows.append(row)
    return rows, path.stat().st_size - len(rest)
