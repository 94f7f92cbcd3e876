"""The chosen session or answer on the live page: its segments, its ledger of exact facts, and its payload."""

from __future__ import annotations

import hashlib
import json

from nicegui import ui

from ghostkv.page.parts import Panel, table
from ghostkv.page.rows import FACT_COLUMNS, SEGMENT_COLUMNS, Row, fact_rows, plain, segment_row, size
from ghostkv.page.sessions import Subject
from ghostkv.protocol.payload import Payload

_SEGMENTS = 40
"""The latest."""
_FACTS = 60
"""The latest."""
_TEXT = 12_000
"""Characters of the payload's text."""


class Chosen:
    """Builds itself where it is made."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._payload = b""
        with Panel("Segments") as self._head:
            self._segments = table(SEGMENT_COLUMNS, "row", "segments", "Its first segment is not closed yet")
        with ui.element("div").classes("pair") as self._carried:
            with Panel("Ledger", "Exact facts as sentences asserted them, the latest first, and what of them holds."):
                self._facts = table(FACT_COLUMNS, "#", "facts", "No exact facts yet")
            with Panel("Payload") as self._sealed:
                self._text = ui.label().classes("payload")

    def show(self, subject: Subject | None) -> None:
        """Nothing for None."""
        self._head.frame.set_visibility(subject is not None)
        self._carried.set_visibility(subject is not None and bool(subject.payload))
        if subject is None:
            return
        self._head.title.text, self._head.note.text = subject.title, subject.note
        rows = [segment_row(record) | {"row": row} for row, record in enumerate(subject.segments)]
        latest = rows[: -_SEGMENTS - 1 : -1]
        if latest != self._rows:
            self._segments.rows = self._rows = latest
        if subject.payload != self._payload:
            self._payload = subject.payload
            self._show_payload(subject.payload)

    def _show_payload(self, data: bytes) -> None:
        if not data:
            return
        payload = Payload.decode(data)
        self._facts.rows = fact_rows(payload.ledger, _FACTS)
        digest, before = hashlib.sha256(data).hexdigest()[:12], payload.previous[:12]
        self._sealed.note.text = (
            f"What crosses a boundary: {size(len(data))}, digest {digest}, after {before or 'none'}; "
            f"{payload.dropped} facts dropped for its budget. The ledger is in it."
        )
        text = _lines(data)
        cut = f"\n… {len(text) - _TEXT} more characters" if len(text) > _TEXT else ""
        self._text.text = plain(text[:_TEXT] + cut)


def _lines(data: bytes) -> str:
    """The payload's JSON, a line for each field and for each sentence with its facts."""
    record = json.loads(data)
    sentences = record.pop("sentences")
    fields = [f'"{name}": {json.dumps(value, ensure_ascii=False)}' for name, value in record.items()]
    facts = ",\n  ".join(json.dumps(sentence, ensure_ascii=False) for sentence in sentences)
    return "{" + ",\n ".join([*fields, f'"sentences": [\n  {facts}]']) + "}"
