"""Tables and figures are made from rows alone, and say where an engine lost or did not run."""

from __future__ import annotations

import copy
import io
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from typer.testing import CliRunner

from ghostkv.cli import app
from ghostkv.pressure.plots import draw
from ghostkv.pressure.table import cells, markdown, tables

SPREAD = {"p50": 1.0, "p95": 2.0, "p99": 3.0, "max": 4.0}
WITHIN = {"success": 0.5, "tokens_per_second": 10.0, "good": 0.25, "good_tokens_per_second": 5.0}


def row(preset: str, engine: str, rate: float, **cell: Any) -> dict[str, Any]:
    about = {"preset": preset, "name": f"{preset} cell", "users": 256, "output": 250, "pressure": 4.0, **cell}
    return {
        "key": f"{preset} {engine} {about}",
        "model": "m",
        "engine": engine,
        "cell": about,
        "repeat": 0,
        "quality": {"extra_nats": 0.17, "recall": {"exact": 0.8, "same_precision": False}},
        "measures": {
            "tokens_per_second": rate,
            "timeouts": {"30": WITHIN, "120": WITHIN, "600": WITHIN},
            "outcomes": {"complete": 1},
            **{f"{name}_s": SPREAD for name in ("first", "silence", "gap", "request", "segment")},
        },
        "server": {
            "kv_live_peak_bytes": 2**20,
            "rss_peak_bytes": 2**30,
            "cpu_s": 12.0,
            "counts": {"recomputed_tokens": 1.0, "rehydrated_tokens": 2.0, "flushes": 3.0},
            "trace": [[0.0, 0.0, 2**30], [1.0, 2**20, 2**30]],
        },
    }


def rows() -> list[dict[str, Any]]:
    grid = [
        row("table4", engine, rate / pressure, pressure=pressure)
        for engine, rate in (("ghostkv auto", 800.0), ("vllm", 600.0))
        for pressure in (0.25, 1.0, 4.0, 16.0)
    ]
    story = row("story", "ghostkv segment", 70.0, users=1)
    story["server"]["token_times"] = [[50, 0.5], [150, 1.0], [300, 2.0]]
    failed = {**row("long", "vllm", 0.0), "failed": "no room"}
    return [*grid, story, row("long", "ghostkv auto", 400.0), failed]


def test_a_row_says_quality_beside_speed_and_what_does_not_run() -> None:
    shown = cells(row("long", "ghostkv auto", 400.0))
    assert "400" in shown
    assert shown[-2:] == ["0.170", "0.80*"]
    assert cells({**row("long", "vllm", 0.0), "failed": "no room"})[3] == "fails"
    unknown = copy.deepcopy(row("long", "llama.cpp", 3.0))
    unknown["quality"] = {"extra_nats": None, "recall": None}
    assert cells(unknown)[-2:] == ["?", "?"]


def test_tables_have_every_row_once() -> None:
    out = io.StringIO()
    for table in tables(rows()):
        Console(file=out, width=300).print(table)
    assert out.getvalue().count("cell") >= len(rows())
    assert "long cell, vllm does not run: no room" in out.getvalue()
    lines = markdown(rows()).splitlines()
    assert sum(line.startswith("| ") for line in lines) == len(rows()) + 3  # and three headings
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1


def test_each_figure_is_drawn_where_there_is_something_for_it(tmp_path: Path) -> None:
    names = {path.name for path in draw(rows(), tmp_path)}
    assert names == {
        "pressure.png",
        "quality.png",
        "figure2_memory_trace.png",
        "figure3_memory_by_segment.png",
        "figure4_residency.png",
        "figure5_highest_pressure.png",
    }
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in names)
    assert {path.name for path in draw(rows()[:8], tmp_path / "grid")} == {
        "pressure.png",
        "figure5_highest_pressure.png",
    }
    assert draw([], tmp_path / "none") == []
    assert not (tmp_path / "none").exists()


def test_the_command_draws_again_without_running(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in rows()))
    done = CliRunner().invoke(app, ["bench", "draw", str(file), "--plots", str(tmp_path / "plots")])
    assert done.exit_code == 0
    assert "table4" in done.stdout
    assert (tmp_path / "plots" / "pressure.png").exists()
    assert CliRunner().invoke(app, ["bench", "draw", str(tmp_path / "absent")]).exit_code == 1


def test_what_cannot_be_run_is_refused_before_anything_starts(tmp_path: Path) -> None:
    for arguments, reason in (
        (["--preset", "table9"], "table9"),
        (["--engine", "fast"], "fast"),
        (["--preset", "arrivals"], "--trace"),
        (["--cell", "absent"], "no cell"),
    ):
        done = CliRunner().invoke(app, ["bench", "pressure", "--out", str(tmp_path / "rows"), *arguments])
        assert done.exit_code == 1
        assert reason in done.output
    assert not (tmp_path / "rows").exists()
