"""The whole path against our own servers: refused, timed out, killed and resumed, and a server of its own process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes import Script
from ghostkv.model.checkpoint import open_checkpoint
from ghostkv.pressure.cells import Cell, Job
from ghostkv.pressure.compare import Settings, compare
from ghostkv.pressure.engines import Engine, Model, Seat
from ghostkv.pressure.ghost import Ghost
from ghostkv.pressure.peers import Running
from ghostkv.pressure.presets import equal, tiny
from ghostkv.pressure.process import Launch, free_port
from ghostkv.pressure.quality import Results
from ghostkv.pressure.rows import Rows, read_rows
from services import TOKENIZER, Scripted, until

X: Script = lambda history, draw: ord("x")  # noqa: E731


def settings(model: Path = Path("scripted"), **more: Any) -> Settings:
    weights = Model("test", model, 1024, 512)
    return Settings(weights, lambda text: len(TOKENIZER.encode(text)), run={"commit": "test"}, **more)


def run(cells: list[Cell], engine: Engine, file: Path, given: Settings | None = None) -> list[Mapping[str, Any]]:
    return list(compare(cells, [engine], given or settings(), Rows(file)))


def test_a_run_that_is_in_the_file_is_not_run_again(scripted: Scripted, tmp_path: Path) -> None:
    service = scripted(X)
    file, engine = tmp_path / "rows.jsonl", Running(service.url)
    first = run(tiny(), engine, file)
    assert [row["measures"]["outcomes"] for row in first] == [{"complete": 4}, {"complete": 6}]
    assert [row["measures"]["tokens"] for row in first] == [4 * 24, 6 * 200]
    assert first[0]["measures"]["prompt_tokens"] == {"asked": 80, "told": 4, "differ": 0}
    assert first[0]["measures"]["text_share"] == 1.0
    content = file.read_text()
    assert run(tiny(), engine, file) == first
    assert file.read_text() == content
    run(tiny()[:1], engine, file, settings(again=True))
    assert file.read_text().count("\n") == 3


@pytest.mark.parametrize(
    "change",
    [
        lambda cell: replace(cell, pool_tokens=cell.pool_tokens + 32),
        lambda cell: replace(cell, timeout_s=60.0),
        lambda cell: replace(cell, seed=1),
        lambda cell: replace(cell, jobs=cell.jobs[1:]),
    ],
)
def test_another_configuration_is_run(scripted: Scripted, tmp_path: Path, change: Any) -> None:
    engine, cell = Running(scripted(X).url), equal("test", 2, 8, 640, prompt=20)
    run([cell], engine, tmp_path / "rows.jsonl")
    run([change(cell)], engine, tmp_path / "rows.jsonl")
    assert len(read_rows(tmp_path / "rows.jsonl")) == 2


def test_a_server_that_refuses(scripted: Scripted, tmp_path: Path) -> None:
    service = scripted(X, context=128)
    cells = [Cell("test", "mixed", (Job(20, 24), Job(20, 500)), 640)]
    [row] = run(cells, Running(service.url), tmp_path / "rows.jsonl")
    assert row["measures"]["outcomes"] == {"complete": 1, "refused": 1}
    assert row["measures"]["timeouts"]["600"]["success"] == 0.5
    assert row["measures"]["reasons"][0].startswith("HTTP 400: ")


def test_a_client_that_leaves_loses_what_it_got_and_frees_the_server(scripted: Scripted, tmp_path: Path) -> None:
    service = scripted(X, seconds=0.05)
    cells = [Cell("test", "slow", (Job(20, 4), Job(20, 900)), 640, timeout_s=2.0)]
    [row] = run(cells, Running(service.url), tmp_path / "rows.jsonl")
    measures = row["measures"]
    assert measures["outcomes"] == {"complete": 1, "timeout": 1}
    assert measures["tokens"] == 4
    assert 0 < measures["tokens_lost"] < 900
    stats = service.worker.stats
    assert stats is not None
    assert until(lambda: stats().running == 0)


def test_load_in_the_background_ends_when_nobody_is_left_to_wait(scripted: Scripted, tmp_path: Path) -> None:
    service = scripted(X, seconds=0.01)
    chats = (Job(20, 4, tenant="chat"), Job(20, 4, tenant="chat", follows=0))
    load = (Job(20, 900, tenant="batch", background=True),)
    [row] = run([Cell("test", "fair", chats + load, 640)], Running(service.url), tmp_path / "rows.jsonl")
    assert row["measures"]["outcomes"] == {"complete": 2}
    assert row["measures"]["background"]["outcomes"] == {"stopped": 1}
    assert set(row["measures"]["tenants"]) == {"chat"}


def test_a_job_waits_for_the_one_that_it_follows(scripted: Scripted, tmp_path: Path) -> None:
    service = scripted(X, seconds=0.02, max_sequences=2)
    jobs = (Job(20, 8), Job(20, 8, follows=0), Job(20, 8, follows=1))
    [row] = run([Cell("test", "chain", jobs, 640)], Running(service.url), tmp_path / "rows.jsonl")
    single = row["measures"]["request_s"]
    assert row["measures"]["wall_s"] >= single["p50"] + single["max"]  # none of the three overlap


def test_a_killed_run_goes_on_where_it_was(scripted: Scripted, small_hf: Path, tmp_path: Path) -> None:
    service = scripted(X, seconds=0.03)
    file = tmp_path / "rows.jsonl"
    command = [sys.executable, "-m", "ghostkv", "bench", "pressure", "--preset", "tiny", "--model", str(small_hf)]
    command += ["--engine", service.url, "--out", str(file)]
    killed = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert until(lambda: file.exists() and file.read_text().endswith("\n"), 120)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    first = file.read_text()
    assert first.count("\n") == 1
    file.write_text(first + '{"key": "cut off in the mid')
    done = subprocess.run([*command, "--plots", str(tmp_path)], capture_output=True, text=True, check=True)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert file.read_text().startswith(first)
    assert [row["measures"]["outcomes"] for row in rows] == [{"complete": 4}, {"complete": 6}]
    assert "6 x 200" in done.stdout
    assert not any(str(tmp_path) in json.dumps(row) or str(small_hf.parent) in json.dumps(row) for row in rows)


def test_our_own_server_as_a_process(small_hf: Path, tmp_path: Path) -> None:
    model = Model("small", small_hf, 2 * 2 * 2 * 64 * 2, 512)
    tokenizer = open_checkpoint(small_hf).tokenizer
    given = Settings(model, lambda text: len(tokenizer.encode(text)), results=Results())
    jobs = tuple(Job(30, 100, tenant=tenant) for tenant in ("ann", "bob", "ann"))
    cell = Cell("test", "own", jobs, 1280)
    engine = Ghost("segment", "float32")
    [row] = run([cell], engine, tmp_path / "rows.jsonl", given)
    assert "failed" not in row, row
    assert row["measures"]["outcomes"] == {"complete": 3}
    assert row["measures"]["prompt_tokens"]["differ"] == 0
    server = row["server"]
    assert 0 < server["kv_live_peak_bytes"] <= row["cell"]["kv_bytes"]
    assert server["counts"]["segments"] >= 3
    assert server["counts"]["exact_answers"] + server["counts"]["inexact_answers"] == 3
    assert server["counts"]["inference_s"] > 0
    assert server["cpu_s"] > 0
    assert server["rss_peak_bytes"] > 2**20
    assert row["quality"]["extra_nats"] is None  # there are no results, and that is said
    assert not _processes(str(small_hf))


def test_a_server_that_cannot_start_is_a_row_and_is_tried_again(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    cell = equal("test", 1, 8, 640, prompt=20)
    for attempt in (1, 2):
        [row] = run([cell], Broken(str(tmp_path)), file)
        assert row["failed"] == "exit code 1: OSError: .../weights are gone"
        assert len(file.read_text().splitlines()) == attempt
    assert "weights are gone" in (tmp_path / f"rows.{row['key']}.log").read_text()


class Broken(Running):
    """A server that ends at once."""

    def launches(self, seat: Seat) -> tuple[Launch, ...]:
        said = f"import sys; sys.exit('OSError: {self.url}/weights are gone')"
        return (Launch((sys.executable, "-S", "-c", said), free_port()),)


def _processes(argument: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if argument.encode() in words and b"serve" in words:
                found.append(int(entry.name))
    return found
