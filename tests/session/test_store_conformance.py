"""What every store promises, over SQLite and over a real PostgreSQL server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from capsules import HERE, KEY, TURN, Said, capsules, go_on, with_short_segments
from ghostkv.errors import GhostError, RecordRefused, StoreError
from ghostkv.request import Message
from ghostkv.session.calls import CallRecord
from ghostkv.session.capsule import Capsule
from ghostkv.session.manifest import Manifest
from ghostkv.session.record import SessionRecord
from ghostkv.session.stores import open_store
from ghostkv.session.worker import Worker


@pytest.fixture(scope="module")
def answered(small_worker: Worker) -> tuple[Said, list[Capsule]]:
    return capsules(with_short_segments(small_worker), TURN, HERE)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a new store is."""
    if request.param == "sqlite":
        return str(tmp_path / "store.db")
    return str(request.getfixturevalue("postgres").database())


@pytest.fixture
def opened(place: str) -> Iterator[Callable[[], Any]]:
    """Opens the store again, after the one that was open before."""
    stores: list[Any] = []

    def open_() -> Any:
        while stores:
            stores.pop().close()
        stores.append(open_store(place))
        return stores[-1]

    yield open_
    while stores:
        stores.pop().close()


def kept(store: Any, capsule: Capsule) -> None:
    store.keep((capsule.record.tenant, capsule.record.id), capsule).result(20)


def found(store: Any, here: Manifest | None = HERE) -> dict[tuple[str, str], Capsule | GhostError]:
    return {stored.key: stored.found for stored in store.load(here)}


def session(name: str = "s", text: str = "hello", tenant: str = "t") -> Capsule:
    return Capsule(HERE, SessionRecord(name, tenant, 1, "m", "f", messages=(Message("user", text),)))


def test_every_step_of_an_answer_comes_back_equal(
    small_worker: Worker, answered: tuple[Said, list[Capsule]], opened: Callable[[], Any]
) -> None:
    expected, steps = answered
    worker = with_short_segments(small_worker)
    for until in (1, 40, 77, len(steps)):
        store = opened()
        list(store.load(HERE))
        for capsule in (*steps[:until:9], steps[until - 1]):
            kept(store, capsule)
        assert found(opened(), None) == found(opened()) == {KEY: steps[until - 1]}
    back = found(opened())[KEY]
    assert isinstance(back, Capsule) and go_on(worker, back) == expected


def test_what_was_taken_back_is_gone(answered: tuple[Said, list[Capsule]], opened: Callable[[], Any]) -> None:
    _, steps = answered
    store = opened()
    for index in (90, 50, 60):
        kept(store, steps[index])
    assert found(opened()) == {KEY: steps[60]}
    refused = Capsule(HERE, replace(steps[0].record, turns=()))
    store = opened()
    list(store.load(HERE))
    kept(store, refused)
    assert store.held(KEY).result(20) == refused
    assert found(opened()) == {KEY: refused}


def test_tool_calls_come_back(opened: Callable[[], Any]) -> None:
    plain = session()
    calls = (CallRecord("c1", "a", "now", "0" * 64), CallRecord("c2", "a", "rm", "1" * 64, "2" * 64))
    store = opened()
    kept(store, plain)
    capsule = replace(plain, record=replace(plain.record, calls=calls))
    kept(store, capsule)
    back = found(opened())[KEY]
    assert back == capsule and isinstance(back, Capsule)
    assert [call.id for call in back.record.unsettled] == ["c1"]


def test_what_comes_together_is_written_together(opened: Callable[[], Any]) -> None:
    """Also a session that comes twice, and one that cannot be written down: the later counts, no other is harmed."""
    store = opened()
    gate, applied, apply = threading.Event(), list[int](), store._apply

    def slow(changes: Any) -> None:
        gate.wait(20)
        applied.append(len(changes))
        apply(changes)

    store._apply = slow
    first = store.keep(("t", "first"), session("first"))
    waiting = [store.keep(("t", f"s{index}"), session(f"s{index}")) for index in range(20)]
    waiting.append(store.keep(("t", "s7"), session("s7", "later")))
    strange = session("strange")
    wrong = replace(strange, record=replace(strange.record, metadata=((("a", object()),),)))  # type: ignore[arg-type]
    refused = store.keep(("t", "strange"), wrong)
    assert not first.done() and not first.cancel()  # who stops waiting does not take it back
    gate.set()
    for future in (first, *waiting):
        future.result(20)
    with pytest.raises(GhostError):
        refused.result(20)
    assert sum(applied) == 21 and len(applied) <= 3
    back = found(opened())
    assert len(back) == 21 and back["t", "s7"] == session("s7", "later")


def test_deleted_sessions_are_gone_and_tenants_stay_apart(opened: Callable[[], Any]) -> None:
    store = opened()
    for tenant in ("a", "b"):
        kept(store, session(tenant=tenant, text=tenant))
    store.forget(("a", "s")).result(20)
    assert store.held(("a", "s")).result(20) is None
    store.forget(("a", "absent")).result(20)
    assert found(opened()) == {("b", "s"): session(tenant="b", text="b")}
    store = opened()
    kept(store, session(tenant="a", text="again"))
    assert found(opened())["a", "s"] == session(tenant="a", text="again")


def test_a_foreign_session_is_refused_by_name_left_as_it_is_and_can_be_deleted(opened: Callable[[], Any]) -> None:
    kept(opened(), session())
    store = opened()
    error = found(store, Manifest((("model", "n"),)))[KEY]
    assert isinstance(error, RecordRefused) and "model is m, here n" in error.message
    assert found(opened()) == {KEY: session()}
    store = opened()
    list(store.load(Manifest((("model", "n"),))))
    store.forget(KEY).result(20)
    assert found(opened()) == {}


def test_what_could_not_be_written_is_made_up_for(
    answered: tuple[Said, list[Capsule]], opened: Callable[[], Any]
) -> None:
    _, steps = answered
    store = opened()
    kept(store, steps[20])

    def failing(changes: Any) -> None:
        raise OSError("no")

    store._apply, apply = failing, store._apply
    with pytest.raises(StoreError, match="cannot be written: no"):
        kept(store, steps[60])
    store._apply = apply
    assert store.held(KEY).result(20) == steps[20]
    kept(store, steps[90])
    assert found(opened()) == {KEY: steps[90]}


def test_ages_are_never_negative(opened: Callable[[], Any]) -> None:
    kept(opened(), session())
    [stored] = opened().load(HERE)
    assert 0 <= stored.age_s < 60
