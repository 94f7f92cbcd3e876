"""The store: what it has said is kept is kept, what is damaged is refused by name, what is deleted is gone."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from capsules import HERE, KEY, TURN, Said, capsules, go_on, with_short_segments
from ghostkv.errors import ConfigError, GhostError, RecordRefused, StoreError
from ghostkv.request import Message, Token
from ghostkv.session.capsule import Capsule, seal
from ghostkv.session.manifest import Manifest
from ghostkv.session.parts import change, joined
from ghostkv.session.plain import encode
from ghostkv.session.record import NewTurn, SessionRecord, Status
from ghostkv.session.sqlite_store import SqliteStore
from ghostkv.session.turn import Output
from ghostkv.session.worker import Worker

MIB = 2**20


@pytest.fixture(scope="module")
def worker(small_worker: Worker) -> Worker:
    return with_short_segments(small_worker)


@pytest.fixture(scope="module")
def answered(worker: Worker) -> tuple[Said, list[Capsule]]:
    return capsules(worker, TURN, HERE)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def opened(path: Path) -> Iterator[Callable[..., SqliteStore]]:
    stores: list[SqliteStore] = []

    def open_(most: int = 64 * MIB) -> SqliteStore:
        while stores:
            stores.pop().close()
        stores.append(SqliteStore(path, most))
        return stores[-1]

    yield open_
    while stores:
        stores.pop().close()


def kept(store: SqliteStore, key: tuple[str, str], capsule: Capsule) -> None:
    store.keep(key, capsule).result(20)


def found(store: SqliteStore, here: Manifest = HERE) -> dict[tuple[str, str], Capsule | GhostError]:
    return {stored.key: stored.found for stored in store.load(here)}


def session(name: str, text: str = "hello", tenant: str = "t") -> Capsule:
    record = SessionRecord(name, tenant, 1, "m", "f", messages=(Message("user", text),))
    return Capsule(HERE, record)


# --- keeping ---


def test_every_step_of_an_answer_comes_back_equal(
    worker: Worker, answered: tuple[Said, list[Capsule]], opened: Callable[..., SqliteStore], path: Path
) -> None:
    """Kept at every event, read by another opening of the file; then the answer ends, and a second one begins."""
    expected, steps = answered
    for until in (1, 40, 77, len(steps)):
        store = opened()
        for capsule in steps[:until:3]:
            kept(store, KEY, capsule)
        kept(store, KEY, steps[until - 1])
        store = opened()
        assert found(store) == {KEY: steps[until - 1]}
    back = found(opened())[KEY]
    assert isinstance(back, Capsule) and go_on(worker, back) == expected
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.with_name("store.db-wal").stat().st_mode) == 0o600


def test_what_was_taken_back_is_gone(answered: tuple[Said, list[Capsule]], opened: Callable[..., SqliteStore]) -> None:
    """An answer that goes on from its last boundary has fewer events than were kept; a refused one is no more."""
    _, steps = answered
    store = opened()
    kept(store, KEY, steps[90])
    kept(store, KEY, steps[50])
    kept(store, KEY, steps[60])
    assert found(opened()) == {KEY: steps[60]}
    refused = replace(steps[0].record, turns=())
    store = opened()
    list(store.load(HERE))
    kept(store, KEY, Capsule(HERE, refused))
    assert found(opened()) == {KEY: Capsule(HERE, refused)}


def test_a_step_writes_what_is_new(answered: tuple[Said, list[Capsule]]) -> None:
    """Not the history: a boundary's parts do not grow with it."""
    _, steps = answered
    boundaries = [step for step, after in pairwise(steps) if step.carried is not after.carried]
    long = replace(boundaries[0].record, messages=(Message("user", "x" * 100_000),))
    before = change(KEY, None, replace(boundaries[0], record=long)).written
    made = change(KEY, before, replace(boundaries[1], record=replace(boundaries[1].record, messages=long.messages)))
    assert sum(map(len, made.put.values())) < 40_000
    assert not {"talk", "open", "session", "piece.0"} & made.put.keys()


def test_what_comes_together_is_one_transaction(opened: Callable[..., SqliteStore]) -> None:
    """Sessions wait for one disk together; the later of two capsules of one session counts."""
    store = opened()
    commits = 0

    def traced(statement: str) -> None:
        nonlocal commits
        commits += statement == "COMMIT"

    store._db.set_trace_callback(traced)
    gate = threading.Event()
    apply = store._apply
    store._apply = lambda changes: (gate.wait(20), apply(changes))[1]  # type: ignore[method-assign]
    waiting = [store.keep(("t", f"s{index}"), session(f"s{index}")) for index in range(50)]
    waiting.append(store.keep(("t", "s7"), session("s7", "later")))
    gate.set()
    for each in waiting:
        each.result(20)
    assert commits <= 2
    back = found(opened())
    assert len(back) == 50 and back["t", "s7"] == session("s7", "later")


def test_nothing_waits_for_the_disk_but_who_asked(opened: Callable[..., SqliteStore]) -> None:
    store = opened()
    gate = threading.Event()
    apply = store._apply
    store._apply = lambda changes: (gate.wait(20), apply(changes))[1]  # type: ignore[method-assign]
    future = store.keep(KEY, session("s"))
    assert not future.done() and not future.cancel()  # who stops waiting does not take it back
    gate.set()
    future.result(20)


def test_deleted_means_gone_from_the_files(opened: Callable[..., SqliteStore], path: Path) -> None:
    store = opened()
    for name in ("s", "other"):
        kept(store, ("t", name), session(name, f"the secret of {name} is Zanzibar-{name}-77 " * 50))

    def files() -> bytes:
        return b"".join(file.read_bytes() for file in path.parent.iterdir())

    assert b"Zanzibar-s-77" in files()
    store.forget(KEY).result(20)
    assert b"Zanzibar-s-77" not in files() and b"Zanzibar-other-77" in files()
    assert list(found(opened())) == [("t", "other")]


def test_sessions_of_tenants_stay_apart(opened: Callable[..., SqliteStore]) -> None:
    store = opened()
    for tenant in ("a", "b"):
        kept(store, (tenant, "s"), session("s", tenant, tenant))
    store.forget(("a", "s")).result(20)
    assert found(opened()) == {("b", "s"): session("s", "b", "b")}


def test_age_is_by_the_clock_on_the_wall_and_never_negative(
    opened: Callable[..., SqliteStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after the clock has jumped back."""
    kept(opened(), KEY, session("s"))
    now = time.time()
    clock = [now]
    monkeypatch.setattr(time, "time", lambda: clock[0])
    for then, least, most in ((now + 1000, 990, 1001), (now - 1000, 0, 0)):
        clock[0] = then
        [stored] = opened().load(HERE)
        assert least <= stored.age_s <= most


# --- what is damaged, foreign or newer ---


def edited(path: Path, statement: str, *values: Any) -> None:
    with sqlite3.connect(path) as db:
        db.execute(statement, values)
    db.close()


OTHERS = "UPDATE parts SET body = (SELECT body FROM parts WHERE id = 'other' AND name = ?) WHERE id = 's' AND name = ?"
FLIPPED = [
    ("UPDATE parts SET body = CAST(? || substr(body, 2) AS BLOB) WHERE id = 's' AND name = 'talk'", b"X"),
    ("UPDATE parts SET body = 'text' WHERE id = 's' AND name = 'talk'",),
    ("UPDATE parts SET body = substr(body, 1, length(body) - 9) WHERE id = 's' AND name = 'state'",),
    (OTHERS, "talk", "talk"),
    (OTHERS, "root", "root"),
    ("DELETE FROM parts WHERE id = 's' AND name = 'piece.1'",),
    ("DELETE FROM parts WHERE id = 's' AND name = 'root'",),
    ("DELETE FROM parts WHERE id = 's'",),
    ("UPDATE parts SET name = 'piece.99' WHERE id = 's' AND name = 'piece.0'",),
    ("INSERT INTO parts SELECT tenant, id, 'piece.99', body FROM parts WHERE id = 's' AND name = 'piece.0'",),
]


@pytest.mark.parametrize("edit", FLIPPED)
def test_a_damaged_session_is_refused_and_no_other(
    answered: tuple[Said, list[Capsule]], opened: Callable[..., SqliteStore], path: Path, edit: tuple[Any, ...]
) -> None:
    _, steps = answered
    store = opened()
    for capsule in steps[::20]:
        kept(store, KEY, capsule)
    other = replace(steps[40], record=replace(steps[40].record, id="other"))
    kept(store, ("t", "other"), other)
    store.close()
    edited(path, *edit)
    store = SqliteStore(path, MIB * 64)
    back = found(store)
    assert back["t", "other"] == other
    assert isinstance(back[KEY], RecordRefused) and "session 's' cannot be used" in str(back[KEY])
    store.forget(KEY).result(20)
    assert list(found(store)) == [("t", "other")]
    store.close()


def test_an_older_part_is_seen(answered: tuple[Said, list[Capsule]]) -> None:
    """Each part is whole and belongs to this session, but not to this moment."""
    _, steps = answered
    early, late = change(KEY, None, steps[60]), change(KEY, None, steps[100])
    assert joined(KEY, late.put, HERE).capsule == steps[100]
    for name, said in (("state", "state"), ("payload", "payload"), ("piece.0", "pieces are not those")):
        with pytest.raises(RecordRefused, match=said):
            joined(KEY, {**late.put, name: early.put[name]}, HERE)
    with pytest.raises(RecordRefused):
        joined(("t", "another"), late.put, HERE)
    for root in ((), (HERE.parts,), (HERE.parts, 3, 4, ""), 7):  # sealed, and still none
        with pytest.raises(RecordRefused, match="root"):
            joined(KEY, {**late.put, "root": seal(encode(root), encode((*KEY, "root")))}, HERE)


def test_a_foreign_session_is_refused_naming_what_differs(opened: Callable[..., SqliteStore]) -> None:
    kept(opened(), KEY, session("s"))
    error = found(opened(), Manifest((("model", "n"),)))[KEY]
    assert isinstance(error, RecordRefused) and "model is m, here n" in error.message
    assert isinstance(found(opened())[KEY], Capsule)  # it was left as it is


def test_a_newer_store_and_what_is_no_store_are_refused(path: Path) -> None:
    SqliteStore(path, MIB).close()
    edited(path, "PRAGMA user_version = 2")
    with pytest.raises(ConfigError, match="form 2, but this build reads form 1"):
        SqliteStore(path, MIB)
    path.write_bytes(b"not a database" * 500)
    with pytest.raises(ConfigError, match="cannot be used"):
        SqliteStore(path, MIB)
    with pytest.raises(ConfigError, match="cannot be used"):
        SqliteStore(path.parent / "absent" / "store.db", MIB)
    with pytest.raises(ConfigError, match="needs at least"):
        SqliteStore(path, 1000)


def test_a_torn_page_is_refused(opened: Callable[..., SqliteStore], path: Path) -> None:
    """A page in the middle of the file, overwritten."""
    store = opened()
    for index in range(40):
        kept(store, ("t", f"s{index}"), session(f"s{index}", f"text {index} " * 900))
    store.close()
    data = bytearray(path.read_bytes())
    at = data.index(b"text 20 " * 4)
    data[at // 4096 * 4096 : at // 4096 * 4096 + 4096] = b"\xaa" * 4096
    path.write_bytes(data)
    store = SqliteStore(path, 64 * MIB)
    back = found(store)
    store.close()
    assert isinstance(back["t", "s20"], RecordRefused)
    assert sum(isinstance(each, Capsule) for each in back.values()) >= 35


# --- what goes wrong while it writes ---


def test_a_full_store_loses_nothing_and_takes_more_when_there_is_room(opened: Callable[..., SqliteStore]) -> None:
    store = opened(most=MIB // 2)
    held = 0
    with pytest.raises(StoreError, match="full"):
        for index in range(100):
            kept(store, ("t", f"s{index}"), session(f"s{index}", "x" * 20_000))
            held = index + 1
    assert held > 5
    with pytest.raises(StoreError, match="full"):
        kept(store, ("t", "more"), session("more", "y" * 20_000))
    store.forget(("t", "s0")).result(20)
    kept(store, ("t", "more"), session("more", "y" * 20_000))
    expected = {("t", f"s{index}"): session(f"s{index}", "x" * 20_000) for index in range(1, held)}
    assert found(opened()) == expected | {("t", "more"): session("more", "y" * 20_000)}


def test_a_step_that_could_not_be_written_is_made_up_for(
    answered: tuple[Said, list[Capsule]], opened: Callable[..., SqliteStore]
) -> None:
    _, steps = answered
    store = opened()
    kept(store, KEY, steps[20])
    apply, store._apply = store._apply, lambda changes: (_ for _ in ()).throw(sqlite3.OperationalError("no"))  # type: ignore
    with pytest.raises(StoreError, match="cannot be written: no"):
        kept(store, KEY, steps[60])
    store._apply = apply  # type: ignore[method-assign]
    kept(store, KEY, steps[90])
    assert found(opened()) == {KEY: steps[90]}


@pytest.mark.parametrize("suffix", ["", "-wal"])
def test_a_deleted_file_is_noticed(opened: Callable[..., SqliteStore], path: Path, suffix: str) -> None:
    """SQLite itself would go on writing to nowhere."""
    store = opened()
    kept(store, KEY, session("s"))
    path.with_name(path.name + suffix).unlink()
    with pytest.raises(StoreError, match="deleted or replaced"):
        kept(store, KEY, session("s", "again"))


def test_one_process_at_a_time(opened: Callable[..., SqliteStore], path: Path) -> None:
    """Also where the other one is no ghostkv; when it has ended, or was killed, the store is free at once."""
    opened()
    program = (
        "import sys; from pathlib import Path; from ghostkv.session.sqlite_store import SqliteStore\n"
        "try: SqliteStore(Path(sys.argv[1]), 2**20); print('opened', flush=True); input()\n"
        "except Exception as error: print(type(error).__name__, error, flush=True)"
    )
    command = [sys.executable, "-c", program, str(path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL).stdout
    assert said.startswith("ConfigError") and "another process has it open" in said


def test_what_cannot_be_written_down_is_no_other_s_concern(opened: Callable[..., SqliteStore]) -> None:
    store = opened()
    strange = Capsule(HERE, replace(session("s").record, metadata=((("a", object()),),)))  # type: ignore[arg-type]
    future = store.keep(KEY, strange)
    kept(store, ("t", "other"), session("other"))
    with pytest.raises(GhostError):
        future.result(20)
    assert list(found(opened())) == [("t", "other")]


def test_outputs_and_ends_of_answers_are_kept(opened: Callable[..., SqliteStore]) -> None:
    record = session("s").record
    event = Output((Token(3, -0.5, ((3, -0.5), (4, float("-inf")))),), "\ud800é")

    asked = NewTurn("a", "completions", "{}", 7, 2**63 - 1, 5, 1)
    running = record.opened(asked)
    running = running.with_last(running.turns[-1].added(event))
    ended = running.closed(Status.FINISHED, "", lambda _: b"")
    for each in (running, ended, ended.opened(replace(asked, id="b"))):
        kept(opened(), KEY, Capsule(HERE, each))
        assert found(opened()) == {KEY: Capsule(HERE, each)}
