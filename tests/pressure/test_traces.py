"""Recorded arrivals keep their order, their scaled lengths and the shape of their gaps."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from itertools import pairwise
from pathlib import Path
from statistics import fmean, pstdev

import pytest

from ghostkv.errors import ConfigError
from ghostkv.pressure.traces import Cut, arrivals

AT = [0.0, 1.0, 1.5, 4.5, 5.0]
LENGTHS = [(800, 80), (400, 160), (1600, 40), (72_000, 8), (8, 8)]


def azure(path: Path) -> Path:
    rows = [f"2023-11-16 18:15:{46 + at:010.7f},{prompt},{output}" for at, (prompt, output) in zip(AT, LENGTHS)]
    path.write_bytes(gzip.compress("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]).encode()))
    return path


def mooncake(path: Path) -> Path:
    rows = [
        json.dumps({"timestamp": round(1000 * at), "input_length": prompt, "output_length": output})
        for at, (prompt, output) in zip(AT, LENGTHS)
    ]
    path.write_text("\n".join(rows))
    return path


def servegen(path: Path, *, kind: str = "Gamma") -> Path:
    lengths = {"input_tokens": "{400: 0.5, 800: 0.5}", "output_tokens": "{1600: 1.0}", "reason_ratio": "{}"}
    empty = dict.fromkeys(lengths, "{}")
    files = {
        "data/chunk-1-trace.csv": f"0,0,0,,0,0\n600,2.0,1.0,{kind},1.0,0.5\n",
        "data/chunk-1-dataset.json": json.dumps({"0": empty, "600": lengths}),
        "data/chunk-2-trace.csv": "600,1.0,1.0,Weibull,2.0,1.0\n",
        "data/chunk-2-dataset.json": json.dumps({"0": lengths}),
    }
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return path


@pytest.mark.parametrize("name,scale", [("azure", 4), ("mooncake", 8)])
def test_lengths_are_scaled_and_time_is_stretched(name: str, scale: int, tmp_path: Path) -> None:
    path = {"azure": azure, "mooncake": mooncake}[name](tmp_path / "trace")
    cell = arrivals(name, path, Cut(count=4, span_s=50.0))
    assert [job.prompt for job in cell.jobs] == [800 // scale, 400 // scale, 1600 // scale, 16]
    assert [job.output for job in cell.jobs] == [80 // scale, 160 // scale, max(8, 40 // scale), 8]
    assert [job.arrival_s for job in cell.jobs] == pytest.approx([0.0, 10.0, 15.0, 50.0])
    assert cell.about["left_out"] == 1  # it fits no context
    gaps = [1.0, 0.5, 3.5]
    assert cell.about["cv"] == pytest.approx(pstdev(gaps) / fmean(gaps), abs=1e-3)


def test_servegen_is_drawn_from_its_windows(tmp_path: Path) -> None:
    cell = arrivals("servegen", servegen(tmp_path / "trace"), Cut(count=1000, span_s=300.0))
    assert {job.prompt for job in cell.jobs} == {100, 200}
    assert {job.output for job in cell.jobs} == {400}
    assert all(before.arrival_s <= after.arrival_s for before, after in pairwise(cell.jobs))
    assert cell.jobs == arrivals("servegen", tmp_path / "trace", Cut(count=1000, span_s=300.0)).jobs
    # A Poisson process of 2 a second beside one of 1 / 0.886 a second and a coefficient of variation of 0.52.
    assert 0.75 < cell.about["cv"] < 1.05


@pytest.mark.parametrize("name", ["azure", "mooncake", "servegen"])
def test_another_file_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "trace").write_text("hello\n")
    with pytest.raises(ConfigError, match=f"not a trace of {name}"):
        arrivals(name, tmp_path / "trace")


def test_unknown_distributions_and_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Pareto"):
        arrivals("servegen", servegen(tmp_path / "trace", kind="Pareto"))
    with pytest.raises(ConfigError, match="'burst'"):
        arrivals("burst", tmp_path / "trace")
