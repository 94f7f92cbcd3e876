"""Servers that share a database: a session is one's at a time, and what a server writes that lost one is refused."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from databases import Cluster
from ghostkv.errors import ConfigError, RecordRefused, SessionElsewhere, SessionExists, SessionNotFound, StoreError
from ghostkv.request import Message
from ghostkv.session.capsule import Capsule
from ghostkv.session.manifest import Manifest
from ghostkv.session.postgres_store import PostgresStore
from ghostkv.session.record import NewTurn, SessionRecord
from services import until

pytestmark = pytest.mark.postgres

HERE = Manifest((("model", "m"),))
KEY = ("t", "s")
Opening = Callable[..., PostgresStore]


@pytest.fixture
def url(postgres: Cluster) -> str:
    return postgres.database()


@pytest.fixture
def server(url: str) -> Iterator[Opening]:
    """Opens a store as one more server does."""
    stores: list[PostgresStore] = []

    def open_(lease_s: float = 30.0) -> PostgresStore:
        stores.append(PostgresStore(url, lease_s))
        return stores[-1]

    yield open_
    for store in stores:
        store.close()


def session(text: str = "hello", *, busy: bool = False, name: str = "s") -> Capsule:
    record = SessionRecord(name, "t", 1, "m", "f", messages=(Message("user", text),))
    return Capsule(HERE, record.opened(NewTurn(text, "completions", "{}", 7, 1, 5, 1)) if busy else record)


def kept(store: PostgresStore, capsule: Capsule) -> None:
    store.keep((capsule.record.tenant, capsule.record.id), capsule).result(20)


def claimed(store: PostgresStore, key: tuple[str, str] = KEY) -> Any:
    stored = store.claim(key, HERE).result(20)
    return None if stored is None else stored.found


def lost(store: PostgresStore, url: str) -> None:
    """The server is not heard of any more, and its lease runs out."""
    store._beat = lambda: None  # type: ignore[method-assign]
    store.held(KEY).result(20)  # the beat that was under way
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("UPDATE ghostkv_servers SET until = clock_timestamp() WHERE id = %s", (store._id,))


def test_a_session_that_nobody_answers_in_goes_to_whoever_asks(server: Opening) -> None:
    one, other = server(), server()
    kept(one, session("first"))
    assert claimed(one) is None  # it is its own
    assert claimed(other) == session("first")
    kept(other, session("second"))
    assert claimed(other) is None
    with pytest.raises(SessionElsewhere):
        kept(one, session("of one that has not noticed"))
    assert claimed(one) == session("second")
    kept(one, session("third"))
    assert [stored.found for stored in other.load(None)] == [session("third")]


def test_a_session_that_a_live_server_answers_in_is_its_own(server: Opening) -> None:
    one, other = server(), server()
    kept(one, session("first", busy=True))
    with pytest.raises(SessionElsewhere, match="answering in session 's'"):
        claimed(other)
    assert list(other.load(HERE)) == []
    with pytest.raises(SessionElsewhere):
        other.forget(KEY).result(20)
    kept(one, session("ended"))
    assert claimed(other) == session("ended")


def test_a_lease_that_ran_out_is_taken_over_and_its_server_fenced_off(server: Opening, url: str) -> None:
    one, other = server(), server()
    kept(one, session("first", busy=True))
    lost(one, url)
    kept(one, session("still its own", busy=True))  # nobody has taken it
    [stored] = other.load(HERE)
    assert (stored.key, stored.found) == (KEY, session("still its own", busy=True))
    kept(other, session("of the other", busy=True))
    for _ in range(2):
        with pytest.raises((SessionElsewhere, SessionExists)):
            kept(one, session("of the one that was thought dead", busy=True))
    with pytest.raises(SessionElsewhere):
        claimed(one)
    assert other.held(KEY).result(20) == session("of the other", busy=True)
    assert [each.found for each in one.load(None)] == [session("of the other", busy=True)]


def test_a_generation_is_never_given_twice(server: Opening, url: str) -> None:
    """Also where a server gets back what it had: what it knew of it then does not count."""
    one, other = server(), server()
    kept(one, session("0"))
    seen = []
    for turn, store in enumerate((other, one, other, one), 1):
        assert claimed(store) == session(str(turn - 1))
        kept(store, session(str(turn)))
        with psycopg.connect(url) as db:
            seen.append(db.execute("SELECT generation FROM ghostkv_sessions").fetchone())
    assert seen == [(2,), (3,), (4,), (5,)]


def test_a_lease_is_renewed_while_nothing_is_written(server: Opening) -> None:
    one, other = server(0.5), server()
    kept(one, session(busy=True))
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        with pytest.raises(SessionElsewhere):
            claimed(other)
        time.sleep(0.05)
    one.close()
    assert claimed(other) == session(busy=True)  # a server that ends in order lets go at once


def test_an_id_is_given_once(server: Opening) -> None:
    one, other = server(), server()
    kept(one, session("first"))
    with pytest.raises(SessionExists):
        kept(other, session("second"))
    assert [stored.found for stored in other.load(None)] == [session("first")]
    with pytest.raises(SessionNotFound):
        claimed(other, ("t", "absent"))


def test_a_name_that_the_database_cannot_hold_is_nobody_s(server: Opening) -> None:
    one = server()
    with pytest.raises(SessionNotFound):
        claimed(one, ("t", "a\0b"))
    kept(one, session())
    assert claimed(one) is None


def test_a_session_that_another_deleted_does_not_come_back(server: Opening) -> None:
    one, other = server(), server()
    kept(one, session())
    other.forget(KEY).result(20)
    with pytest.raises(SessionElsewhere, match="deleted"):
        kept(one, session("again"))
    with pytest.raises(SessionNotFound):
        claimed(one)
    kept(one, session("made anew"))
    assert claimed(other) == session("made anew")


def test_what_is_idle_for_one_server_may_be_used_by_another(server: Opening) -> None:
    one, other = server(), server()
    kept(one, session())
    kept(one, session(name="own"))
    assert claimed(other) == session()
    with pytest.raises(SessionElsewhere):
        one.forget(KEY, expired=True).result(20)
    one.forget(("t", "own"), expired=True).result(20)
    assert [stored.key for stored in one.load(None)] == [KEY]


def test_one_that_cannot_be_used_stays_whose_it_is(server: Opening) -> None:
    one, other = server(), server()
    kept(one, session())
    elsewhere = Manifest((("model", "n"),))
    stored = other.claim(KEY, elsewhere).result(20)
    assert stored is not None and isinstance(stored.found, RecordRefused)
    assert claimed(one) is None
    one.close()
    again = server()
    assert [type(stored.found) for stored in again.load(elsewhere)] == [RecordRefused]
    assert list(again.load(elsewhere)) == []  # looked at once
    assert [stored.found for stored in server().load(HERE)] == [session()]


def test_a_damaged_session_is_refused(server: Opening, url: str) -> None:
    one = server()
    kept(one, session())
    kept(one, session(name="whole"))
    one.close()
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("UPDATE ghostkv_parts SET body = '\\x00' WHERE id = 's' AND name = 'talk'")
    found = {stored.key[1]: stored.found for stored in server().load(HERE)}
    assert found["whole"] == session(name="whole") and isinstance(found["s"], RecordRefused)


def test_a_broken_connection_is_made_again(server: Opening, url: str) -> None:
    """What was asked for meanwhile fails; what is written then is whole, whatever had come through."""
    one = server()
    kept(one, session("first"))

    def cut() -> None:
        with psycopg.connect(url, autocommit=True) as db:
            db.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'ghostkv' "
                "AND datname = current_database()"
            )

    cut()
    with pytest.raises(StoreError):
        kept(one, session("lost"))
    kept(one, session("second"))
    assert [stored.found for stored in one.load(None)] == [session("second")]
    apply = one._apply

    def cut_after(changes: Any) -> None:
        apply(changes)
        one._unsure |= changes.keys()  # as where the answer to the commit is lost
        raise OSError("gone")

    one._apply = cut_after  # type: ignore[method-assign]
    with pytest.raises(StoreError, match="gone"):
        kept(one, session("third", busy=True))
    with pytest.raises(StoreError, match="gone"):
        kept(one, session("new", name="new"))
    one._apply = apply  # type: ignore[method-assign]
    kept(one, session("fourth"))
    kept(one, session("newer", name="new"))
    assert [stored.found for stored in one.load(None)] == [session("fourth"), session("newer", name="new")]


def test_two_that_make_the_tables_together(postgres: Cluster) -> None:
    import threading

    url, errors = postgres.database(), list[Exception]()

    def open_() -> None:
        try:
            PostgresStore(url).close()
        except Exception as error:  # noqa: BLE001 - whatever it is
            errors.append(error)

    threads = [threading.Thread(target=open_) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not errors


def test_what_cannot_work_is_said_without_the_password(url: str) -> None:
    for wrong in ("postgresql://u:geheim@127.0.0.1:1/x", "postgresql://u:geheim@[", "postgresql://u:geheim@h:x/y"):
        with pytest.raises(ConfigError) as refused:
            PostgresStore(wrong)
        assert "geheim" not in refused.value.message and "cannot be used" in refused.value.message
    with pytest.raises(ConfigError, match="lease"):
        PostgresStore(url, float("nan"))
    PostgresStore(url).close()
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("UPDATE ghostkv_form SET form = 2")
    with pytest.raises(ConfigError, match="form 2, but this build reads form 1"):
        PostgresStore(url)


def test_a_lost_lease_is_noticed_by_whoever_looks(server: Opening, url: str) -> None:
    """Among three, one gets it."""
    one, others = server(), [server(), server(), server()]
    kept(one, replace(session(busy=True)))
    lost(one, url)
    assert until(lambda: any(store.claim(KEY, HERE).exception(20) is None for store in others))
    owners = [store for store in others if store.claim(KEY, HERE).exception(20) is None]
    assert len(owners) == 1
