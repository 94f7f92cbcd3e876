"""Sessions handed over between two running servers: readers notice nothing, and nothing is left or taken twice."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ghostkv.config import ServerConfig
from ghostkv.errors import ConfigError, RecordRefused
from ghostkv.server.peer import CAPSULES, Peers
from ghostkv.session.sqlite_store import SqliteStore
from ghostkv.session.travel import arrived, sealed, unsealed
from ghostkv.session.worker import Worker
from server.test_stored_sessions import LONG, MIB, body, error_of, plain, rest, shown
from services import Scripted, ScriptedBackend, Service, saying, scripted_worker, serving, until

SECRET = b"sixteen bytes or more"


@contextmanager
def opened(path: Path, *urls: str, seconds: float = 0.004, text: str = LONG) -> Iterator[Service]:
    store = SqliteStore(path, 64 * MIB)
    worker = scripted_worker(ScriptedBackend(saying(text), seconds=seconds))
    try:
        peers = Peers(urls, SECRET)
        with serving(worker, drain_s=20, limits=ServerConfig(), store=store, peers=peers) as service:
            yield service
    finally:
        store.close()


def streamed(service: Service, sent: dict[str, Any], moved: threading.Event) -> str:
    """All that a stream says; `moved` is set after some tokens."""
    text, last = "", -1
    service.http.post("/v1/sessions", json={"id": sent["ghostkv"]["session"]})
    with service.http.stream("POST", "/v1/completions", json=sent | {"stream": True}) as reply:
        assert reply.status_code == 200, reply.read()
        for line in reply.iter_lines():
            last = int(line[4:]) if line.startswith("id: ") else last
            if line.startswith("data: {"):
                frame = json.loads(line[6:])
                assert "error" not in frame, frame
                text += "".join(choice["text"] for choice in frame["choices"])
            if last >= 30:
                moved.set()
        assert line == "data: [DONE]" or not line
    return text


def test_streams_go_on_while_their_sessions_move(tmp_path: Path) -> None:
    """Every policy, and one session that answers nothing. The old server ends by itself once nobody reads there."""
    with opened(tmp_path / "b.db") as there, opened(tmp_path / "a.db", there.url) as here:
        expected = {name: plain(there, name) for name in ("segment", "full", "auto")}
        here.http.post("/v1/sessions", json={"id": "idle"})
        said: dict[str, str] = {}
        moved = [threading.Event() for _ in expected]

        def read(name: str, event: threading.Event) -> None:
            said[name] = streamed(here, body(name, ghostkv={"residency": name}), event)

        threads = [threading.Thread(target=read, args=pair) for pair in zip(expected, moved, strict=True)]
        for thread in threads:
            thread.start()
        assert all(event.wait(20) for event in moved)
        begun = here.http.post("/v1/admin/drain", json={"to": there.url})
        assert (begun.status_code, begun.json()["left"]) == (202, 4)
        assert error_of(here.http.post("/v1/completions", json=body() | {"ghostkv": {}})) == (503, "draining")
        assert until(lambda: here.http.get("/v1/admin/drain").json()["left"] == 0)
        told = here.http.get("/v1/admin/drain").json()
        assert not told["failed"] and {each["session"] for each in told["moved"]} == {*expected, "idle"}
        assert all(each["bytes"] > 500 for each in told["moved"])
        assert {session["id"] for session in there.http.get("/v1/sessions").json()["data"]} == {*expected, "idle"}
        assert until(lambda: here.http.get("/v1/sessions/idle").status_code == 409)
        refused = here.http.get("/v1/sessions/idle")
        assert error_of(refused) == (409, "record_refused") and there.url in refused.json()["error"]["message"]
        for thread in threads:
            thread.join(20)
        assert said == expected
        for name, text in expected.items():
            assert rest(there, 0, name) == text
        assert until(lambda: here.server.should_exit)
    store = SqliteStore(tmp_path / "a.db", 64 * MIB)
    assert list(store.load(None)) == []
    store.close()


def test_what_the_peer_does_not_take_stays(tmp_path: Path) -> None:
    """Another manifest there: the answer ends here, and its session is in this store."""
    with opened(tmp_path / "b.db") as there, opened(tmp_path / "a.db", there.url) as here:
        object.__setattr__(there.worker, "manifest", "1" * 32)
        event, said = threading.Event(), []
        expected = plain(here)
        thread = threading.Thread(target=lambda: said.append(streamed(here, body(), event)))
        thread.start()
        assert event.wait(20)
        here.http.post("/v1/admin/drain", json={"to": there.url})
        assert until(lambda: bool(here.http.get("/v1/admin/drain").json()["failed"]))
        assert "made elsewhere" in here.http.get("/v1/admin/drain").json()["failed"]["s"]
        thread.join(20)
        assert said == [expected]
    with opened(tmp_path / "a.db") as again:
        assert rest(again, 0) == expected


def test_who_may_hand_over_what_to_whom(tmp_path: Path, scripted: Scripted) -> None:
    with opened(tmp_path / "b.db") as there:
        assert error_of(there.http.post("/v1/admin/drain", json={"to": "http://elsewhere"})) == (400, "invalid_request")
        for data in (
            b"",
            b"x" * 100,
            sealed(b"GKC", b"another secret of theirs", CAPSULES),
            sealed(b"GKC", SECRET, "x"),
        ):
            assert error_of(there.http.post(CAPSULES, content=data)) == (409, "record_refused")
        assert error_of(there.http.post(CAPSULES, content=sealed(b"GKC", SECRET, CAPSULES))) == (409, "record_refused")
    open_server = scripted(saying(LONG))
    assert open_server.http.post(CAPSULES, content=b"").status_code == 404
    with pytest.raises(ConfigError, match="no address"):
        Peers(("ftp://x",), SECRET)
    with pytest.raises(ConfigError, match="secret"):
        Peers(("http://x:1",))


def test_a_sealed_capsule_is_looked_at_before_it_is_used(small_worker: Worker) -> None:
    from capsules import capsules, with_short_segments
    from ghostkv.request import Message, Sampling, Token
    from ghostkv.session.turn import Output, Turn

    worker = with_short_segments(small_worker)
    turn = Turn(
        "t",
        Sampling(seed=3, logprobs=1),
        90,
        messages=(Message("user", "Ships."),),
        residency="segment",
        ignore_eos=True,
    )
    _, found = capsules(worker, turn, worker.named)
    good = found[-5]
    assert unsealed(sealed(b"body", SECRET, "p"), SECRET, "p") == b"body"
    assert arrived(good.encode(), worker.named, worker).record == good.record
    answering, carried, record = good.answering, good.carried, good.record
    assert answering is not None and carried is not None
    last = record.turns[-1]
    first = next(event for event in last.events if isinstance(event, Output))

    def with_token(token: Token) -> Any:
        events = [replace(event, tokens=(token,)) if event is first else event for event in last.events]
        return replace(good, record=record.with_last(last.refilled(events)))

    asked, hot = answering.turn, Sampling(temperature=99)
    bad = {
        "vocabulary": with_token(Token(worker.tokenizer.vocab_size, -0.5)),
        "log-probability": with_token(Token(1, 0.5)),
        "cannot be": replace(good, record=replace(record, created="yesterday")),  # type: ignore[arg-type]
        "id is none": replace(good, record=replace(record, id="../x")),
        "as many": replace(good, record=record.with_last(replace(last, tokens=last.tokens + 1))),
        "temperature": replace(good, answering=replace(answering, turn=replace(asked, sampling=hot))),
        "max_tokens": replace(good, answering=replace(answering, turn=replace(asked, max_tokens=10**9))),
        "client_ids": replace(good, carried=replace(carried, state=replace(carried.state, client_ids=frozenset({-1})))),
        "counts": replace(good, carried=replace(carried, state=replace(carried.state, counts=((10**7, 1),)))),
    }
    for said, capsule in bad.items():
        with pytest.raises(RecordRefused, match=said):
            arrived(capsule.encode(), worker.named, worker)


def test_an_answer_that_ends_before_a_boundary_leaves_at_its_end(tmp_path: Path) -> None:
    with opened(tmp_path / "b.db") as there, opened(tmp_path / "a.db", there.url) as here:
        event, said = threading.Event(), []
        sent = body(max_tokens=80)
        thread = threading.Thread(target=lambda: said.append(streamed(here, sent, event)))
        thread.start()
        assert event.wait(20)
        assert here.http.post("/v1/admin/drain", json={"to": there.url}).json()["left"] == 1
        thread.join(20)
        assert until(lambda: bool(there.http.get("/v1/sessions").json()["data"]))
        assert (shown(there)["status"], shown(there)["output_tokens"]) == ("idle", 80) and rest(there, 0) == said[0]
