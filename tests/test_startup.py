"""Phases of a start, and the collector that waits for its end."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys
import textwrap
import time
import weakref

import pytest

from ghostkv import startup
from ghostkv.startup import Phases, pause_collection, process_start, resume_collection


def test_phases_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([12.0, 12.5, 15.25])
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    phases = Phases(since=10.0)
    for name in ("imports", "models", "server"):
        phases.end(name)
    assert phases.fields() == {"imports_s": 2.0, "models_s": 0.5, "server_s": 2.75, "total_s": 5.25}


def test_a_process_started_before_its_first_line() -> None:
    code = "import time; first = time.monotonic(); from ghostkv.startup import process_start as p; print(first - p())"
    began = time.monotonic()
    age = float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert -0.02 <= age <= time.monotonic() - began  # the system counts in hundredths


def test_where_the_system_does_not_tell_it_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    before = time.monotonic()
    assert before <= process_start() <= time.monotonic()


class Node:
    """May hold itself."""

    own: object


def cycle() -> weakref.ref[Node]:
    node = Node()
    node.own = node
    return weakref.ref(node)


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Calls of gc.freeze, which is not done: the tests' objects stay collectable."""
    calls: list[int] = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append(1))
    return calls


def test_the_collector_waits_until_it_is_told(frozen: list[int]) -> None:
    pause_collection()
    try:
        assert not gc.isenabled()
    finally:
        resume_collection()
    assert gc.isenabled()
    assert len(frozen) == 1
    later = cycle()
    gc.collect()
    assert later() is None


def test_who_paused_nothing_finds_the_collector_as_it_was(frozen: list[int]) -> None:
    gc.disable()
    try:
        resume_collection()
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert not frozen
    assert not startup._paused


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="asks glibc")
def test_freed_memory_goes_back_to_the_system() -> None:
    """Small pieces with one at the end that stays, so that glibc cannot give them back by itself."""
    code = """
        import ctypes
        from pathlib import Path
        from ghostkv.startup import give_back_memory
        libc = ctypes.CDLL(None)
        libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        def resident(): return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
        pieces = [libc.malloc(65_000) for _ in range(1000)]
        for piece in pieces: ctypes.memset(ctypes.c_void_p(piece), 1, 65_000)
        for piece in pieces[:-1]: libc.free(piece)
        before = resident()
        give_back_memory()
        print(before - resident())
    """
    found = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert int(found.stdout) > 50_000_000
