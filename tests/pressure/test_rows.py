"""Rows on disk survive a kill, and are found again by their configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ghostkv.errors import ConfigError
from ghostkv.pressure.rows import Rows, key_of, read_rows


def row(key: str, **more: Any) -> dict[str, Any]:
    return {"key": key, "cell": {}, "engine": "e", **more}


@given(st.integers(0, 200))
def test_a_file_that_was_cut_anywhere_keeps_its_whole_rows(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    file = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    written = [row("a"), row("b"), row("c")]
    whole = "".join(json.dumps(each) + "\n" for each in written)
    file.write_text(whole[: min(cut, len(whole))])
    rows = Rows(file)
    assert rows.rows == written[: whole[:cut].count("\n")]
    rows.append(row("d"))
    assert [each["key"] for each in Rows(file).rows] == [each["key"] for each in rows.rows]


def test_a_failed_row_is_not_done_and_gives_way(tmp_path: Path) -> None:
    rows = Rows(tmp_path / "rows.jsonl")
    rows.append(row("a", failed="no"))
    assert rows.done("a") is None
    rows.append(row("a", value=1))
    rows.append(row("a", failed="no"))
    found = rows.done("a")
    assert found is not None
    assert found["value"] == 1
    assert [each.get("value") for each in read_rows(rows.path)] == [1]


def test_what_is_no_file_of_rows_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "other.jsonl"
    file.write_text('{"key": "a", "cell": {}, "engine": "e"}\n{"sequences": 1}\n')
    content = file.read_text()
    with pytest.raises(ConfigError, match="line 2"):
        Rows(file)
    assert file.read_text() == content
    with pytest.raises(ConfigError, match="no such file"):
        read_rows(tmp_path / "absent.jsonl")


def test_a_key_depends_on_values_and_not_on_their_order() -> None:
    assert key_of({"a": 1, "b": [1, 2]}) == key_of({"b": [1, 2], "a": 1})
    assert len({key_of({"a": value}) for value in (1, 2, "1", [1], None)}) == 5
