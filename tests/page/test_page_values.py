"""What the live page shows, as plain values: charts, rows, sessions. And what a server without it does not load."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from ghostkv.backends.base import UpstreamState
from ghostkv.page import charts, rows
from ghostkv.page.live import Live
from ghostkv.page.sessions import Sessions, of_answer
from ghostkv.page.timeline import Moment
from ghostkv.protocol.ledger import Ledger
from ghostkv.protocol.reader import Reader
from ghostkv.request import BoundaryMark, Decision, Message, Sampling, SegmentUsage, Token
from ghostkv.server.access import Access
from ghostkv.session.record import NewTurn, SessionRecord, Status
from ghostkv.session.table import SessionTable
from ghostkv.session.turn import Output, SegmentRecord, Turn
from ghostkv.session.worker import Worker
from services import Scripted, saying

MIB = 2**20


def record(index: int, kind: str | None = "line", resident: int = 90) -> SegmentRecord:
    boundary = None if kind is None else BoundaryMark(kind, Decision.FLUSH)
    return SegmentRecord(
        index, SegmentUsage(60, 16, 31, resident, 0, 0, 0), boundary, 4096, tail=7, state=2, recalled=3
    )


def turn(name: str, question: str = "Why?") -> Turn:
    return Turn(id=name, sampling=Sampling(seed=1), max_tokens=9, messages=(Message("user", question),))


@pytest.fixture
def now() -> list[float]:
    return [100.0]


@pytest.fixture
def live(now: list[float]) -> Live:
    return Live(lambda: now[0])


def asked(live: Live, name: str, resident: int = 40) -> None:
    live.started(turn(name))
    live.event(turn(name), Output((Token(1),), "x", resident))


def test_memory_is_drawn_in_mebibytes_below_its_budget() -> None:
    moments = [Moment(0, live=MIB, cached=2 * MIB, resident=512), Moment(4, live=3 * MIB, resident=1024)]
    drawn = charts.memory(moments, 4 * MIB, 1024, 1000.0, 60)
    live, held, cached = drawn["series"]
    assert live["data"] == [[1_000_500, 1.0], [1_002_500, 3.0]]
    assert held["data"] == [[1_000_500, 0.5], [1_002_500, 1.0]]
    assert cached["data"] == [[1_000_500, 2.0], [1_002_500, 0.0]]
    assert live["markLine"]["data"] == [{"yAxis": 4.0}]
    assert drawn["yAxis"]["max"] > 4.0
    assert drawn["xAxis"] == {"min": 942_500, "max": 1_002_500}
    assert len(charts.memory(moments, 4 * MIB, None, 0, 60)["series"]) == 2  # workers of different sizes


def test_rates_leave_out_the_moment_that_is_under_way() -> None:
    moments = [Moment(0, generated=900), *(Moment(index, generated=10, prefilled=5) for index in range(10, 16))]
    moments.append(Moment(16, generated=1000))
    assert charts.rates(moments) == (20.0, 10.0)
    assert charts.rates([]) == (0.0, 0.0)
    generated, _, waiting = charts.load(moments, 0, 60)["series"]
    assert [value for _, value in generated["data"]][-2:] == [20.0, 20.0]
    assert len(waiting["data"]) == len(generated["data"]) + 1


def test_the_chosen_answer_is_always_drawn_and_stands_out(live: Live, now: list[float]) -> None:
    for number in range(12):
        asked(live, str(number), resident=number + 1)
    now[0] += 5
    series = charts.residency(live.answers(), "0", now[0], 0, 60)["series"]
    assert len(series) == charts.LINES
    assert [line["name"] for line in series] == ["#1", *(f"#{number}" for number in range(6, 13))]
    assert [line["lineStyle"]["width"] for line in series] == [3, *[1.5] * 7]
    assert series[0]["data"] == [[100_000, 0], [100_000, 1], [105_000, 1]]
    assert charts.residency(live.answers(), "", now[0] + 500, 0, 60)["series"][0]["data"] == [[605_000, 5]]


def test_a_row_says_what_the_records_say(live: Live) -> None:
    asked(live, "a")
    live.event(turn("a"), record(0))
    live.event(turn("a"), record(1, resident=70))
    live.event(turn("a"), Output((Token(1),), "x", 55))
    row = rows.answer_row(live.answers()[0], 107.4)
    assert row["chain"] == "90:flush 70:flush 55:open"
    assert (row["state"], row["age"], row["output"], row["resident"]) == ("running", "7 s", 2, 55)
    assert (row["flushed"], row["carried"], row["recalled"], row["rehydrated"]) == (2, 18, 6, 44)
    assert rows.segment_row(record(3, None))["decision"] == "end"
    away = rows.upstream_row(UpstreamState("http://a", healthy=False, since=100.0, running=0, failovers=3), 160.4)
    assert (away["upstream"], away["state"], away["age"], away["failovers"]) == ("http://a", "failed", "60 s", 3)
    assert rows.segment_row(record(3))["live KV"] == "4.0 KiB"


def test_half_a_surrogate_pair_can_be_sent(live: Live) -> None:
    live.started(turn("a\ud800", "b\udfff"))
    answer = live.answers()[0]
    for text in (*rows.answer_row(answer, 0).values(), of_answer(answer).note):
        str(text).encode("utf-8")


def test_facts_show_what_took_their_place() -> None:
    _, reading = Reader(0, "user").feed("The pressure is 4 bar. The pressure is now 9 bar.", 0, final=True)
    shown = rows.fact_rows(Ledger().merge(reading.facts), 10)
    assert [(row["value"], row["standing"]) for row in shown] == [("9 bar", "holds"), ("4 bar", "superseded: 9 bar")]
    assert len(rows.fact_rows(Ledger().merge(reading.facts), 1)) == 1


def test_sessions_of_all_tenants_running_ones_first(live: Live) -> None:
    table = SessionTable()
    for created, (tenant, name) in enumerate((("", "old"), ("", "new"), ("boss", "busy"))):
        table.create(SessionRecord(id=name, tenant=tenant, created=created, model="m", manifest="f"))
    table.begin(("", "old"), opened("one", 50))
    table.add(("", "old"), record(0, None))
    table.end(("", "old"), Status.FINISHED)
    table.begin(("boss", "busy"), opened("two", 1))
    asked(live, "two-0")
    live.event(turn("two-0"), record(0))
    sessions = Sessions(table, Access(), live)
    assert [found.id for found in sessions.latest()] == ["busy", "old", "new"]
    busy, old, new = map(sessions.row, sessions.latest())
    assert (busy["state"], busy["chain"], busy["resident"], busy["carried"]) == ("running", "90:flush", 0, 9)
    assert busy["owner"] not in ("", "boss")
    assert (old["state"], old["chain"], new["segments"]) == ("idle", "90:end", 0)
    found = sessions.find(("boss", "busy"))
    assert found is not None
    assert sessions.subject(found).answer_id == "two-0"
    assert sessions.find(("", "busy")) is None
    table.begin(("", "old"), opened("three", 51))  # what is kept of an ended answer does not hide a new one
    table.add(("", "old"), record(0, resident=33))
    assert sessions.row(table.get(("", "old")))["chain"] == "90:end 33:flush"
    table.add(("", "old"), record(1, resident=44))
    assert sessions.row(table.get(("", "old")))["chain"] == "90:end 33:flush 44:flush"


def opened(name: str, created: int) -> NewTurn:
    messages = (Message("user", "Why?"),)
    return NewTurn(name, "chat.completions", "{}", created, 1, 9, 1, messages)


@pytest.mark.parametrize("residency", ["segment", "full", "sink_window"])
def test_what_an_output_says_it_holds_is_what_the_engine_counted(small_worker: Worker, residency: str) -> None:
    asked = replace(turn("held", "Go on."), max_tokens=300, ignore_eos=True, residency=residency)
    latest, checked = 0, 0

    async def run(events: AsyncIterator[Any]) -> None:
        nonlocal latest, checked
        async for event in events:
            if isinstance(event, Output) and event.tokens:
                latest = event.resident
            elif isinstance(event, SegmentRecord):
                assert event.usage.resident_tokens == latest
                checked += 1

    async def read() -> None:
        async with aclosing(small_worker.run(small_worker.checked(asked))) as events:
            await run(events)

    asyncio.run(read())
    assert checked >= (2 if residency == "segment" else 1)


def test_without_the_page_its_address_is_unknown(scripted: Scripted) -> None:
    reply = scripted(saying("Hi.")).http.get("/")
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found")


def test_only_a_served_page_loads_its_library() -> None:
    code = "import sys, ghostkv.cli, ghostkv.server.serve; print('nicegui' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
