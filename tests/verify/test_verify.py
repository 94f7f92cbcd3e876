"""`ghostkv verify` on a small random model: everything equal, and what is not is found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from checkpoints import write_hf_checkpoint
from ghostkv.cli import app
from ghostkv.config import EngineConfig
from ghostkv.request import Token
from ghostkv.verify import changes, table
from ghostkv.verify.changes import CHANGES
from ghostkv.verify.seen import MEASURES, Compared, Seen, likeness
from ghostkv.verify.table import Verification, as_html, as_json, verification

TOKENS = 204  # a boundary comes at 192 at the latest


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf_checkpoint(tmp_path_factory.mktemp("verified") / "small", context=2048)


@pytest.fixture(scope="module")
def found(path: Path) -> Verification:
    return verification(path, EngineConfig(dtype="float32"), TOKENS, lambda _: None)


def test_every_cell_is_equal_or_says_why_it_is_not_there(found: Verification) -> None:
    assert found.equal
    assert [(row.change, row.residency) for row in found.rows] == [
        (change, residency) for change in CHANGES for residency in ("full", "segment", "auto")
    ]
    missing = {(row.change, row.residency) for row in found.rows if row.cells["tokens"] != "equal"}
    assert missing == {("replay of recorded decisions", residency) for residency in ("full", "segment")}
    for row in found.rows:
        for measure in MEASURES:
            if (row.change, row.residency) in missing:
                assert row.cells[measure].startswith("unavailable: ") and len(row.cells[measure]) > 20
            else:
                assert row.cells[measure] == "equal" and row.compared[measure] >= 2 * TOKENS and row.how


def test_the_changes_took_place(found: Verification) -> None:
    how = {(row.change, row.residency): row.how for row in found.rows}
    assert "10 answers a step" in how["batch and co-tenants", "full"]
    assert "found in the index" in how["prefix hit", "segment"]
    assert all("blocks kept" in how["tool pause", residency] for residency in ("full", "segment", "auto"))
    assert "flushed after 1" in how["replay of recorded decisions", "auto"]
    assert "after 196 tokens, went on at 196" in how["restart from the store", "full"]
    assert "after 196 tokens, went on at 1" in how["fork", "segment"]  # at its boundary


def test_three_forms_of_one_table(found: Verification) -> None:
    told = json.loads(as_json(found))
    assert told["equal"] and len(told["rows"]) == 3 * len(CHANGES) and len(told["manifest"]) == 32
    assert as_html(found).count("<tr>") == 1 + len(found.rows)


SEEN = Seen((Token(1, -0.5, ((1, -0.5),)), Token(2, -0.7, ((2, -0.7),))), "ab", ({(0, 5): "x", (0, 6): "y"},))


@pytest.mark.parametrize(
    ("other", "differs"),
    [
        (replace(SEEN, tokens=(Token(1, -0.5, ((1, -0.5),)), Token(3, -0.7, ((2, -0.7),)))), {"tokens"}),
        (replace(SEEN, tokens=(SEEN.tokens[0], Token(2, -0.6, ((2, -0.7),)))), {"log-probabilities"}),
        (replace(SEEN, tokens=(SEEN.tokens[0], Token(2, -0.7, ((2, -0.6),)))), {"top-5"}),
        (replace(SEEN, logits=({(0, 5): "x", (0, 6): "z"},)), {"logits"}),
        (replace(SEEN, logits=({(0, 5): "x"},)), {"logits"}),
        (replace(SEEN, logits=({(0, 5): "x", (0, 6): "y"}, {(0, 5): "w"})), {"logits"}),
        (replace(SEEN, text="ac"), {"tokens"}),
        (replace(SEEN, tokens=SEEN.tokens[:1]), {"log-probabilities", "top-5", "tokens"}),
        (replace(SEEN, logits=({(0, 5): "x"}, {(0, 6): "y", (0, 9): "guess"})), set()),
    ],
)
def test_what_differs_is_said_by_measure(other: Seen, differs: set[str]) -> None:
    compared = likeness(SEEN, other).of
    assert {measure for measure, found in compared.items() if found.difference} == differs
    assert Compared(1) + Compared(2, "x") == Compared(3, "x")


def test_a_difference_fails_the_command(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One bit of one logit, in one change."""

    @contextmanager
    def wrong(rig: Any, **options: Any) -> Iterator[Any]:
        with type(rig).opened(rig, **options) as engine:
            saw = engine.sight.saw
            engine.sight.saw = lambda request, length, row: saw(
                request, length, row[:-1] + b"\x01" if request == "full-seeded.0" else row
            )
            yield engine

    real = CHANGES["cancel and retry"]

    class Wrong:
        def __init__(self, rig: Any) -> None:
            self.rig = rig

        def opened(self, **options: Any) -> Any:
            return wrong(self.rig, **options)

    monkeypatch.setitem(changes.CHANGES, "cancel and retry", lambda rig, found: real(Wrong(rig), found))  # type: ignore[arg-type]
    arguments = ["verify", "--model", str(path), "--dtype", "float32", "--tokens", "20", "--format", "json"]
    result = CliRunner().invoke(app, [*arguments, "--only", "cancel and retry"])
    assert result.exit_code == 1
    rows = {row["residency"]: row for row in json.loads(result.stdout[result.stdout.index("{") :])["rows"]}
    assert rows["full"]["logits"]["result"].startswith("differs: segment 0 after ")
    assert rows["full"]["tokens"]["result"] == "equal" and rows["segment"]["logits"]["result"] == "equal"
    assert "the changes are" in CliRunner().invoke(app, [*arguments, "--only", "weather"]).output
    assert table.as_text(Verification("m", "d", "auto", "x", 1, ())).row_count == 0
