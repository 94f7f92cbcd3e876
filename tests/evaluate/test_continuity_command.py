"""`ghostkv eval continuity` from end to end, over a small random model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from checkpoints import write_hf_checkpoint
from ghostkv.cli import app
from ghostkv.evaluate.report import PARTS


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_hf_checkpoint(tmp_path_factory.mktemp("eval") / "tiny", context=4096))


def run(model: str, out: Path, *options: str) -> Any:
    fixed = ["--model", model, "--out", str(out), "--dtype", "float32", "--kv-budget", "24MiB"]
    return CliRunner().invoke(app, ["eval", "continuity", *fixed, *options])


def test_every_part(model: str, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(" ".join(f"The keeper went up {i} stairs, and came down again." for i in range(60)))
    sizes = ["--probes", "1", "--distances", "1", "--boundaries", "3", "--passages", "1", "--targets", "64"]
    result = run(model, tmp_path, "--text", str(text), "--tails", "32", "--segments", "2,3", *sizes)
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "continuity.json").read_text())
    assert set(PARTS) < set(record)
    assert record["segment"]["target"] == 150 and record["manifest"] and record["model"]
    assert record["command"]
    assert record["perplexity"]["form"] == "raw" and list(record["perplexity"]["texts"]) == ["prose", "recurring"]
    texts = record["perplexity"]["texts"].values()
    for row in (row for read in texts for row in (*read["parts"], *read["curves"])):
        assert row["mean_resident"] > 0 and row["peak_resident"] > 0 and row["configuration"]
    arms = record["recall"]["arms"]
    assert {"full", "facts alone", "segment", "last tokens", "sink window", "wrong values"} < set(arms)
    assert all(arm["configuration"] and arm["mean_resident"] for arm in arms.values())
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert len(answers) == 10 * len(arms)
    assert (tmp_path / "continuity.png").read_bytes().startswith(b"\x89PNG")
    for arm in record["instructions"]["arms"].values():
        assert len(arm["by_segment"]) == 2
    assert "void" in result.output  # a random model knows nothing


def test_a_part_alone_and_what_is_refused(model: str, tmp_path: Path) -> None:
    filler = tmp_path / "filler.txt"
    filler.write_text("Sheep graze here. Cows graze there.")
    few = [
        "--parts",
        "recall",
        "--filler",
        str(filler),
        "--arms",
        "facts alone",
        "--probes",
        "1",
        "--distances",
        "1",
        "--no-choice",
    ]
    result = run(model, tmp_path, *few)
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "continuity.json").read_text())
    assert set(record) & set(PARTS) == {"recall"} and list(record["recall"]["arms"]) == ["facts alone"]
    assert record["recall"]["source"] == "invented"
    for wrong, said in (
        (["--form", "sung"], "sung"),
        (["--texts", "verse"], "verse"),
        (["--filler", str(filler), "--documents", str(filler)], "filler"),
        (["--documents", str(filler)], "filler.txt"),
        (["--parts", "everything"], "everything"),
        (["--arms", "magic"], "magic"),
        (["--forms", "sung"], "sung"),
        (["--distances", "5,x"], "distances"),
        (["--segments", "5"], "segments"),
        (["--boundaries", "400"], "context"),
    ):
        result = run(model, tmp_path, *wrong)
        assert result.exit_code == 1 and said in result.stderr, result.output


def test_real_documents(model: str, tmp_path: Path) -> None:
    houses = [(chr(65 + i), 17 * i + 3) for i in range(26)]
    texts = [f"This page is about house {name}.\n\nThe yearly fee of house {name} is ${fee}." for name, fee in houses]
    path = tmp_path / "bank.jsonl"
    path.write_text("\n".join(json.dumps({"content": text}) for text in texts))
    few = ["--parts", "recall", "--arms", "full,segment,another session,facts alone", "--probes", "10"]
    asked = ["--documents", str(path), "--distances", "1", "--forms", "direct,continued"]
    result = run(model, tmp_path, *few, *asked)
    assert result.exit_code == 0, result.output
    recall = json.loads((tmp_path / "continuity.json").read_text())["recall"]
    assert (recall["source"], recall["answer_tokens"]) == ("bank.jsonl", 48)
    assert {cell["form"] for cell in recall["cells"]} == {"direct", "continued"}
    assert all(arm["stale"] is None for arm in recall["arms"].values()) and len(recall["arms"]) == 4
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert {answer["value"][0] for answer in answers} == {"$"}
    result = run(model, tmp_path, *few, *asked[:-1], "paraphrase")
    assert result.exit_code == 1 and "paraphrase" in result.stderr
