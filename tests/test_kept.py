"""`ghostkv sessions`: a store without a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from capsules import capsules, go_on, with_short_segments
from ghostkv.cli import app
from ghostkv.request import Sampling
from ghostkv.session.capsule import Capsule
from ghostkv.session.sqlite_store import SqliteStore
from ghostkv.session.turn import Turn
from ghostkv.session.worker import Worker

TURN = Turn(
    "t",
    Sampling(temperature=0.9, seed=4),
    90,
    prompt=tuple(range(40, 70)),
    ignore_eos=True,
    tenant="t",
    residency="segment",
)


def said(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["sessions", *map(str, arguments)])
    return result.exit_code, result.output


@pytest.fixture
def path(tmp_path: Path, small_worker: Worker) -> Path:
    """A store with a session that broke off in its third segment."""
    _, steps = capsules(with_short_segments(small_worker), TURN, small_worker.named)
    store = SqliteStore(tmp_path / "store.db", 2**24)
    store.keep(("t", "s"), steps[-5]).result(20)
    store.close()
    return tmp_path / "store.db"


def test_a_session_moves_to_another_store_and_goes_on(path: Path, tmp_path: Path, small_worker: Worker) -> None:
    worker = with_short_segments(small_worker)
    expected, _ = capsules(worker, TURN, worker.named)
    code, listed = said("list", path)
    line = json.loads(listed)
    assert code == 0 and line["manifest"] == worker.manifest
    assert (line["id"], line["tenant"], line["status"], line["answers"]) == ("s", "t", "unfinished", 1)
    shown = json.loads(said("show", path, "s")[1])
    assert shown["output_tokens"] == line["output_tokens"] > 60 and shown["manifest"] == dict(worker.named.parts)
    capsule, other = tmp_path / "s.capsule", tmp_path / "other.db"
    assert said("export", path, "s", capsule)[0] == 0 and capsule.stat().st_mode & 0o777 == 0o600
    assert said("import", other, capsule, "--name", "moved") == (0, "moved\n")
    assert said("import", other, capsule, "--name", "moved")[0] == 1
    store = SqliteStore(other, 2**24)
    [stored] = store.load(worker.named)
    store.close()
    assert stored.key == ("t", "moved") and isinstance(stored.found, Capsule)
    assert go_on(worker, stored.found) == expected


def test_what_is_wrong_is_said_in_a_line(path: Path, tmp_path: Path) -> None:
    assert said("show", tmp_path / "absent.db", "s")[0] == 1 and not (tmp_path / "absent.db").exists()
    assert "there is no session 'x'" in said("show", path, "x")[1]
    broken = tmp_path / "broken"
    broken.write_bytes(b"GKC\x01" + b"x" * 90)
    assert "checksum differs" in said("import", path, broken)[1]
    assert said("delete", path, "s") == (0, "") and said("list", path) == (0, "")
