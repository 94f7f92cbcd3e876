"""`ghostkv sessions`: a store without a server."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from capsules import capsules, go_on, with_short_segments
from databases import Cluster
from ghostkv.cli import app
from ghostkv.request import Sampling, Token
from ghostkv.session.calls import CallRecord
from ghostkv.session.capsule import Capsule
from ghostkv.session.manifest import Manifest
from ghostkv.session.sqlite_store import SqliteStore
from ghostkv.session.stores import open_store
from ghostkv.session.turn import Output, Turn
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


def of(model: Path) -> list[object]:
    return ["--model", model, "--dtype", "float32", "--kv-budget", "4MiB"]


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


def test_a_session_moves_to_another_store_and_goes_on(
    path: Path, tmp_path: Path, small_worker: Worker, small_hf: Path
) -> None:
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
    assert said("import", other, capsule, "--name", "moved", *of(small_hf)) == (0, "moved\n")
    assert said("import", other, capsule, "--name", "moved", *of(small_hf))[0] == 1
    store = SqliteStore(other, 2**24)
    [stored] = store.load(worker.named)
    store.close()
    assert stored.key == ("t", "moved") and isinstance(stored.found, Capsule)
    assert go_on(worker, stored.found) == expected


def test_an_export_is_sealed_with_the_shared_secret(path: Path, tmp_path: Path, small_hf: Path) -> None:
    """Changed, with another secret, without one where there is one and the other way round: nothing is taken."""
    secrets = [tmp_path / "one", tmp_path / "two"]
    for index, file in enumerate(secrets):
        file.write_text(f"secret number {index}, long enough\n")
    one, two = (("--capsule-secret-file", file) for file in secrets)
    sealed, open_, other = tmp_path / "sealed", tmp_path / "open", tmp_path / "other.db"
    assert said("export", path, "s", sealed, *one)[0] == said("export", path, "s", open_)[0] == 0
    assert sealed.read_bytes().endswith(open_.read_bytes()) and sealed.read_bytes() != open_.read_bytes()
    changed = tmp_path / "changed"
    data = sealed.read_bytes()
    changed.write_bytes(data[:-9] + bytes((data[-9] ^ 1,)) + data[-8:])
    for file, options, why in (
        (sealed, two, "not sealed with this"),
        (changed, one, "not sealed with this"),
        (open_, one, "not sealed with this"),
        (sealed, (), "add --capsule-secret-file"),
    ):
        code, told = said("import", other, file, *options, *of(small_hf))
        assert code == 1 and why in told.replace("\n", " "), told
        assert not other.exists()
    short = tmp_path / "short"
    short.write_text("short")
    assert "at least 16" in said("export", path, "s", sealed, "--capsule-secret-file", short)[1]
    assert said("import", other, sealed, *one, *of(small_hf)) == (0, "s\n")


def test_an_import_is_held_against_the_model(path: Path, tmp_path: Path, small_worker: Worker, small_hf: Path) -> None:
    """As what a peer sends: its checksum is right, its values are not."""
    _, steps = capsules(with_short_segments(small_worker), TURN, small_worker.named)
    capsule, answering = steps[-5], steps[-5].answering
    assert answering is not None
    turn = answering.turn
    wrong = {
        "vocabulary": replace(capsule, answering=replace(answering, prompt=(10**6,))),
        "max_tokens": replace(capsule, answering=replace(answering, turn=replace(turn, max_tokens=10**6))),
        "record.created": replace(capsule, record=replace(capsule.record, created="now")),  # type: ignore[arg-type]
        "digest": replace(capsule, record=replace(capsule.record, calls=(CallRecord("c", "a", "now", "{}"),))),
        "model is other": replace(capsule, manifest=Manifest((("model", "other"),))),
    }
    for why, made in wrong.items():
        (tmp_path / "file").write_bytes(made.encode())
        code, told = said("import", tmp_path / "other.db", tmp_path / "file", *of(small_hf))
        assert code == 1 and why in told.replace("\n", " "), told
    assert not (tmp_path / "other.db").exists()


@pytest.mark.postgres
def test_a_database_is_looked_into_while_a_server_has_it(
    postgres: Cluster, path: Path, tmp_path: Path, small_hf: Path
) -> None:
    url, capsule = postgres.database(), tmp_path / "capsule"
    said("export", path, "s", capsule)
    assert said("import", url, capsule, *of(small_hf)) == (0, "s\n")
    server = open_store(url)
    assert len(list(server.load(stored_manifest(path)))) == 1
    assert json.loads(said("list", url)[1])["id"] == "s" and json.loads(said("show", url, "s")[1])["id"] == "s"
    code, told = said("delete", url, "s")
    assert code == 1 and "another server" in told
    server.close()
    assert said("delete", url, "s") == (0, "") and said("list", url) == (0, "")


def stored_manifest(path: Path) -> Manifest:
    store = SqliteStore(path, 2**24)
    [stored] = store.load(None)
    store.close()
    assert isinstance(stored.found, Capsule)
    return stored.found.manifest


def test_what_is_wrong_is_said_in_a_line(path: Path, tmp_path: Path, small_hf: Path) -> None:
    assert said("show", tmp_path / "absent.db", "s")[0] == 1 and not (tmp_path / "absent.db").exists()
    assert "there is no session 'x'" in said("show", path, "x")[1]
    broken = tmp_path / "broken"
    broken.write_bytes(b"GKC\x02" + b"x" * 90)
    assert "checksum differs" in said("import", path, broken, *of(small_hf))[1]
    assert said("delete", path, "s") == (0, "") and said("list", path) == (0, "")


def test_fork_and_replay(tmp_path: Path, small_hf: Path, small_worker: Worker) -> None:
    """A fork goes on as its parent did; a replay of the parent is equal, and of a changed record is not."""
    turn = Turn(
        "t", Sampling(temperature=0.9, seed=4), 210, prompt=tuple(range(40, 70)), ignore_eos=True, residency="segment"
    )
    expected, steps = capsules(small_worker, turn, small_worker.named)
    path, options = tmp_path / "store.db", of(small_hf)
    store = SqliteStore(path, 2**24)
    store.keep(("", "s"), steps[-3]).result(20)
    store.close()
    places = json.loads(said("show", path, "s")[1])["boundaries"]
    assert [place["kind"] for place in places] == ["start", "start", "flush", "committed"]
    assert said("fork", path, "s", "--name", "f", "--at", "2", *options) == (0, "f\n")
    assert "give another --name" in said("fork", path, "s", "--name", "f", *options)[1]
    assert "boundaries are 0 to 3" in said("fork", path, "s", "--at", "9", *options)[1]
    code, told = said("replay", path, "s", *options)
    assert code == 0 and told.startswith("equal: 2") and "1 boundaries" in told
    store = SqliteStore(path, 2**24)
    found = {stored.key[1]: stored.found for stored in store.load(small_worker.named)}
    fork = found["f"]
    assert isinstance(fork, Capsule) and fork.record.tokens == places[2]["tokens"]
    assert go_on(small_worker, fork) == expected
    events = list(steps[-3].record.turns[-1].events)
    output = events[5]
    assert isinstance(output, Output)
    events[5] = replace(output, tokens=(Token(7),))
    wrong = steps[-3].record.with_last(steps[-3].record.turns[-1].refilled(events))
    store.forget(("", "s")).result(20)
    store.keep(("", "s"), replace(steps[-3], record=wrong)).result(20)
    store.close()
    code, told = said("replay", path, "s", *options)
    assert code == 1 and told.startswith("differs after 5 equal tokens: token 5: recorded id 7, computed ")
