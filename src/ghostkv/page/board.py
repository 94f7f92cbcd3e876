"""What one browser tab shows: tiles, charts, the answers and the chosen one. Redrawn once a second while it is seen."""

from __future__ import annotations

import time
from typing import Any

from nicegui import ui

from ghostkv.backends.base import UpstreamState
from ghostkv.page import charts
from ghostkv.page.chosen import Chosen
from ghostkv.page.live import Live, State, Watched
from ghostkv.page.parts import Panel, Tile, chart, draw, table
from ghostkv.page.rows import ANSWER_COLUMNS, UPSTREAM_COLUMNS, Row, answer_row, size, upstream_row
from ghostkv.page.sessions import SESSION_COLUMNS, Sessions, Subject, of_answer
from ghostkv.page.style import CHAIN, SESSION, STATE, WHO
from ghostkv.page.timeline import Moment
from ghostkv.server.serving import Serving
from ghostkv.session.table import Key

_REFRESH_S = 1.0
_SPANS = {60: "1 min", 120: "2 min", 300: "5 min"}
_TILES = ("live KV", "cached KV", "tokens / s", "queue", "answers", "boundaries")
_ROWS = 12
"""Answers in the table."""


class Board:
    """Builds itself where it is made."""

    def __init__(self, serving: Serving, live: Live) -> None:
        self._live = live
        capabilities = [worker.backend.capabilities() for worker in serving.worker.members().values()]
        self._budget = sum(each.kv_budget for each in capabilities)
        sizes = {each.kv_bytes_per_token for each in capabilities}
        self._per_token = sizes.pop() if len(sizes) == 1 else None
        self._sessions = Sessions(serving.desk.table, serving.access, live)
        self._session: Key | None = None  # the chosen one
        self._answer = ""  # the chosen one, where no session is
        self._picked = False  # by the user, who did not only watch
        self._span = 120
        self._rows: dict[str, list[Row]] = {"answers": [], "sessions": [], "upstreams": []}
        self._stats = serving.worker.stats
        with ui.element("div").classes("left"):
            with ui.element("div").classes("tiles"):
                self._tiles = {name: Tile(name, metered=name == "live KV") for name in _TILES}
            self._build_charts()
            self._build_tables()
            self._detail = Chosen()
        timer = ui.timer(_REFRESH_S, self.refresh)
        ui.on("seen", lambda event: timer.activate() if event.args else timer.deactivate())

    def refresh(self) -> None:
        """Show what is now."""
        live, now = self._live, self._live.clock()
        moments = live.timeline.read(busy=live.running > 0)
        answers = live.answers()
        subject = self._subject(answers)
        self._show_tiles(moments)
        self._show_charts(moments, answers, now, "" if subject is None else subject.answer_id)
        self._show_answers(answers, now)
        self._show_sessions()
        self._fill("upstreams", [upstream_row(each, time.time()) for each in self._upstreams()])
        self._detail.show(subject)

    def _build_charts(self) -> None:
        with Panel("KV cache in memory", "All answers together. A flush at a boundary releases a segment's blocks."):
            spans = ui.toggle(_SPANS, value=self._span, on_change=self._respan)
            spans.props("dense no-caps unelevated size=sm").classes("spans")
            self._memory = chart("memory", charts.frame("MiB", self._span), "230px")
        with ui.element("div").classes("pair"):
            with Panel("Tokens in memory, for each answer", "Derived: up within a segment, down at its flush."):
                self._residency = chart("residency", charts.frame("tokens", self._span), "220px")
            with Panel("Throughput and queue", "Tokens generated and prompt tokens computed, per second."):
                self._load = chart("load", charts.load_frame(self._span), "220px")

    def _build_tables(self) -> None:
        with Panel("Answers") as self._list:
            answers = table(ANSWER_COLUMNS, "id", "answers", "No answers yet")
            answers.add_slot("body-cell-answer", WHO)
            answers.on("rowClick", self._choose_answer, [[], ["id"], None])
        with Panel("Sessions", "Conversations that are kept here, the one that was used last first.") as self._kept:
            sessions = table(SESSION_COLUMNS, "key", "sessions", "No sessions")
            sessions.add_slot("body-cell-session", SESSION)
            sessions.on("rowClick", self._choose_session, [[], ["key"], None])
        with Panel(
            "Upstreams", "Servers that compute for this one: whether each is sent segments, and since when."
        ) as panel:
            upstreams = table(UPSTREAM_COLUMNS, "upstream", "upstreams", "No upstreams")
        panel.frame.set_visibility(bool(self._upstreams()))
        self._tables = {"answers": answers, "sessions": sessions, "upstreams": upstreams}
        for each in self._tables.values():
            each.add_slot("body-cell-state", STATE)
        for each in (answers, sessions):
            each.add_slot("body-cell-segments", CHAIN)

    def _upstreams(self) -> tuple[UpstreamState, ...]:
        return () if self._stats is None else self._stats().upstreams

    def _respan(self, event: Any) -> None:
        self._span = int(event.value)
        self.refresh()

    def choose(self, answer_id: str) -> None:
        """Show this answer's segments and ledger until something else is chosen."""
        self._answer, self._session, self._picked = answer_id, None, True

    def _choose_answer(self, event: Any) -> None:
        self.choose(str(event.args[1]["id"]))
        self.refresh()

    def _choose_session(self, event: Any) -> None:
        tenant, _, session = str(event.args[1]["key"]).partition(" ")
        self._session = tenant, session
        self.refresh()

    def _subject(self, answers: list[Watched]) -> Subject | None:
        """What was chosen, while it is there; what runs, as long as nothing is."""
        record = None if self._session is None else self._sessions.find(self._session)
        if record is not None:
            return self._sessions.subject(record)
        self._session, chosen = None, self._live.answer(self._answer)
        if chosen is None or (not self._picked and not chosen.open):
            chosen, self._picked = answers[0] if answers else None, False
        self._answer = "" if chosen is None else chosen.id
        return None if chosen is None else of_answer(chosen)

    def _show_tiles(self, moments: tuple[Moment, ...]) -> None:
        live, latest = self._live, moments[-1]
        tiles, share = self._tiles, latest.live / max(1, self._budget)
        generated, prefilled = charts.rates(moments)
        tiles["live KV"].show(size(latest.live), f"{share:.0%} of {size(self._budget)}", share)
        tiles["cached KV"].show(size(latest.cached), "unreferenced")
        tiles["tokens / s"].show(f"{generated:.0f}", f"and {prefilled:.0f} prefilled / s")
        tiles["queue"].show(f"{latest.waiting}", f"waiting, {latest.running} in the engine")
        bad = live.counts[State.FAILED] + live.counts[State.REFUSED]
        tiles["answers"].show(f"{live.running}", f"open, {live.counts[State.DONE]} done, {bad} failed")
        tiles["boundaries"].show(f"{live.flushed:,}", f"flushed, in {live.generated:,} tokens")

    def _show_charts(self, moments: tuple[Moment, ...], answers: list[Watched], now: float, loud: str) -> None:
        shift = time.time() - now
        draw(self._memory, charts.memory(moments, self._budget, self._per_token, shift, self._span))
        draw(self._residency, charts.residency(answers, loud, now, shift, self._span))
        draw(self._load, charts.load(moments, shift, self._span))

    def _show_answers(self, answers: list[Watched], now: float) -> None:
        more = f" {len(answers) - _ROWS} more are not shown." if len(answers) > _ROWS else ""
        self._list.note.text = f"A block is a segment, as wide as what it held. Choose a row to see more.{more}"
        chosen = self._answer if self._session is None else ""
        self._fill("answers", [answer_row(one, now) | {"chosen": one.id == chosen} for one in answers[:_ROWS]])

    def _show_sessions(self) -> None:
        records = self._sessions.latest()
        self._kept.frame.set_visibility(bool(records))
        rows = [
            self._sessions.row(record) | {"chosen": (record.tenant, record.id) == self._session} for record in records
        ]
        self._fill("sessions", rows)

    def _fill(self, name: str, rows: list[Row]) -> None:
        if rows != self._rows[name]:
            self._tables[name].rows = self._rows[name] = rows
