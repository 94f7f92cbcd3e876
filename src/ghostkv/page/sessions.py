"""The live page's view of sessions: rows of the latest, and what is shown of a chosen one or of a chosen answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ghostkv.page.charts import colour
from ghostkv.page.live import Live, Watched
from ghostkv.page.rows import Row, blocks, chain, columns, plain, size
from ghostkv.server.access import Access
from ghostkv.session.record import SessionRecord, Status, TurnRecord
from ghostkv.session.table import Key, SessionTable
from ghostkv.session.turn import SegmentRecord

SESSION_COLUMNS = columns(
    "session", "owner", "state", "segments", "answers", "output", "resident", "carried", "recalled", "rehydrated",
    "payload", left=("session", "owner", "state", "segments"),
)  # fmt: skip
_ROWS = 8
_KEPT = 256
"""Ended answers whose segments are kept, as finding them means going over every event."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is shown of a chosen session or answer."""

    title: str
    note: str
    answer_id: str  # whose line stands out
    segments: tuple[SegmentRecord, ...] = ()
    payload: bytes = b""


class Sessions:
    """Reads the table, and changes nothing in it."""

    def __init__(self, table: SessionTable, access: Access, live: Live) -> None:
        self._table = table
        self._access = access
        self._live = live
        self._segments: dict[str, tuple[SegmentRecord, ...]] = {}  # of ended answers

    def latest(self) -> list[SessionRecord]:
        """Those that answer now, then those that were used last; a few, of all tenants."""
        found = [record for tenant in self._table.tenants() for record in self._table.of(tenant)[:_ROWS]]
        return sorted(found, key=lambda one: (not one.running, -_begun(one)))[:_ROWS]

    def find(self, key: Key) -> SessionRecord | None:
        """The session, while there is one."""
        return next((record for record in self._table.of(key[0]) if record.id == key[1]), None)

    def row(self, record: SessionRecord) -> Row:
        """One session; `key` names it among those of all tenants."""
        segments, watched = self._all(record), self._watched(record)
        return {
            "key": f"{record.tenant} {record.id}",
            "session": plain(record.id),
            "owner": self._access.alias(record.tenant) if record.tenant else "",
            "state": "running" if record.running else "idle",
            "colour": "transparent" if watched is None else colour(watched),
            "segments": len(segments),
            "flushed": sum(segment.boundary is not None for segment in segments),
            "chain": blocks(segments) if watched is None or not watched.open else chain(watched),
            "answers": len(record.turns),
            "output": record.tokens,
            "resident": 0 if watched is None else watched.resident,
            "carried": sum(segment.tail + segment.state for segment in segments),
            "recalled": sum(segment.recalled for segment in segments),
            "rehydrated": sum(segment.rehydrated for segment in segments),
            "payload": size(len(record.payload)),
        }

    def subject(self, record: SessionRecord) -> Subject:
        """A session, all its answers together."""
        watched = self._watched(record)
        return Subject(
            title=f"Segments of session {plain(record.id)}",
            note=f"{len(record.turns)} answers, {len(record.messages)} messages, {record.tokens} tokens of output",
            answer_id="" if watched is None else watched.id,
            segments=self._all(record),
            payload=record.payload,
        )

    def _all(self, record: SessionRecord) -> tuple[SegmentRecord, ...]:
        return tuple(segment for turn in record.turns for segment in self._of(turn))

    def _of(self, turn: TurnRecord) -> Iterable[SegmentRecord]:
        if (kept := self._segments.get(turn.id)) is not None:
            return kept
        if turn.status is Status.RUNNING:
            watched = self._answer(turn)
            return turn.segments if watched is None else watched.segments
        while len(self._segments) >= _KEPT:
            del self._segments[next(iter(self._segments))]
        self._segments[turn.id] = turn.segments
        return turn.segments

    def _watched(self, record: SessionRecord) -> Watched | None:
        """Its latest answer."""
        return self._answer(record.turns[-1]) if record.turns else None

    def _answer(self, turn: TurnRecord) -> Watched | None:
        return self._live.answer(turn.id) or self._live.answer(f"{turn.id}-0")


def of_answer(answer: Watched) -> Subject:
    """An answer, with or without a session."""
    said = f"{answer.id} · {answer.question or 'raw prompt'}"
    return Subject(
        title=f"Segments of answer #{answer.number}",
        note=plain(f"{said} · {answer.error}" if answer.error else said),
        answer_id=answer.id,
        segments=tuple(answer.segments),
        payload=answer.payload,
    )


def _begun(record: SessionRecord) -> int:
    return record.turns[-1].created if record.turns else record.created
