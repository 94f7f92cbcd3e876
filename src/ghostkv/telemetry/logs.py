"""How the server's log is written on standard error: lines of text, or of JSON. What is written is not decided here."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), 127)}
"""A message is one line, whatever stands in it: else a path could write lines of its own."""


class LogFormat(StrEnum):
    """How a line is written."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """The least that is written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def configure(form: LogFormat, level: LogLevel) -> None:
    """Have all that this process logs, uvicorn's lines too, written in one form. Replaces what was set before."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form is LogFormat.JSON else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)  # of libraries; a line of theirs that is only for information tells users nothing
    logging.getLogger("ghostkv").setLevel(level.value.upper())
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True


class JsonLines(logging.Formatter):
    """One JSON object for each record; the fields of a request stand beside time, level, logger and message."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, separators=(",", ":"), default=str)


class TextLines(logging.Formatter):
    """Time, level and message, then the fields of a request as name=value."""

    def format(self, record: logging.LogRecord) -> str:
        """The line; a traceback follows on lines of its own."""
        fields = "".join(f" {name}={_word(value)}" for name, value in _fields(record).items())
        message = record.getMessage().translate(_CONTROL)
        line = f"{_time(record)} {record.levelname:<7} {message}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields = getattr(record, "fields", {})
    return fields if isinstance(fields, dict) else {}


def _time(record: logging.LogRecord) -> str:
    """UTC, ISO 8601, milliseconds."""
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _word(value: object) -> str:
    """A value that cannot be taken for more than one."""
    text = str(value)
    return text if text and not any(c.isspace() or c in '"=' for c in text) else json.dumps(text, ensure_ascii=False)
