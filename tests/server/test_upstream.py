"""`serve --upstream` from end to end: our own server as the upstream of another one."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ghostkv.errors import ConfigError
from ghostkv.launch import engine_config, open_upstream
from ghostkv.session.sqlite_store import SqliteStore
from scraping import Scrape
from services import Service, serving, until
from stub_upstream import StubUpstream, stubbed

BODY: dict[str, Any] = {"model": "small", "messages": [{"role": "user", "content": "hi there"}], "temperature": 0}


@pytest.fixture(scope="module")
def said() -> list[str]:
    return []


@pytest.fixture(scope="module")
def front(small: Service, small_hf: Path, said: list[str]) -> Iterator[Service]:
    """A server whose engine is the server `small`, context 512."""
    config = engine_config(max_session_tokens=4000)
    with serving(open_upstream([small.url], config, model=str(small_hf), announce=said.append)) as service:
        yield service


def chat(service: Service, **more: Any) -> Any:
    return service.http.post("/v1/chat/completions", json=BODY | more)


def test_what_it_costs_is_said_at_start(front: Service, said: list[str]) -> None:
    assert any("no answer is exact" in line for line in said)
    assert not any("counts are about right" in line or "min_tokens" in line for line in said)
    assert front.http.get("/v1/models").json()["data"][0]["id"] == "small"
    assert front.http.get("/v1/models").json()["data"][0]["max_model_len"] == 512


@pytest.mark.parametrize("residency", ["full", "segment"])
def test_the_answer_of_the_upstreams_own_model(front: Service, small: Service, residency: str) -> None:
    """Also segment by segment: the same prompts are assembled and the same boundaries found."""
    asked = {"max_tokens": 400, "ignore_eos": True, "ghostkv": {"residency": residency}}
    through, own = chat(front, **asked).json(), chat(small, **asked).json()
    assert through["choices"][0]["message"]["content"] == own["choices"][0]["message"]["content"]
    assert through["usage"]["completion_tokens"] == 400
    for name in ("segments", "carried_tokens", "archived_tokens", "decisions"):
        assert through["ghostkv"][name] == own["ghostkv"][name]
    assert through["ghostkv"]["exact"] is False
    assert (through["ghostkv"]["segments"] > 2) == (residency == "segment")


def test_a_session_outlives_the_upstreams_context(front: Service) -> None:
    reply = chat(front, max_tokens=900, ignore_eos=True).json()
    assert reply["usage"]["completion_tokens"] == 900
    flushes = [mark for mark in reply["ghostkv"]["decisions"] if mark["decision"] == "flush"]
    assert len(flushes) >= 2 and {mark["reason"] for mark in flushes} == {"context"}
    again = chat(front, max_tokens=900, ignore_eos=True, ghostkv={"replay": reply["ghostkv"]["decisions"]}).json()
    assert again["choices"] == reply["choices"]


@pytest.mark.parametrize(
    ("field", "asked"),
    [
        ("ghostkv.strict", {"ghostkv": {"strict": True}}),
        ("ghostkv.deterministic", {"ghostkv": {"deterministic": True}}),
        ("ghostkv.residency", {"ghostkv": {"residency": "sink_window"}}),
        ("presence_penalty", {"presence_penalty": 0.5}),
        ("response_format", {"response_format": {"type": "json_object"}}),
    ],
)
def test_what_is_lacking_is_refused_by_name(front: Service, field: str, asked: dict[str, Any]) -> None:
    reply = chat(front, max_tokens=5, **asked)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == field


def test_penalties_where_nothing_crosses_a_boundary(front: Service, small: Service) -> None:
    asked = {"presence_penalty": 1.5, "frequency_penalty": 0.5, "max_tokens": 60, "ghostkv": {"residency": "full"}}
    assert chat(front, **asked).json()["choices"] == chat(small, **asked).json()["choices"]


def test_seeds_bias_ends_and_log_probabilities_get_there(front: Service, small: Service) -> None:
    asked = {
        "temperature": 0.0,
        "logit_bias": {"70": 3, "71": -100},
        "min_tokens": 7,
        "max_tokens": 20,
        "logprobs": True,
        "top_logprobs": 3,
    }
    through, own = chat(front, **asked).json()["choices"], chat(small, **asked).json()["choices"]
    assert through == own
    warm = {"temperature": 1.0, "seed": 5, "max_tokens": 30}
    first, second = (chat(front, **warm).json()["choices"] for _ in range(2))
    assert first == second != chat(front, **warm | {"seed": 6}).json()["choices"]


def test_a_client_that_leaves_ends_the_upstreams_work(front: Service, small: Service) -> None:
    with front.client.chat.completions.create(
        model="small", messages=[{"role": "user", "content": "go on"}], max_tokens=450, stream=True
    ) as stream:
        next(iter(stream))
    idle = small.worker.stats
    assert idle is not None and until(lambda: idle().running == 0)
    assert front.worker.stats is not None and front.worker.stats().running == 0


def test_one_of_two_upstreams_may_come_later(small: Service, small_hf: Path) -> None:
    """It is asked what it can do when it is there; who serves is in /health, without addresses, and in /metrics."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
    other = [{"role": "user", "content": "a question that only the late one was asked"}]
    late, said = f"http://127.0.0.1:{port}", list[str]()
    worker = open_upstream([late, small.url], engine_config(), model=str(small_hf), announce=said.append)
    assert any(line.startswith(f"upstream: away, and used when it is there: the upstream {late}") for line in said)

    def shown(service: Service, name: str) -> dict[str | None, float]:
        found = Scrape.of(service.http).families[name.removesuffix("_total")].samples
        return {sample.labels.get("upstream"): sample.value for sample in found if sample.name == name}

    with serving(worker) as front:
        health = front.http.get("/health")
        assert [each["healthy"] for each in health.json()["upstreams"]] == [False, True] and late not in health.text
        assert chat(front, max_tokens=5).status_code == 200
        assert shown(front, "ghostkv_upstream_healthy") == {late: 0, small.url: 1}
        with serving(replace(small.worker, close=lambda: None), port=port):
            assert until(lambda: shown(front, "ghostkv_upstream_healthy") == {late: 1, small.url: 1}, 30)
            before = shown(front, "ghostkv_upstream_since_timestamp_seconds")
            assert before[late] > before[small.url]
            assert chat(front, max_tokens=5, messages=other).status_code == 200
        assert chat(front, max_tokens=5, messages=other).status_code == 200  # where it is cached is tried first
        assert shown(front, "ghostkv_upstream_failovers_total") == {late: 1, small.url: 0}
        assert shown(front, "ghostkv_upstream_healthy") == {late: 0, small.url: 1}


def test_no_upstream_is_no_start_and_no_health(small_hf: Path) -> None:
    with stubbed(StubUpstream()) as url, stubbed(StubUpstream()) as other:
        worker = open_upstream([url, other], engine_config(), model=str(small_hf))
    with serving(worker) as front:
        refused = front.http.post("/v1/completions", json={"model": "stub", "prompt": "x", "max_tokens": 5})
        assert refused.status_code == 503 and "cannot be reached" in refused.json()["error"]["message"]
        assert front.http.get("/health").status_code == 503 and front.http.get("/live").status_code == 200
        assert front.http.get("/ready").json()["error"]["message"] == "no upstream can be reached"
    with pytest.raises(ConfigError, match=r"cannot be reached.*; .*cannot be reached"):
        open_upstream([url, other], engine_config(), model=str(small_hf))
    with pytest.raises(ConfigError, match="named twice"):
        open_upstream([url, f"{url}/v1"], engine_config(), model=str(small_hf))
    with pytest.raises(ConfigError, match="at least 0 seconds"):
        open_upstream([url], engine_config(), model=str(small_hf), wait_s=-1.0)


def test_what_all_can_do_is_offered(small: Service, small_hf: Path) -> None:
    """Two servers of one tokenizer that differ in everything else."""
    said: list[str] = []
    with stubbed(StubUpstream(names_ids=False)) as bare:
        worker = open_upstream([small.url, bare], engine_config(), model=str(small_hf), announce=said.append)
        offered = worker.backend.capabilities()
        assert offered.max_context == 256 and not offered.token_ids and "min_tokens" in offered.lacks
        assert f"upstream: min_tokens is refused (because of {bare})" in said
        assert f"upstream: of the 512 tokens of context at {small.url} 256 are used" in said
        assert any(line.startswith(f"upstream: {bare} continues a sample otherwise") for line in said)
        worker.close()


def test_a_stored_answer_that_goes_on_says_that_it_is_not_exact(small: Service, small_hf: Path, tmp_path: Path) -> None:
    """Only what is stored stays as it was read; so the reply, its fingerprint and the start say what it is worth."""
    asked = BODY | {"max_tokens": 400, "ignore_eos": True, "stream": True, "ghostkv": {"session": "s"}}
    known = ""
    for restart in (False, True):
        store = SqliteStore(tmp_path / "store.db", 2**26)
        worker = open_upstream([small.url], engine_config(max_session_tokens=4000), model=str(small_hf))
        with serving(worker, store=store) as front:
            if not restart:
                front.http.post("/v1/sessions", json={"id": "s"})
                with front.http.stream("POST", "/v1/chat/completions", json=asked) as reply:
                    assert reply.status_code == 200, reply.read()
                    next(line for line in reply.iter_lines() if line == "id: 30")
                capsule = store.held(("", "s")).result(20)
                assert capsule is not None and dict(capsule.manifest.parts)["model"] == "upstream:small"
                known = front.worker.manifest
            else:
                text = front.http.get("/v1/sessions/s/stream", params={"from": 0}).text
                frames = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]
                assert "error" not in frames[-1] and frames[-1]["ghostkv"]["exact"] is False
                assert {frame["system_fingerprint"] for frame in frames} == {known} != {small.worker.manifest}
        store.close()


def test_another_tokenizer_is_noticed(small_hf: Path) -> None:
    for misread, wrong in ((0, False), (1, False), (5, True), (-3, True)):  # a BOS is none
        with stubbed(StubUpstream(misread=misread)) as url:
            if not wrong:
                open_upstream([url], engine_config(), model=str(small_hf)).close()
                continue
            with pytest.raises(ConfigError, match="name its own checkpoint with --model"):
                open_upstream([url], engine_config(), model=str(small_hf))


def test_an_upstream_that_honours_little_says_so(small_hf: Path) -> None:
    """It passes over what it does not know, takes no ids and names none."""
    stub, said = StubUpstream(takes_ids=False, names_ids=False, models=({"id": "plain"},)), list[str]()
    with stubbed(stub) as url:
        worker = open_upstream([url], engine_config(), model=str(small_hf), announce=said.append)
        with serving(worker) as service:
            whole = "ignore_eos min_tokens logit_bias top_k min_p repetition_penalty logprobs"
            assert worker.backend.capabilities().lacks == {*whole.split(), "top_logprobs"}
            assert all(any(line.startswith(f"upstream: {field}") for line in said) for field in whole.split())
            assert any("sent as text" in line for line in said) and any("about right" in line for line in said)
            raw = {"model": "plain", "prompt": "x", "max_tokens": 9, "min_tokens": 3}
            refused = service.http.post("/v1/completions", json=raw)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "min_tokens")
            reply = service.http.post("/v1/completions", json=raw | {"min_tokens": 0}).json()
            assert reply["choices"][0]["text"] == "abcdefghi"


def test_which_model_and_whose_files(small_hf: Path) -> None:
    both = ({"id": "one", "root": "somewhere/else"}, {"id": "two", "root": str(small_hf), "max_model_len": 99})
    with stubbed(StubUpstream(models=both)) as url:
        with pytest.raises(ConfigError, match="serves one, two: choose one with --upstream-model"):
            open_upstream([url], engine_config())
        with pytest.raises(ConfigError, match="does not say where its tokenizer is"):
            open_upstream([url], engine_config(), upstream_model="one")
        worker = open_upstream([url], engine_config(), upstream_model="two")
        assert (worker.name, worker.backend.capabilities().max_context) == ("two", 99)
        worker.close()
    with stubbed(StubUpstream(models=())) as url, pytest.raises(ConfigError, match="names no model"):
        open_upstream([url], engine_config(), model=str(small_hf))
    loading = [(503, dict[str, str](), {"error": {"message": "loading"}})] * 9
    with stubbed(StubUpstream(refusals=loading)) as url, pytest.raises(ConfigError, match="503: loading"):
        open_upstream([url], engine_config(), model=str(small_hf))
