"""A server with a store: its sessions come back after it, go on, and are refused, forgotten or deleted in order."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from ghostkv.config import ServerConfig, SessionLimits
from ghostkv.server.access import Tenant
from ghostkv.session.sqlite_store import SqliteStore
from keys import access, bearer
from services import ScriptedBackend, Service, saying, scripted_worker, serving, until

MIB = 2**20
LONG = "The Halcyon has 14 masts. Its code is AX-12. Captain Ilse Brandt keeps it in a drawer. " * 8
RAW = "/v1/completions"


class Opening:
    """Servers over one store, one after another."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def __call__(
        self, text: str = LONG, *, seconds: float = 0.0, most: int = 64 * MIB, manifest: str = "", **options: Any
    ) -> Iterator[Service]:
        config = {name: options.pop(name) for name in ("sessions", "resume_s") if name in options}
        store = SqliteStore(self.path, most)
        worker = scripted_worker(ScriptedBackend(saying(text), seconds=seconds))
        if manifest:
            object.__setattr__(worker, "manifest", manifest)
        try:
            with serving(worker, limits=ServerConfig(**config), store=store, **options) as service:
                yield service
        finally:
            store.close()


@pytest.fixture
def opening(tmp_path: Path) -> Opening:
    return Opening(tmp_path / "store.db")


def body(session: str = "s", **fields: Any) -> dict[str, Any]:
    ghostkv = {"session": session, "residency": "segment"} | fields.pop("ghostkv", {})
    return {"model": "scripted", "prompt": "assistant\n", "max_tokens": 600, "ghostkv": ghostkv, **fields}


def begun(service: Service, sent: dict[str, Any], tokens: int) -> tuple[str, int]:
    """The text of a stream's beginning and the index of its last token; then its client hangs up."""
    made = service.http.post("/v1/sessions", json={"id": sent["ghostkv"]["session"]})
    assert made.status_code in (201, 409)
    text, last = "", -1
    with service.http.stream("POST", RAW, json=sent | {"stream": True}) as reply:
        assert reply.status_code == 200, reply.read()
        for line in reply.iter_lines():
            if line.startswith("id: "):
                last = int(line[4:])
            elif line.startswith("data: {"):
                text += "".join(choice["text"] for choice in json.loads(line[6:])["choices"])
                if last >= tokens:
                    return text, last
    raise AssertionError(f"the answer ended at {last}")


def rest(service: Service, start: int, session: str = "s") -> str:
    reply = service.http.get(f"/v1/sessions/{session}/stream", params={"from": start})
    assert reply.status_code == 200, reply.text
    frames = [json.loads(line[6:]) for line in reply.text.split("\n") if line.startswith("data: {")]
    assert reply.text.endswith("data: [DONE]\n\n") and not any("error" in frame for frame in frames), reply.text[-400:]
    return "".join(choice["text"] for frame in frames for choice in frame["choices"])


def plain(service: Service, residency: str = "segment") -> str:
    """The answer of a server that nothing happened to: what the script says depends on what a segment shows."""
    reply = service.http.post(RAW, json=body() | {"ghostkv": {"residency": residency}})
    return str(reply.json()["choices"][0]["text"])


def shown(service: Service, session: str = "s", **headers: str) -> Any:
    return service.http.get(f"/v1/sessions/{session}", headers=headers).json()


def error_of(reply: Any) -> tuple[int, str]:
    return reply.status_code, reply.json()["error"]["code"]


@pytest.mark.parametrize("residency", ["segment", "full", "auto"])
def test_an_answer_that_broke_off_goes_on_where_its_reader_was(opening: Opening, residency: str) -> None:
    """Two restarts; the reader is ahead of what the store knows, and the stream waits for that."""
    sent = body(ghostkv={"residency": residency})
    with opening(seconds=0.003) as service:
        text, last = begun(service, sent, 220)
    with opening(seconds=0.003) as service:
        assert shown(service)["status"] == "running"
        assert service.http.get("/v1/sessions/s/stream", params={"from": 601}).status_code == 400
        with service.http.stream("GET", "/v1/sessions/s/stream", params={"from": last + 1}) as reply:
            assert reply.status_code == 200
            for line in reply.iter_lines():
                if line.startswith("id: "):
                    last = int(line[4:])
                elif line.startswith("data: {"):
                    text += json.loads(line[6:])["choices"][0]["text"]
                    if last >= 400:
                        break
    with opening() as service:
        text += rest(service, last + 1)
        expected = plain(service, residency)
        assert text == expected
        assert (shown(service)["status"], shown(service)["output_tokens"]) == ("idle", 600)
        assert rest(service, 0) == expected
        whole = [entry["usage"]["generated_tokens"] for entry in shown(service)["segments"]]
        assert sum(whole) == 600 and len(whole) == (4 if residency == "segment" else 1)


def test_an_answer_goes_on_by_itself_after_a_while(opening: Opening, caplog: pytest.LogCaptureFixture) -> None:
    """And is then complete in the store."""
    with opening(seconds=0.003) as service:
        begun(service, body(), 200)
    with caplog.at_level(logging.INFO, "ghostkv"), opening(resume_s=0.05) as service:
        assert until(lambda: shown(service)["status"] == "idle")
    [told] = [record.fields for record in caplog.records if record.getMessage() == "session goes on"]  # type: ignore[attr-defined]
    assert told["session"] == "s" and told["at_token"] >= 150 and told["segments"] == 1
    with opening(resume_s=0) as service:
        assert shown(service)["status"] == "idle" and rest(service, 0) == plain(service)


def test_a_kept_session_tells_what_it_prefills_again(opening: Opening, caplog: pytest.LogCaptureFixture) -> None:
    with opening(seconds=0.012) as service:
        begun(service, body(ghostkv={"residency": "full"}), 150)
    with caplog.at_level(logging.INFO, "ghostkv"), opening(resume_s=0) as service:
        assert until(lambda: shown(service)["status"] == "idle")
        restored = [segment["restored"] for segment in shown(service)["segments"]]
        assert rest(service, 0) == LONG[:600]
    [told] = [record.fields for record in caplog.records if record.getMessage() == "session goes on"]  # type: ignore[attr-defined]
    assert told["at_token"] > 50 and restored == [told["at_token"]]
    assert told["prefilled_again"] == told["at_token"] + len("assistant\n") and told["generated_again"] == 0


def held_writes(service: Service) -> threading.Event:
    """After the session itself and an answer's beginning its store writes nothing until this is set."""
    store: Any = service.server.serving.store
    held, apply, allowed = threading.Event(), store._apply, [1]

    def slow(changes: Any) -> None:
        if allowed[0] < 0:
            held.wait(20)
        allowed[0] -= 1
        apply(changes)

    store._apply = slow
    return held


def test_before_a_segment_is_said_its_boundary_is_kept(opening: Opening) -> None:
    """While the store writes nothing, no token after the boundary is said; the engine goes on meanwhile."""
    with opening() as service:
        held = held_writes(service)
        service.http.post("/v1/sessions", json={"id": "s"})
        reader = threading.Thread(target=lambda: service.http.post(RAW, json=body()), daemon=True)
        reader.start()
        assert until(lambda: shown(service)["output_tokens"] > 100)
        backend = service.worker.backend
        assert isinstance(backend, ScriptedBackend)
        assert until(lambda: backend.pool.referenced == 0)  # all of it is generated
        segments = shown(service)["segments"]
        assert len(segments) == 1 and shown(service)["output_tokens"] == segments[0]["usage"]["generated_tokens"] < 200
        held.set()
        reader.join(20)
        assert shown(service)["output_tokens"] == 600


def test_the_conversation_comes_back_with_its_ids(opening: Opening) -> None:
    chat = "/v1/chat/completions"
    hi: list[Any] = [{"role": "user", "content": "hi"}]
    asked = {"model": "scripted", "ghostkv": {"session": "s"}}
    with opening("One answer.") as service:
        service.http.post("/v1/sessions", json={"id": "s", "residency": "full", "metadata": {"a": "b"}})
        said = service.http.post(chat, json=asked | {"messages": hi}).json()["choices"][0]["message"]["content"]
        before = shown(service)
    with opening("One answer.") as service:
        unlike = {"memory_bytes": 0, "tenant": ""}  # an estimate; an alias that each process draws
        assert shown(service) | unlike == before | unlike
        more = [*hi, {"role": "assistant", "content": said}, {"role": "user", "content": "and?"}]
        reply = service.http.post(chat, json=asked | {"messages": more}).json()
        assert reply["usage"]["completion_tokens"] == 12 and shown(service)["turns"][1]["forked_at"] is None
        record = service.server.serving.desk.table.get(("", "s"))
        assert [turn.ids for turn in record.turns] == [tuple(b"One answer.")] * 2


def test_structured_and_planned_answers_start_over(opening: Opening) -> None:
    pattern = {
        "regex": "(The Halcyon has 14 masts\\. Its code is AX-12\\. Captain Ilse Brandt keeps it in a drawer\\. ){8}"
    }
    sent = body(ghostkv=pattern)
    with opening(seconds=0.003) as service:
        text, last = begun(service, sent, 100)
    with opening() as service:
        assert text + rest(service, last + 1) == LONG[:600]
        assert shown(service)["turns"][0]["request"]["ghostkv"]["regex"] == pattern["regex"]


def test_the_next_request_ends_an_answer_that_broke_off(opening: Opening) -> None:
    with opening(seconds=0.003) as service:
        begun(service, body(), 200)
    with opening() as service:
        assert service.http.post(RAW, json=body(max_tokens=20)).status_code == 200
        first, second = shown(service)["turns"]
        assert (first["status"], second["status"]) == ("cancelled", "finished")
        assert second["first_token"] == first["completion_tokens"]
    with opening() as service:
        assert [turn["status"] for turn in shown(service)["turns"]] == ["cancelled", "finished"]


def test_deleted_sessions_stay_deleted(opening: Opening) -> None:
    with opening(seconds=0.003) as service:
        begun(service, body(), 200)
        begun(service, body("t"), 20)
        assert service.http.delete("/v1/sessions/t").json()["deleted"] is True
    with opening() as service:
        assert [each["id"] for each in service.http.get("/v1/sessions").json()["data"]] == ["s"]
        assert service.http.delete("/v1/sessions/s").status_code == 200  # it broke off
    files = b"".join(file.read_bytes() for file in opening.path.parent.iterdir())
    assert b"assistant" not in files and b"AX-12" not in files


def test_idle_sessions_are_forgotten_in_the_store_as_well(opening: Opening) -> None:
    with opening() as service:
        service.http.post("/v1/sessions", json={"id": "s"})
    with opening(sessions=SessionLimits(idle_s=0)) as service:
        assert service.http.get("/v1/sessions").json()["data"] == []
        assert error_of(service.http.get("/v1/sessions/s")) == (404, "session_not_found")
    with opening() as service:
        assert error_of(service.http.get("/v1/sessions/s")) == (404, "session_not_found")


def test_sessions_of_another_model_are_refused_by_name_and_can_be_deleted(opening: Opening) -> None:
    with opening(seconds=0.003) as service:
        begun(service, body(), 200)
    with opening(manifest="f" * 32, resume_s=0) as service:
        for reply in (
            service.http.get("/v1/sessions/s"),
            service.http.get("/v1/sessions/s/stream"),
            service.http.post(RAW, json=body()),
        ):
            assert error_of(reply) == (409, "record_refused")
            assert "model is 0000000000000000…, here ffffffffffffffff…" in reply.json()["error"]["message"]
        assert error_of(service.http.post("/v1/sessions", json={"id": "s"})) == (409, "session_exists")
        assert service.http.post(RAW, json={k: v for k, v in body().items() if k != "ghostkv"}).status_code == 200
    with opening() as service:
        assert len(rest(service, 0)) == 600
        service.http.delete("/v1/sessions/s")
    with opening(manifest="f" * 32) as service:
        assert service.http.post("/v1/sessions", json={"id": "s"}).status_code == 201


def test_a_full_store_stops_admission_and_nothing_else(opening: Opening) -> None:
    """Sessions are refused with 503 and leave no trace, plain requests are answered; after a deletion there is room."""
    with opening(most=MIB // 2) as service:
        codes, large = [], dict.fromkeys(map(str, range(16)), "x" * 500)
        for index in range(60):
            reply = service.http.post("/v1/sessions", json={"id": f"s{index}", "metadata": large})
            codes.append(reply.status_code)
        assert set(codes) == {201, 503} and codes == sorted(codes)
        assert error_of(reply) == (503, "store_unavailable") and "full" in reply.json()["error"]["message"]
        held = codes.count(201)
        asked = body("s0", prompt="x" * 900 + "assistant\n", max_tokens=20)
        assert error_of(service.http.post(RAW, json=asked)) == (503, "store_unavailable")
        assert (shown(service, "s0")["turns"], shown(service, "s0")["status"]) == ([], "idle")
        assert service.http.get("/health").status_code == 200
        assert service.http.post(RAW, json=body() | {"ghostkv": {}}).status_code == 200
        for index in range(8):
            assert service.http.delete(f"/v1/sessions/s{held - 1 - index}").status_code == 200
        assert service.http.post(RAW, json=body("s0")).json()["choices"][0]["text"] == plain(service)
    with opening() as service:
        assert len(service.http.get("/v1/sessions").json()["data"]) == held - 8
        assert rest(service, 0, "s0") == plain(service)


def test_an_answer_whose_boundary_cannot_be_kept_goes_on_when_it_can(opening: Opening) -> None:
    """It breaks off with the store's error, at what is kept; its reader comes back, in the same process."""
    with opening(seconds=0.002) as service:
        store: Any = service.server.serving.store
        text, last = begun(service, body(), 10)
        check, store._check_files = store._check_files, lambda: (_ for _ in ()).throw(OSError("no disk"))
        reply = service.http.get("/v1/sessions/s/stream", params={"from": last + 1})
        frames = [json.loads(line[6:]) for line in reply.text.split("\n") if line.startswith("data: {")]
        assert frames[-1]["error"]["code"] == "store_unavailable" and "no disk" in frames[-1]["error"]["message"]
        text += "".join(frame["choices"][0]["text"] for frame in frames[:-1])
        assert 150 <= len(text) < 200
        assert error_of(service.http.delete("/v1/sessions/s")) == (503, "store_unavailable")
        store._check_files = check
        assert text + rest(service, len(text)) == plain(service)


def test_tenants_sessions_stay_theirs(opening: Opening) -> None:
    """Also when an admin comes to read first."""
    keys = access("one", "two", Tenant("boss", admin=True))
    with opening(seconds=0.003, access=keys) as service:
        service.http.headers.update(bearer("one"))
        begun(service, body(), 200)
    with opening(access=keys) as service:
        assert error_of(service.http.get("/v1/sessions/s", headers=bearer("two"))) == (404, "session_not_found")
        stream = service.http.get("/v1/sessions/s/stream", params={"from": 0}, headers=bearer("boss"))
        assert stream.status_code == 200 and stream.text.endswith("data: [DONE]\n\n") and '"error"' not in stream.text
        service.http.headers.update(bearer("one"))
        assert rest(service, 0) == plain(service)


def test_many_readers_make_it_go_on_once(opening: Opening) -> None:
    with opening(seconds=0.003) as service:
        begun(service, body(), 200)
    with opening(seconds=0.001) as service, ExitStack() as stack:
        texts: list[str] = []
        readers = [threading.Thread(target=lambda: texts.append(rest(service, 0))) for _ in range(6)]
        for reader in readers:
            reader.start()
            stack.callback(reader.join, 20)
        stack.close()
        assert texts == [plain(service)] * 6 and len(shown(service)["turns"]) == 1
        backend = service.worker.backend
        assert isinstance(backend, ScriptedBackend)
        assert backend.engine.stats.finished.total() <= 3 + 4  # segments that were left, and of the plain answer


def test_what_cannot_go_on_says_why(opening: Opening) -> None:
    """A pool that is now too small; with enough it goes on."""
    sent = body(ghostkv={"residency": "full"})
    with opening(seconds=0.003) as service:
        text, last = begun(service, sent, 100)
    store = SqliteStore(opening.path, MIB)
    small = scripted_worker(ScriptedBackend(saying(LONG), blocks=24))
    with serving(small, store=store) as service:
        reply = service.http.get("/v1/sessions/s/stream", params={"from": last + 1})
        assert "context_length_exceeded" in reply.text
    store.close()
    with opening() as service:
        assert text + rest(service, last + 1) == LONG[:600]


def test_an_answer_that_the_pool_would_begin_differently_is_refused(tmp_path: Path) -> None:
    """Under auto the first segment reads the whole prompt where that fits; with less room it would be another text."""
    talk = [{"role": role, "content": LONG[:150]} for role in ("user", "assistant", "user")]
    asked = {"model": "scripted", "messages": talk, "max_tokens": 600, "stream": True}
    sent = asked | {"ghostkv": {"session": "s", "residency": "auto"}}

    @contextmanager
    def pool(blocks: int, seconds: float = 0.0) -> Iterator[Service]:
        store = SqliteStore(tmp_path / "store.db", MIB)
        with serving(
            scripted_worker(ScriptedBackend(saying(LONG), blocks=blocks, seconds=seconds)), store=store
        ) as one:
            yield one
        store.close()

    with pool(160, 0.003) as service:
        assert service.http.post("/v1/sessions", json={"id": "s"}).status_code == 201
        with service.http.stream("POST", "/v1/chat/completions", json=sent) as reply:
            assert reply.status_code == 200, reply.read()
            next(line for line in reply.iter_lines() if line == "id: 200")
    with pool(36) as service:
        reply = service.http.get("/v1/sessions/s/stream", params={"from": 201})
        assert "began with all of its prompt in a pool of another size" in reply.text, reply.text[-400:]
    with pool(160) as service:
        reply = service.http.get("/v1/sessions/s/stream", params={"from": 201})
        assert reply.text.endswith("data: [DONE]\n\n") and '"error"' not in reply.text


def test_one_that_cannot_be_read_stops_no_other(opening: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    with opening(seconds=0.003) as service:
        for name in ("bad", "good"):
            begun(service, body(name), 30)

    async def regrown(worker: object, record: Any, tenant: str) -> None:
        if json.loads(record.parameters)["ghostkv"]["session"] == "bad":
            raise ValueError("a field of another build")

    monkeypatch.setattr("ghostkv.server.app.recorded_grammar", regrown)
    with opening(resume_s=0.05) as service:
        assert until(lambda: shown(service, "good")["status"] == "idle")
        reply = service.http.get("/v1/sessions/bad/stream", params={"from": 0})
        assert "a field of another build" in reply.text
