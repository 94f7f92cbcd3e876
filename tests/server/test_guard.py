"""An answer that ends the process wherever it goes on waits longer each time; its neighbours are not blamed for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ghostkv.config import ServerConfig
from ghostkv.server import recovery
from ghostkv.server.metering import Metering
from ghostkv.server.rates import Meter
from ghostkv.server.recovery import PROMPT_TRIES
from ghostkv.session.sqlite_store import SqliteStore
from ghostkv.step import Draw
from keys import access, bearer
from server.test_stored_sessions import LONG, MIB, Opening, begun, body, error_of, plain, rest, shown
from services import ScriptedBackend, Service, saying, scripted_worker, serving, until

POISON = 250  # tokens after which the engine stops


def deadly(history: tuple[int, ...], draw: Draw) -> int:
    """A script that stops the engine in the answer to the prompt that begins with an x."""
    if history[0] == ord("x") and len(history) > POISON:
        raise ZeroDivisionError
    return saying(LONG)(history, draw)


@contextmanager
def opened(path: Path, **config: Any) -> Iterator[Service]:
    store = SqliteStore(path, 64 * MIB)
    worker = scripted_worker(ScriptedBackend(deadly, seconds=0.002))
    try:
        with serving(worker, limits=ServerConfig(**config), store=store) as service:
            yield service
    finally:
        store.close()


def tries(path: Path) -> dict[str, int]:
    store = SqliteStore(path, 64 * MIB)
    found = {each.key[1]: each.found.tries for each in store.load(None)}  # type: ignore[union-attr]
    store.close()
    return found


def test_it_is_tried_some_times_and_then_when_the_others_have_got_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, full = tmp_path / "store.db", {"residency": "full"}
    with opened(path) as service:
        sent = body("bad", prompt="xassistant\n", ghostkv=full)
        begun(service, body("good", ghostkv=full), 20)
        begun(service, sent, 100)
        assert until(lambda: not service.worker.healthy())
    assert tries(path) == {"good": 0, "bad": 0}
    starts = 0
    while tries(path)["bad"] < PROMPT_TRIES and starts < 8:
        starts += 1
        with opened(path, resume_s=0.0) as service:
            assert until(lambda: not service.worker.healthy())
        assert tries(path)["good"] < PROMPT_TRIES
    assert starts >= PROMPT_TRIES
    monkeypatch.setattr(recovery, "_UP_S", 3600.0)
    monkeypatch.setattr(recovery, "_MOST_UP_S", 3600.0)
    with opened(path, resume_s=0.0) as service:
        assert until(lambda: shown(service, "good")["status"] == "idle")
        assert rest(service, 0, "good") == plain(service, "full") and service.worker.healthy()
        assert shown(service, "bad")["status"] == "running"
    monkeypatch.setattr(recovery, "_UP_S", 0.1)
    with opened(path, resume_s=0.0) as service:
        assert until(lambda: not service.worker.healthy())
    assert tries(path) == {"good": 0, "bad": PROMPT_TRIES + 1}
    monkeypatch.setattr(recovery, "_UP_S", 3600.0)
    with opened(path, resume_s=0.0) as service:
        assert service.http.delete("/v1/sessions/bad").status_code == 200
        assert error_of(service.http.get("/v1/sessions/bad")) == (404, "session_not_found")
    assert tries(path) == {"good": 0}


def test_a_shutdown_is_no_try_in_vain(tmp_path: Path) -> None:
    opening = Opening(tmp_path / "store.db")
    with opening(seconds=0.004) as service:
        begun(service, body(), 20)
    for _ in range(PROMPT_TRIES + 1):
        with opening(seconds=0.004, resume_s=0.0) as service:
            assert until(lambda: service.server.serving.gate.inside == 1)
    with opening() as service:
        assert rest(service, 0) == plain(service)


def test_an_answer_that_goes_on_counts_against_its_key(tmp_path: Path) -> None:
    def spent(resume_s: float) -> list[int]:
        """What the key's meter was told, by a server that begins an answer or goes on with it."""
        keys = access("t")
        counted: list[int] = []
        object.__setattr__(keys.keys[0], "meter", Counting(counted))
        store = SqliteStore(tmp_path / "store.db", 64 * MIB)
        worker = scripted_worker(ScriptedBackend(saying(LONG), seconds=0.003))
        limits = ServerConfig(resume_s=resume_s)
        with serving(worker, limits=limits, store=store, access=keys, observers=(Metering(worker),)) as service:
            service.http.headers.update(bearer("t"))
            if resume_s:
                begun(service, body(), 20)
            else:
                assert until(lambda: shown(service)["status"] == "idle")
        store.close()
        return counted

    assert sum(spent(9.0)) >= 20
    assert sum(spent(0.0)) >= 300


class Counting(Meter):
    """Says what was spent."""

    def __init__(self, counted: list[int]) -> None:
        super().__init__()
        self.counted = counted

    def spend(self, tokens: int, now: float) -> None:
        self.counted.append(tokens)
