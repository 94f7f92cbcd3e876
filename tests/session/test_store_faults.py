"""What happens to files and clocks: a disk that is full, a log torn anywhere, a lock, a clock that jumps."""

from __future__ import annotations

import resource
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from capsules import HERE, Said, capsules, go_on, with_short_segments
from capsules import TURN as WITH_LOGPROBS
from ghostkv.errors import StoreError
from ghostkv.request import Sampling
from ghostkv.session.capsule import Capsule
from ghostkv.session.sqlite_store import SqliteStore
from ghostkv.session.worker import Worker

MIB = 2**20
TURN = replace(WITH_LOGPROBS, sampling=Sampling(temperature=0.9, seed=4))


@pytest.fixture(scope="module")
def worker(small_worker: Worker) -> Worker:
    return with_short_segments(small_worker)


@pytest.fixture(scope="module")
def answered(worker: Worker) -> tuple[Said, list[Capsule]]:
    return capsules(worker, TURN, HERE)


def found(path: Path) -> dict[str, Capsule]:
    """All sessions of a store; each must be usable."""
    store = SqliteStore(path, 64 * MIB)
    try:
        sessions = {stored.key[1]: stored.found for stored in store.load(HERE)}
    finally:
        store.close()
    usable = {name: capsule for name, capsule in sessions.items() if isinstance(capsule, Capsule)}
    assert usable.keys() == sessions.keys()
    return usable


@contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """What a full disk does to a process, by the limit of its own: writes fail, this process's only."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_loses_nothing_committed(
    tmp_path: Path, worker: Worker, answered: tuple[Said, list[Capsule]]
) -> None:
    expected, steps = answered
    path = tmp_path / "store.db"
    store = SqliteStore(path, 64 * MIB)
    store.keep(("t", "one"), steps[40]).result(20)
    log = path.with_name("store.db-wal")
    with no_file_longer_than(log.stat().st_size + 100):
        refused = [store.keep(("t", name), steps[60]) for name in ("one", "two")]
        for future in refused:
            with pytest.raises(StoreError, match=r"store\.db cannot be written: .*(full|I/O)"):
                future.result(20)
    assert store.held(("t", "one")).result(20) == steps[40]
    store.keep(("t", "one"), steps[80]).result(20)  # there is room again
    store.close()
    assert found(path) == {"one": steps[80]}
    assert go_on(worker, found(path)["one"]) == expected


def test_a_log_torn_anywhere_leaves_what_was_committed_before(
    tmp_path: Path, answered: tuple[Said, list[Capsule]]
) -> None:
    """As after a loss of power in the midst of a write: at each place the session stands as after some commit."""
    _, steps = answered
    path, kept = tmp_path / "store.db", [steps[index] for index in (10, 40, 70, 100)]
    store = SqliteStore(path, 64 * MIB)
    sizes = []
    log = path.with_name("store.db-wal")
    for capsule in kept:
        store.keep(("t", "s"), capsule).result(20)
        sizes.append(log.stat().st_size)
    copies = [shutil.copy(path, tmp_path / "copy.db"), shutil.copy(log, tmp_path / "copy.db-wal")]
    store.close()
    whole = [Path(copy).read_bytes() for copy in copies]
    came_to = set()
    for size in range(sizes[0] // 2, sizes[-1] + 1, 1531):
        for torn in (whole[1][:size], whole[1][:size] + b"\xa5" * 4096):
            for copy, data in zip(copies, (whole[0], torn), strict=True):
                Path(copy).write_bytes(data)
            Path(f"{tmp_path}/copy.db-shm").unlink(missing_ok=True)
            sessions = found(tmp_path / "copy.db")
            index = kept.index(sessions["s"]) if sessions else -1
            assert index == sum(size >= each for each in sizes) - 1
            came_to.add(index)
    assert came_to >= {-1, 0, 1, 2}


def test_nobody_else_gets_a_lock_while_it_is_open(tmp_path: Path, answered: tuple[Said, list[Capsule]]) -> None:
    path = tmp_path / "store.db"
    store = SqliteStore(path, 64 * MIB)
    store.keep(("t", "s"), answered[1][3]).result(20)
    other = sqlite3.connect(path, timeout=0)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("BEGIN EXCLUSIVE")
    other.close()
    store.keep(("t", "s"), answered[1][9]).result(20)
    store.close()
    assert found(path) == {"s": answered[1][9]}


def test_a_clock_that_jumps_changes_no_session(
    tmp_path: Path, answered: tuple[Said, list[Capsule]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ages are never negative, and each session is the one that was written last, whatever the clock said then."""
    _, steps = answered
    path, year = tmp_path / "store.db", 365 * 86_400.0
    now = time.time()
    store = SqliteStore(path, 64 * MIB)
    for at, (name, step) in enumerate((("a", 5), ("b", 6), ("a", 20), ("b", 21), ("a", 30))):
        monkeypatch.setattr("time.time", lambda at=at: now + year * (-1) ** at)
        store.keep(("t", name), steps[step]).result(20)
    store.close()
    monkeypatch.setattr("time.time", lambda: now)
    assert found(path) == {"a": steps[30], "b": steps[21]}
    store = SqliteStore(path, 64 * MIB)
    ages = {stored.key[1]: stored.age_s for stored in store.load(HERE)}
    store.close()
    assert ages["a"] == 0.0 and ages["b"] == pytest.approx(year)
