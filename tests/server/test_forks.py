"""Forks over HTTP: places to fork at, forks that go on when read, rollbacks, refusals."""

from __future__ import annotations

from pathlib import Path

from server.test_stored_sessions import LONG, Opening, begun, body, error_of, plain, rest, shown
from services import Scripted, saying, until


def test_forks_go_on_when_they_are_read_and_say_the_same(tmp_path: Path) -> None:
    opening = Opening(tmp_path / "store.db")
    with opening() as service:
        begun(service, body(), 20)
        assert until(lambda: shown(service)["status"] == "idle")
        expected = plain(service)
        places = service.http.get("/v1/sessions/s/boundaries").json()["data"]
        assert [place["kind"] for place in places] == ["start", "start", *["flush"] * 3, "end"]
        for at, place in list(enumerate(places))[1:-1]:
            made = service.http.post("/v1/sessions/s/fork", json={"at": at, "id": f"f{at}"})
            assert (made.status_code, made.json()["status"], made.json()["at"]) == (201, "running", at)
            assert made.json()["output_tokens"] == place["tokens"]
            assert rest(service, 0, f"f{at}") == expected
        whole = service.http.post("/v1/sessions/s/fork").json()
        assert (whole["status"], whole["output_tokens"], whole["forked_from"]) == ("idle", 600, "s")
        assert whole["id"].startswith("sess_")
        assert error_of(service.http.post("/v1/sessions/s/fork", json={"at": 99})) == (400, "invalid_request")
        assert error_of(service.http.post("/v1/sessions/s/fork", json={"id": "f1"})) == (409, "session_exists")
        assert error_of(service.http.post("/v1/sessions/none/fork")) == (404, "session_not_found")
        service.http.post("/v1/sessions/s/fork", json={"at": 2, "id": "later"})
    with opening() as service:  # a fork is as durable as its parent
        assert shown(service, "later")["status"] == "running" and rest(service, 0, "later") == expected


def test_without_a_store_there_is_nothing_to_fork(scripted: Scripted) -> None:
    service = scripted(saying(LONG))
    service.http.post("/v1/sessions", json={"id": "s"})
    assert error_of(service.http.post("/v1/sessions/s/fork")) == (400, "unsupported")
