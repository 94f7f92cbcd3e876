"""The log: one line for each request, in both forms, and nothing of what clients wrote."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from ghostkv.telemetry.logs import JsonLines, LogFormat, LogLevel, TextLines, configure
from services import Scripted, saying

SECRET = "xyzzy plugh"
HI: list[Any] = [{"role": "user", "content": SECRET}]
BODY: dict[str, Any] = {"model": "scripted", "messages": HI}


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    """Start logging in a form and a level; then everything that was written since."""
    root, own = logging.getLogger(), logging.getLogger("ghostkv")
    before = (root.handlers[:], root.level, own.level)

    def start(form: LogFormat, level: LogLevel = LogLevel.INFO) -> Any:
        configure(form, level)
        return lambda: capsys.readouterr().err.splitlines()

    yield start
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    own.setLevel(before[2])


def test_a_line_of_json_for_each_request(scripted: Scripted, lines: Any) -> None:
    service = scripted(saying("word " * 2000), seconds=0.0005)
    written = lines(LogFormat.JSON)
    reply = service.http.post(
        "/v1/chat/completions",
        json=BODY | {"max_tokens": 400, "n": 2, "ghostkv": {"residency": "segment"}},
        headers={"x-request-id": "mine"},
    )
    service.http.post("/v1/chat/completions", json=BODY | {"model": SECRET}, headers={"x-request-id": "other"})
    service.http.get("/health")
    found = [json.loads(line) for line in written()]
    assert [line["request_id"] for line in found] == ["mine", "other"]
    answered, refused = found
    body = reply.json()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", answered["time"])
    expected = {
        "level": "info",
        "method": "POST",
        "route": "/v1/chat/completions",
        "status": 200,
        "stream": False,
        "model": "scripted",
        "answers": 2,
        "prompt_tokens": body["usage"]["prompt_tokens"],
        "completion_tokens": 800,
        "segments": body["ghostkv"]["segments"],
        "exact": False,
        "finish_reason": "length",
    }
    assert {name: answered[name] for name in expected} == expected
    assert answered["prefill_s"] + answered["decode_s"] > 0 and 0 <= answered["queue_s"] < answered["seconds"]
    assert (refused["status"], refused["error"]) == (404, "model_not_found") and "answers" not in refused


def test_what_a_stream_came_to_when_its_client_left(scripted: Scripted, lines: Any) -> None:
    service = scripted(saying("word " * 2000), seconds=0.005)
    written = lines(LogFormat.JSON)
    with (
        httpx2.Client(base_url=service.url) as leaving,
        leaving.stream("POST", "/v1/chat/completions", json=BODY | {"stream": True}) as reply,
    ):
        stream = reply.iter_lines()
        for _ in range(8):
            next(stream)
    found: list[str] = []
    end = time.monotonic() + 10
    while not found and time.monotonic() < end:
        time.sleep(0.02)
        found = written()
    [line] = map(json.loads, found)
    assert line["stream"] is True and line["finish_reason"] == "abort" and line["exact"] is False
    assert 2 <= line["completion_tokens"] < 4096


@pytest.mark.parametrize("form", LogFormat)
def test_nothing_of_what_clients_wrote_is_logged(scripted: Scripted, lines: Any, form: LogFormat) -> None:
    service = scripted(saying("plover " * 3))
    written = lines(form, LogLevel.DEBUG)
    service.http.post("/v1/chat/completions", json=BODY)
    service.http.post("/v1/chat/completions", json=BODY | {"stop": [SECRET], "max_tokens": -1})
    service.http.post("/v1/completions", json={"model": "scripted", "prompt": SECRET, "temperature": 9e9})
    service.http.get(f"/v1/models/{SECRET}", headers={"authorization": f"Bearer {SECRET}"})
    service.http.get(f"/{SECRET}%0aFORGED?q={SECRET}")
    service.http.get("/metrics")
    found = written()
    assert len(found) == 6
    for word in (*SECRET.split(), "plover", "FORGED"):
        assert not [line for line in found if word in line]


def test_a_forged_line_stays_inside_its_own(lines: Any) -> None:
    written = lines(LogFormat.TEXT)
    logging.getLogger("ghostkv.x").warning("a\n2026 INFO\x1b[31m %s", "b\r\nc", extra={"fields": {"id": 'x y="\n'}})
    [line] = written()
    assert line.endswith(r'WARNING a\x0a2026 INFO\x1b[31m b\x0d\x0ac id="x y=\"\n"')


def test_levels_and_other_loggers(lines: Any) -> None:
    written = lines(LogFormat.JSON, LogLevel.WARNING)
    for name in ("ghostkv.server", "uvicorn.error", "somebody"):
        logging.getLogger(name).info("quiet")
        logging.getLogger(name).warning("loud %s", name)
    assert [json.loads(line)["message"] for line in written()] == [
        "loud ghostkv.server",
        "loud uvicorn.error",
        "loud somebody",
    ]


@pytest.mark.parametrize("formatter", [JsonLines(), TextLines()])
def test_a_traceback_is_kept(formatter: logging.Formatter) -> None:
    try:
        raise ValueError("boom")
    except ValueError as error:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "failed", (), (ValueError, error, error.__traceback__))
    text = formatter.format(record)
    assert "boom" in text and "Traceback" in text
    assert not isinstance(formatter, JsonLines) or json.loads(text)["exception"].endswith("ValueError: boom")
